"""The highest rates of a machine, and so the least time that a convolution takes on it.

Ceilings are rates measured on the machine: the best of several sizes and kinds of work, each chosen
so that one resource alone limits it. They bound every algorithm that does all multiplications of a
convolution. Winograd and FFT algorithms do fewer; none of them has come near these limits yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch

from .._precision import dtype_of
from .._shape import Shape, passes_of
from .timing import Call, Timer, matmul_tf32

# Calls per timed burst of memory traffic: they share the cost of a launch.
_BURST = {"cuda": 10, "cpu": 1}
_MEMORY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
_CPU_CACHE_FOOTPRINTS = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
# A longer matrix product ends the search, because the next extent takes about eight times as long.
_LONG_PRODUCT_MS = 5.0
# Assumed where the system does not say how large a CPU's caches are. No CPU has more.
_LARGEST_CPU_CACHE = 1 << 31
# float16 MMAs that convx needs for one product of float32 accuracy: high x high, high x low and
# low x high components (docs/engines/cuda_lines.md).
_FP16_PRODUCTS_PER_FP32 = 3


def measure_ceilings(
    device: torch.device, precisions: Iterable[str], budget_s: float = 0.5
) -> dict[str, float]:
    """Rates that nothing on this machine exceeds.

    "bytes_per_s" is the traffic of tensors that are larger than the last-level cache,
    "cache_bytes_per_s" that of tensors that fit into its "cache_bytes"; both count bytes read and
    bytes written. Each precision has its flops per second.
    """
    timer = Timer(device, budget_s=budget_s / 10)
    cache = _cache_bytes(device)
    memory = _traffic_rate(device, _MEMORY_BYTES[device.type], timer)
    ceilings = {
        "bytes_per_s": memory,
        "cache_bytes_per_s": max(memory, _cache_rate(device, cache, timer)),
        "cache_bytes": float(cache),
    }
    products = _ProductRates(timer)
    for name in dict.fromkeys(precisions):
        ceilings[name] = products.of(name)
    return ceilings


def least_seconds(
    shape: Shape,
    direction: str,
    precision: str,
    ceilings: dict[str, float],
    residual: bool = False,
) -> tuple[float, float]:
    """The least time of a pass by its arithmetic, and by its memory traffic, which a forward pass
    may have for a residual, too.

    Every byte passes the cache. A repeated call finds there at most the cache's size of the bytes
    that the call before left; all others come from memory or go to it. Ceilings of files before
    2026-11-18 have no cache.
    """
    added = shape.N * shape.K * shape.P * shape.Q if residual else 0
    moved = (shape.least_elements(direction) + added) * dtype_of(precision).itemsize
    not_cached = max(0.0, moved - ceilings.get("cache_bytes", 0.0))
    through_cache = moved / ceilings.get("cache_bytes_per_s", float("inf"))
    arithmetic = shape.least_flops / ceilings[precision]
    return arithmetic, max(not_cached / ceilings["bytes_per_s"], through_cache)


def floor_seconds(
    shape: Shape,
    direction: str,
    precision: str,
    ceilings: dict[str, float],
    residual: bool = False,
) -> float:
    """The least time of a direction. The passes of a training step run one after another, so its
    floor is the sum of theirs. A bias gradient reads no values that the passes do not read."""
    passes = passes_of(direction)
    return sum(max(least_seconds(shape, name, precision, ceilings, residual)) for name in passes)


def _traffic_rate(device: torch.device, footprint: int, timer: Timer) -> float:
    """The most bytes read and written per second, of tensors of so many bytes in all."""
    return max(moved / ms * 1e3 for moved, ms in _traffic(device, footprint, timer))


def _cache_rate(device: torch.device, cache: int, timer: Timer) -> float:
    """The most bytes read and written per second of tensors that stay in the cache."""
    if device.type != "cuda":
        return max(_traffic_rate(device, size, timer) for size in _CPU_CACHE_FOOTPRINTS)
    # A GPU moves the contents of its L2 cache in a few microseconds, and starting and ending a
    # kernel takes one or two of them. The difference between two footprints is free of that time.
    small, large = (_traffic(device, cache // part, timer) for part in (4, 2))
    rates = [moved / ms for moved, ms in (*small, *large)]
    for (less, shorter), (more, longer) in zip(small, large, strict=True):
        if longer > shorter:
            rates.append(min((more - less) / (longer - shorter), 2 * max(rates)))
    return max(rates) * 1e3


def _traffic(device: torch.device, footprint: int, timer: Timer) -> list[tuple[int, float]]:
    """Bytes and milliseconds of kernels that read, write, or do both, on so many bytes."""
    part = max(1 << 8, footprint // 12)  # of float32 values
    buffer = torch.zeros(3 * part, device=device)
    a, b, c = buffer.chunk(3)
    calls: list[tuple[int, Call]] = [
        (2 * part, lambda: b.copy_(a)),
        (3 * part, lambda: torch.add(a, b, out=c)),
        (3 * part, buffer.zero_),
        (3 * part, lambda: torch.sum(buffer)),
    ]
    burst = _BURST[device.type]
    return [(4 * moved, timer.best_ms(_repeat(call, burst)) / burst) for moved, call in calls]


def _repeat(call: Call, count: int) -> Call:
    def run() -> None:
        for _ in range(count):
            call()

    return run


class _ProductRates:
    """Flops per second of matrix products, each measured once."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._known: dict[tuple[torch.dtype, bool], float] = {}

    def of(self, precision: str) -> float:
        """The highest rate of the matrix products that a precision is computed with."""
        if precision == "fp64":
            return self._rate(torch.float64)
        if self._timer.device.type != "cuda":
            # CPUs multiply 16-bit values as float32, or by separate instructions.
            return max(self._rate(dtype) for dtype in (torch.float32, dtype_of(precision)))
        fp16 = max(self._rate(torch.float16), self._rate(torch.bfloat16))
        if precision == "ieee":
            return max(fp16 / _FP16_PRODUCTS_PER_FP32, self._rate(torch.float32))
        if precision == "tf32":  # convx takes one product of scaled float16 operands
            return max(fp16, self._rate(torch.float32, tf32=True))
        return fp16

    def _rate(self, dtype: torch.dtype, tf32: bool = False) -> float:
        if (dtype, tf32) not in self._known:
            with matmul_tf32(tf32):
                self._known[dtype, tf32] = self._best_rate(dtype)
        return self._known[dtype, tf32]

    def _best_rate(self, dtype: torch.dtype) -> float:
        best = 0.0
        for extent in self._extents(dtype):
            # Zeros take the least power, so the clock stays as high as in a short layer.
            a = torch.zeros(extent, extent, device=self._timer.device, dtype=dtype)
            product = partial(torch.mm, a, a, out=torch.empty_like(a))
            ms = self._timer.best_ms(product)
            best = max(best, 2 * extent**3 / ms * 1e3)
            if ms > _LONG_PRODUCT_MS:
                break
        return best

    def _extents(self, dtype: torch.dtype) -> tuple[int, ...]:
        if self._timer.device.type != "cuda":
            return 256, 512, 1024
        # Many GPUs have little hardware for float64, and nothing to gain from a larger product.
        return (1024, 2048) if dtype is torch.float64 else (4096, 6144, 8192)


def _cache_bytes(device: torch.device) -> int:
    """The size of a GPU's L2 cache, or of all caches of the CPU together."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = {}
    for size in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = size.read_text().strip()
            shared = (size.parent / "shared_cpu_list").read_text().strip()
            level = (size.parent / "level").read_text().strip()
            sizes[level, shared, size.parent.name] = int(text[:-1]) * units[text[-1]]
    return sum(sizes.values()) or _LARGEST_CPU_CACHE
