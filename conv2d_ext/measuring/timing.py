"""Time of a call: median over repetitions after warm-up, on the device's own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from .._user_error import UserError

Call = Callable[[], object]

# A choice by measurement changes only for something that is faster by more than noise.
WORTH_IT = 0.98

# The device sleeps so long per call before the first one, so that the host stays ahead of it.
_HOLD_CYCLES = 100_000
# A graph has so many calls, which share the time that it takes to start.
_GRAPH_CALLS = 10
# Compared calls alternate in so many rounds, so that clocks and power are the same for all.
_ROUNDS = 5
# A buffer this large pushes everything else out of any GPU's L2 cache.
_FLUSH_BYTES = 256 << 20


def autotuned(allow_tf32: bool) -> AbstractContextManager[None]:
    """Lets cuDNN autotune PyTorch's own convolutions. The context sets every flag of cuDNN, so
    `enabled` has to be repeated."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=allow_tf32)


@contextmanager
def matmul_tf32(allowed: bool) -> Iterator[None]:
    """Lets matrix products of float32 values round to TF32, or not."""
    saved = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = saved


class Timer:
    """Times calls on one device. cold=True empties the GPU's L2 cache before each repetition;
    graphs=True replays CUDA graphs of several calls, which removes the gaps between two launches.
    """

    def __init__(
        self, device: torch.device, cold: bool = False, budget_s: float = 0.5, graphs: bool = False
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
        """Medians of calls that are compared with each other, whose repetitions alternate."""
        return [statistics.median(times) for times in self._alternate(calls)]

    def best_ms(self, call: Call) -> float:
        return min(self.times_ms(call))

    def times_ms(self, call: Call) -> list[float]:
        return self._alternate([call])[0]

    def _alternate(self, calls: Sequence[Call]) -> list[list[float]]:
        for call in calls:
            for _ in range(2):  # planning, autotuning and allocation happen here
                call()
        if self.graphs:  # the graphs share memory, because none needs another's results
            pool = torch.cuda.graph_pool_handle()
            calls = [_capture(call, pool) for call in calls]
        counts = [self._count_repetitions(call) for call in calls]
        for call, count in zip(calls, counts, strict=True):
            self._repeat(call, max(2, count // 5))
        times: list[list[float]] = [[] for _ in calls]
        order = list(zip(calls, counts, times, strict=True))
        for done in range(_ROUNDS):
            for call, count, own in order:
                own += self._repeat(call, count * (done + 1) // _ROUNDS - count * done // _ROUNDS)
            # The next round begins with another call, because later calls find the card warmer. Of
            # three or more calls none follows itself, which would cost 3% where power is short.
            order.append(order.pop(0))
        per_call = _GRAPH_CALLS if self.graphs else 1
        return [[time / per_call for time in own] for own in times]

    def _count_repetitions(self, call: Call) -> int:
        once = self._repeat(call, 1)[0]
        return max(_ROUNDS, min(100, int(self.budget_s * 1e3 / max(once, 1e-3))))

    def _repeat(self, call: Call, count: int) -> list[float]:
        return self._on_gpu(call, count) if self.device.type == "cuda" else _on_cpu(call, count)

    def _on_gpu(self, call: Call, count: int) -> list[float]:
        marks = []
        torch.cuda._sleep(count * _HOLD_CYCLES)  # keeps a slow host out of the time of short calls
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

    The call must have run before, because autotuning takes more memory than the kernel it chooses.
    None on the CPU, whose allocator does not count.
    """
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call()
    peak = torch.cuda.max_memory_allocated(device)
    # Results count with the size that the allocator rounded them up to, and views with their own
    # elements only.
    held = torch.cuda.memory_allocated(device) - before
    results = result if isinstance(result, tuple) else (result,)
    unseen = sum(t.untyped_storage().nbytes() - t.numel() * t.element_size() for t in results)
    return max(0, peak - before - held + unseen)


def host_us(call: Call, count: int = 2000) -> float:
    """Host time of one call, which does not wait for the device."""
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
