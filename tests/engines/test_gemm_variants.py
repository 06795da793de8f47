"""cuda_gemm's other plans of 1x1 layers, which tune() may prefer: each by name."""

from __future__ import annotations

import pytest
import reference
import torch
from cases import Case
from engine_tester import Problem
from layouts import COMMON, Layout

import conv2d_ext

CASES = [
    Case("odd_planes", (2, 72, 13, 13), (40, 72, 1, 1)),
    Case("one_odd_image", (1, 136, 33, 33), (56, 136, 1, 1), bias=False),
    Case("aligned", (3, 64, 16, 16), (96, 64, 1, 1)),
    Case("odd_channels", (2, 37, 12, 12), (51, 37, 1, 1), bias=False),
    Case("strided", (2, 40, 14, 14), (24, 40, 1, 1), stride=(2, 2)),
    Case("groups", (2, 64, 9, 7), (96, 32, 1, 1), groups=2),
]
MODES = [
    (torch.float32, "ieee"),
    (torch.float32, "tf32"),
    (torch.bfloat16, "ieee"),
    (torch.float16, "ieee"),
    (torch.float64, "ieee"),
]
TF32_ERROR = 2e-3  # of the largest result


def find_variants(problem: Problem, direction: str, precision: str) -> tuple[str, ...]:
    case = problem.case
    said = conv2d_ext.explain(
        problem.x,
        problem.w,
        problem.b,
        groups=case.groups,
        stride=case.stride,
        direction=direction,
        precision=precision,
    )
    return variants_of_gemm(said)


def variants_of_gemm(said: conv2d_ext.Explanation) -> tuple[str, ...]:
    return next(c.variants for c in said.candidates if c.name == "cuda_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize(("dtype", "precision"), MODES, ids=str)
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_variants(
    case: Case, direction: str, dtype: torch.dtype, precision: str, layout: Layout
) -> None:
    problem = Problem(case, dtype, layout, "cuda")
    variants = find_variants(problem, direction, precision)
    for variant in variants:
        got = problem.run(direction, f"cuda_gemm:{variant}", precision)
        if precision == "ieee":
            problem.check(direction, got)
        else:
            got, want = (reference.exact(t) for t in (got, problem.want(direction)))
            assert (got - want).abs().max() <= TF32_ERROR * want.abs().max(), variant
    dense = case.stride == (1, 1)
    assert ("lt_0" in variants) == (dense or (direction == "forward" and layout is COMMON[1]))
    odd_planes = dense and layout is COMMON[0] and case.x[2] % 2 == 1
    on_tensor_cores = dtype.itemsize == 2 or precision == "tf32"
    assert ("side_by_side" in variants) == (odd_planes and on_tensor_cores)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "size",
    [
        (2, 64, 96, 16),
        (1, 256, 64, 56),
        (2, 1408, 432, 17),
        (1, 2048, 72, 8),
        (1, 24, 1244, 20),
        (8, 26, 162, 24),
        (1, 188, 44, 80),
        (2, 2046, 61, 7),
        (1, 1023, 30, 5),
    ],
)
def test_a_bias_is_added_before_sums_are_rounded(
    size: tuple[int, int, int, int], memory_format: torch.memory_format, dtype: torch.dtype
) -> None:
    n, c, k, h = size
    torch.manual_seed(0)
    w = torch.randn(k, c, 1, 1, device="cuda", dtype=dtype)
    pixel = torch.randn(1, c, 1, 1, device="cuda", dtype=dtype)
    x = pixel.expand(n, c, h, h).contiguous(memory_format=memory_format)
    sums = (w.double() * pixel.double()).sum((1, 2, 3))
    bias = -sums.to(dtype)
    want = (sums + bias.double())[None, :, None, None]  # nothing, if sums were rounded before
    variants = variants_of_gemm(conv2d_ext.explain(x, w, bias))
    assert variants
    for variant in variants:
        y = conv2d_ext.conv2d(x, w, bias, algorithm=f"cuda_gemm:{variant}")
        assert (y.double() - want).abs().max() <= 0.1 * want.abs().max(), variant


@pytest.mark.gpu
def test_tuned_choices_run_and_can_be_captured() -> None:
    x = torch.randn(2, 72, 13, 13, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(40, 72, 1, 1, device="cuda", dtype=torch.bfloat16)
    with conv2d_ext.tune() as report:
        before = conv2d_ext.conv2d(x, w)
    try:
        (choice,) = report.choices
        assert choice.us <= choice.default_us
        assert conv2d_ext.explain(x, w).algorithm == choice.algorithm
        after = conv2d_ext.conv2d(x, w)
        torch.testing.assert_close(after, before, rtol=2e-2, atol=2e-1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = conv2d_ext.conv2d(x, w)
        graph.replay()
        assert torch.equal(captured, after)
    finally:
        conv2d_ext.clear_tuned()
