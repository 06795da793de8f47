"""Problems for the core module, from the benchmark's shapes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from conv2d_ext.bench.shapes import Shape


def make_problem(
    core: ModuleType,
    shape: Shape,
    direction: str = "forward",
    dtype: str = "float32",
    precision: str = "ieee",
    channels_last: bool = False,
) -> Any:
    problem = core.ConvProblem()
    problem.pass_ = getattr(core.Pass, direction)
    problem.dtype = getattr(core.DType, dtype)
    problem.precision = getattr(core.Precision, precision)
    for letter in "NCHWKRS":
        setattr(problem, letter, getattr(shape, letter))
    problem.groups = shape.groups
    problem.stride = core.Hw(*shape.stride)
    problem.dilation = core.Hw(*shape.dilation)
    problem.pad = core.Padding(*shape.pad)
    error = core.validate(problem, shape.C // shape.groups)
    if error:
        raise ValueError(error)
    strides = core.channels_last_strides if channels_last else core.contiguous_strides
    problem.x_strides = strides(shape.C, shape.H, shape.W)
    problem.w_strides = strides(shape.C // shape.groups, shape.R, shape.S)
    problem.y_strides = strides(shape.K, problem.P, problem.Q)
    return problem


def h200(core: ModuleType) -> Any:
    caps = core.DeviceCaps()
    caps.sm_count = 132
    caps.compute_major = 9
    caps.code_arch = 90
    caps.wgmma = True
    caps.shared_bytes_per_block = 232448
    return caps


def a100(core: ModuleType) -> Any:
    caps = core.DeviceCaps()
    caps.sm_count = 108
    caps.compute_major = 8
    caps.code_arch = 80
    caps.shared_bytes_per_block = 163 << 10
    return caps


def rtx4090(core: ModuleType) -> Any:
    caps = core.DeviceCaps()
    caps.sm_count = 128
    caps.compute_major, caps.compute_minor = 8, 9
    caps.code_arch = 89
    caps.shared_bytes_per_block = 99 << 10
    return caps


def avx512(core: ModuleType, threads: int = 2) -> Any:
    caps = core.DeviceCaps()
    caps.threads = threads
    caps.simd_bytes = 64
    return caps
