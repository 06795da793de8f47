"""DistributedDataParallel and FSDP over gloo, two processes: the gradients of the whole batch."""

from __future__ import annotations

import pytest
import torch
from processes import run_processes
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


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def wrap_ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def wrap_fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Conv2d):
            fully_shard(layer)
    return fully_shard(model)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train_one_rank(rank: int, wrap) -> None:
    alone = make_model().double()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), make_batch().double())

    model = wrap(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, make_batch().chunk(2)[rank])
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(ours.grad).double(), theirs.grad, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(whole(ours).double(), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [wrap_ddp, wrap_fsdp], ids=["ddp", "fsdp"])
def test_two_processes_train_as_one(wrap) -> None:
    run_processes(train_one_rank, 2, wrap)
