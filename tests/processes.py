"""Runs a function in several processes that talk to each other over gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_processes(body: Callable[..., None], count: int, *args: Any) -> None:
    """body(rank, *args) in each process; an error in one is raised here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_start, args=(body, count, port, args), nprocs=count)


def _start(
    rank: int, body: Callable[..., None], count: int, port: int, args: tuple[Any, ...]
) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=count)
    try:
        body(rank, *args)
    finally:
        dist.destroy_process_group()
