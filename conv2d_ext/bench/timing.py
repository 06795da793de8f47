"""Time of a call: median over repetitions after warm-up, on the device's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .._user_error import UserError

Call = Callable[[], object]

# The device is held for so long per call, so that the host is ahead of it from the first one on.
_HOLD_CYCLES = 100_000
# Calls of a graph: what starting one takes is shared by so many.
_GRAPH_CALLS = 10
# What is compared takes turns, so that clocks and power are the same for all.
_TURNS = 5
# A buffer this large pushes everything else out of any GPU's L2 cache.
_FLUSH_BYTES = 256 << 20


def autotuned(allow_tf32: bool) -> AbstractContextManager[None]:
    """PyTorch's own convolutions as fast as they get. The context switches off what it is not asked
    for, cuDNN itself included."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=allow_tf32)


class Timer:
    """Times calls on one device. cold=True empties the GPU's L2 cache before each repetition;
    graphs=True replays CUDA graphs of some calls, which leaves out what lies between two of them.
    """

    def __init__(
        self,
        device: torch.device,
        cold: bool = False,
        budget_s: float = 0.5,
        graphs: bool = False,
    ) -> None:
        if graphs and (cold or device.type != "cuda"):
            raise UserError("CUDA graphs are timed on a GPU, and not with a cold cache")
        self.device = device
        self.budget_s = budget_s
        self.graphs = graphs
        self._flush = (
            torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)
            if cold and device.type == "cuda"
            else None
        )

    def median_ms(self, call: Call) -> float:
        return statistics.median(self.times_ms(call))

    def medians_ms(self, calls: Sequence[Call]) -> list[float]:
        """Of calls that are compared with each other: some repetitions of each in turn."""
        return [statistics.median(times) for times in self._times_in_turns(calls)]

    def best_ms(self, call: Call) -> float:
        return min(self.times_ms(call))

    def times_ms(self, call: Call) -> list[float]:
        return self._times_in_turns([call])[0]

    def _times_in_turns(self, calls: Sequence[Call]) -> list[list[float]]:
        for call in calls:
            for _ in range(2):  # planning, autotuning and allocation happen here
                call()
        if self.graphs:  # which share their memory: none needs another's results
            pool = torch.cuda.graph_pool_handle()
            calls = [_capture(call, pool) for call in calls]
        counts = [self._count_repetitions(call) for call in calls]
        for call, count in zip(calls, counts, strict=True):
            self._repeat(call, max(2, count // 5))
        times: list[list[float]] = [[] for _ in calls]
        order = list(zip(calls, counts, times, strict=True))
        for turn in range(_TURNS):
            for call, count, own in order:
                own += self._repeat(call, count * (turn + 1) // _TURNS - count * turn // _TURNS)
            # Another one begins: what comes later finds the card warmer. And of three or more none
            # follows itself, which costs 3% where power is short.
            order.append(order.pop(0))
        per_call = _GRAPH_CALLS if self.graphs else 1
        return [[time / per_call for time in own] for own in times]

    def _count_repetitions(self, call: Call) -> int:
        once = self._repeat(call, 1)[0]
        return max(_TURNS, min(100, int(self.budget_s * 1e3 / max(once, 1e-3))))

    def _repeat(self, call: Call, count: int) -> list[float]:
        return self._on_gpu(call, count) if self.device.type == "cuda" else _on_cpu(call, count)

    def _on_gpu(self, call: Call, count: int) -> list[float]:
        marks = []
        torch.cuda._sleep(count * _HOLD_CYCLES)  # else a slow host would be part of short calls
        for _ in range(count):
            if self._flush is not None:
                self._flush.zero_()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) for start, end in marks]


def _capture(call: Call, pool: Any) -> Call:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(_GRAPH_CALLS):
            call()
    return graph.replay


def _on_cpu(call: Call, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def scratch_bytes(
    call: Callable[[], Tensor | tuple[Tensor, ...]], device: torch.device
) -> int | None:
    """The GPU memory that a call takes while it runs, beyond its operands and its results.

    The call must have run before: autotuning takes more than what it chooses. The CPU's allocator
    does not tell; then it is None.
    """
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call()
    peak = torch.cuda.max_memory_allocated(device)
    # By the allocator's own count of the results, which it rounds up; of a view only what is seen.
    held = torch.cuda.memory_allocated(device) - before
    results = result if isinstance(result, tuple) else (result,)
    unseen = sum(t.untyped_storage().nbytes() - t.numel() * t.element_size() for t in results)
    return max(0, peak - before - held + unseen)


def host_us(call: Call, count: int = 2000) -> float:
    """Host time of one call, work on the device not waited for."""
    for _ in range(100):
        call()
    rounds = []
    for _ in range(5):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count // 5):
            call()
        rounds.append((time.perf_counter() - begin) / (count // 5) * 1e6)
    return min(rounds)
