"""DistributedDataParallel over gloo, two processes: the gradients of the whole batch."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import conv2d_ext


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        conv2d_ext.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        conv2d_ext.Conv2d(8, 8, (3, 5), groups=4, padding=(1, 0, 2, 2)),
        conv2d_ext.Conv2d(8, 2, 1).to(memory_format=torch.channels_last),
    ]
    return nn.Sequential(*layers)


def make_batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 8, 9, generator=generator)


def train_one_rank(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        model = DistributedDataParallel(make_model())
        model(make_batch().chunk(2)[rank]).square().mean().backward()
        gradients = [p.grad for p in model.parameters()]
        torch.save(gradients, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_agree_with_one() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = make_model()
    model(make_batch()).square().mean().backward()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train_one_rank, args=(port, folder), nprocs=2)
        for rank in range(2):
            gradients = torch.load(Path(folder) / f"{rank}.pt")
            for gradient, parameter in zip(gradients, model.parameters(), strict=True):
                torch.testing.assert_close(gradient, parameter.grad)
