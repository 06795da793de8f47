"""Residuals and activations behind the CUDA engines' kernels, run on the host from their source.

Every engine that says it applies an epilogue is asked for it, by forms that reach each of its
stores.
"""

from __future__ import annotations

import itertools
import json
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Case, draw, named
from kernel_tester import Guarded, make_problem
from problems import h200
from test_emulated_engines import ENGINES

from conv2d_ext._fused import ACTIVATIONS

SLOPE = 0.25
RUNS = {
    **ENGINES,
    "cuda_pointwise": lambda core: core.run_pointwise,
}
FORMATS = [
    (torch.float32, "ieee"),
    (torch.float32, "tf32"),
    (torch.bfloat16, "ieee"),
    (torch.float16, "ieee"),
]
CASES = [
    *named(
        "odd_channels",
        "four_sided_padding_strided",
        "one_by_one",
        "one_by_one_strided",
        "single_pixel_padded",
        "groups_of_odd_sizes",
        "groups_of_four",
        "groups_of_ten",
        "depthwise",
        "depthwise_wide",
        "depthwise_multiplier",
        "depthwise_of_eight_strided",
    ),
    Case("dense", (2, 64, 12, 13), (72, 64, 3, 3), padding=(1, 1)),
    Case("aligned", (2, 64, 8, 16), (64, 64, 3, 3), padding=(1, 1), bias=False),
    Case("small_images", (3, 128, 7, 7), (72, 128, 3, 3), padding=(1, 1)),
    Case("one_by_one_aligned", (2, 64, 16, 16), (128, 64, 1, 1)),
    Case("one_by_one_of_planes", (4, 64, 7, 7), (72, 64, 1, 1)),
    Case("one_by_one_of_pairs", (2, 64, 14, 14), (64, 64, 1, 1), bias=False),
    Case("one_by_one_of_few", (2, 24, 8, 8), (6, 24, 1, 1)),
    Case("stem", (2, 3, 21, 24), (20, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    Case("strided", (2, 32, 13, 14), (40, 32, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("groups_of_eight", (2, 32, 9, 12), (32, 8, 3, 3), padding=(1, 1), groups=4),
    Case("depthwise_strips", (2, 8, 16, 24), (8, 1, 3, 3), padding=(1, 1), groups=8),
    Case("depthwise_odd_strips", (2, 8, 14, 14), (8, 1, 5, 5), padding=(2, 2), groups=8),
    Case("depthwise_large", (1, 4, 20, 24), (4, 1, 17, 17), padding=(8, 8), groups=4),
]


def scale_of(case: Case, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sum of the products' magnitudes, which bounds the error of a sum."""
    top, bottom, left, right = case.pad4
    padded = F.pad(x.double().abs(), (left, right, top, bottom))
    return F.conv2d(padded, w.double().abs(), None, case.stride, 0, case.dilation, case.groups)


def exact(case: Case, x: Any, w: Any, b: Any) -> torch.Tensor:
    top, bottom, left, right = case.pad4
    padded = F.pad(x.double(), (left, right, top, bottom))
    b = None if b is None else b.double()
    return F.conv2d(padded, w.double(), b, case.stride, 0, case.dilation, case.groups)


def run(
    core: ModuleType,
    engine: str,
    case: Case,
    dtype: torch.dtype,
    precision: str,
    channels_last: bool,
    activation: str,
    has_residual: bool,
) -> bool:
    """Whether the engine's kernels apply the epilogue; checks what they computed."""
    problem = make_problem(core, case, dtype, channels_last)
    problem.precision = getattr(core.Precision, precision)
    x, w, b = case.tensors(dtype)
    residual = draw(case.y, dtype, seed=5)
    given = Guarded(x, channels_last), w.clone()
    result = Guarded(torch.full(case.y, torch.nan, dtype=dtype), channels_last)
    more = Guarded(residual, channels_last)
    problem.fuse(activation, SLOPE, more.tensor.data_ptr() if has_residual else 0)
    said = json.loads(core.choose("cuda", problem, h200(core), engine))
    candidate = next(c for c in said["candidates"] if c["name"] == engine)
    if candidate["refusal"] or candidate["separate_pass"]:
        return False
    addresses = [given[0].tensor.data_ptr(), given[1].data_ptr(), result.tensor.data_ptr()]
    bias = 0 if b is None else b.data_ptr()
    done = RUNS[engine](core)(problem, h200(core), *addresses, bias)
    assert done is not None
    assert not isinstance(done, str), done
    assert result.is_whole()
    total = exact(case, x, w, b) + (residual.double() if has_residual else 0)
    want = ACTIVATIONS[activation](total, SLOPE)
    product = {"tf32": 1.2e-3, "ieee": 2e-6}[precision if dtype == torch.float32 else "ieee"]
    rounding = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    bound = product * scale_of(case, x, w) + rounding * want.abs() + 1e-6
    error = (result.tensor.double() - want).abs()
    assert (error <= bound).all(), f"{case} {activation}: {(error / bound).max()}"
    return True


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("engine", sorted(set(RUNS) - {"cuda_col2im", "cuda_phases"}))
def test_epilogues(core: ModuleType, engine: str, format: Any) -> None:
    fused = 0
    for case, channels_last in itertools.product(CASES, (False, True)):
        fused += run(core, engine, case, *format, channels_last, "relu", False)
    dtype, precision = format
    strict = dtype == torch.float32 and precision == "ieee"
    if engine in ("cuda_gemm", "cuda_diagonal") or (strict and engine in MMA_ONLY):
        assert fused == 0
    else:
        assert fused > 2


def test_kernels_apply_a_relu_alone(core: ModuleType) -> None:
    """Everything else is a pass of its own."""
    (case,) = named("four_sided_padding_strided")
    for activation, has_residual in itertools.product(ACTIVATIONS, (False, True)):
        problem = make_problem(core, case, torch.float32)
        problem.fuse(activation, SLOPE, 1 if has_residual else 0)
        said = json.loads(core.choose("cuda", problem, h200(core), "cuda_direct"))
        (candidate,) = (c for c in said["candidates"] if c["name"] == "cuda_direct")
        applied = activation in ("none", "relu") and not has_residual
        assert candidate["separate_pass"] != applied, (activation, has_residual)


@pytest.mark.parametrize("dtype", [*dict.fromkeys(f[0] for f in FORMATS), torch.float64], ids=str)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_separate_pass(core: ModuleType, dtype: torch.dtype, before: int) -> None:
    """At addresses that are not multiples of 16 bytes, too."""
    for i, (activation, size) in enumerate(
        itertools.product(ACTIVATIONS, [(1, 1, 1, 1), (2, 3, 5, 7), (2, 16, 9, 16)])
    ):
        case = Case("one_by_one", (size[0], 1, *size[2:]), (size[1], 1, 1, 1), bias=False)
        problem = make_problem(core, case, dtype)
        y, residual = draw(size, dtype), draw(size, dtype, seed=1)
        result, more = Guarded(y, before=before), Guarded(residual, before=before)
        has_residual = i % 2 == 0
        problem.fuse(activation, SLOPE, more.tensor.data_ptr() if has_residual else 0)
        core.run_separate_pass(problem, result.tensor.data_ptr())
        total = y.double() + (residual.double() if has_residual else 0)
        want = ACTIVATIONS[activation](total, SLOPE)
        exact = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 5e-4}
        error = exact.get(dtype, 4e-3)
        torch.testing.assert_close(result.tensor.double(), want, rtol=error, atol=error)
        assert result.is_whole()


# These have no strict float32, or have its epilogue in a pass of its own.
MMA_ONLY = {"cuda_bands", "cuda_boxes", "cuda_lines"}
