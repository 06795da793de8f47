"""The depthwise kernels, run on the host from their own source, against float64.

A GPU runs the same code in tests/engines; here every machine can see that the tiling is right.
"""

from __future__ import annotations

import random
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from depthwise_tester import DTYPES, depthwise, run_and_check
from kernel_tester import Guarded, make_problem
from problems import h200

FORMATS = ["nchw", "nhwc"]


CASES = [
    depthwise("one_pixel", 1, 1, 1, 1, 1, 1),
    depthwise("rows_of_510", 1, 2, 12, 512, 3, 3),
    depthwise("rows_of_odd_length", 2, 3, 21, 37, 3, 3, padding=(1, 1)),
    depthwise("small_planes", 5, 7, 7, 7, 3, 3, padding=(1, 1)),
    depthwise("small_even_planes", 3, 11, 14, 14, 5, 5, padding=(2, 2)),
    depthwise("planes_of_56", 1, 3, 56, 56, 7, 7, padding=(3, 3)),
    depthwise("column_kernel", 2, 2, 40, 64, 3, 1),
    depthwise("row_kernel", 1, 2, 30, 128, 1, 31, padding=(0, 15)),
    depthwise("three_by_seven", 1, 2, 33, 96, 3, 7),
    depthwise("stride_two", 2, 5, 28, 28, 3, 3, stride=(2, 2), padding=(1, 1)),
    depthwise("stride_three", 2, 4, 23, 29, 5, 4, stride=(3, 3), padding=(2, 1)),
    depthwise("stride_beyond_kernel", 1, 3, 19, 23, 2, 2, stride=(3, 5)),
    depthwise("dilation", 2, 3, 20, 22, 3, 3, padding=(2, 3), dilation=(2, 3)),
    depthwise("long_dilation", 1, 2, 17, 17, 3, 3, padding=(12, 12), dilation=(12, 12)),
    depthwise("stride_and_dilation", 1, 3, 25, 27, 4, 5, m=2, stride=(2, 3), dilation=(3, 2)),
    depthwise("multiplier", 2, 4, 16, 18, 3, 3, m=3, padding=(1, 1)),
    depthwise("one_channel", 3, 1, 20, 24, 5, 5, m=8, padding=(2, 2)),
    depthwise("large_kernel", 1, 2, 40, 48, 31, 31, padding=(15, 15)),
    depthwise("large_kernel_of_9_by_13", 1, 3, 21, 26, 9, 13, padding=(4, 6)),
    depthwise("four_sided_padding", 2, 3, 9, 16, 3, 4, padding=(0, 2, 3, 1)),
    depthwise("all_padding", 1, 2, 2, 2, 1, 1, stride=(3, 3), padding=(3, 3)),
    depthwise("long_rows", 1, 1, 9, 2100, 5, 3, padding=(2, 1)),
    depthwise("channels_of_8", 2, 16, 10, 12, 3, 3, padding=(1, 1)),
    depthwise("channels_of_4", 1, 20, 9, 11, 3, 3, padding=(1, 1), bias=False),
    depthwise("many_channels", 1, 136, 5, 6, 3, 3, padding=(1, 1)),
]

# Kernels that stay in registers: what strips are for, with the number of columns of a strip.
STRIPS = [
    (depthwise("dw3", 2, 3, 20, 32, 3, 3, padding=(1, 1)), 4, 8),
    (depthwise("dw3_of_28", 3, 5, 28, 28, 3, 3, padding=(1, 1)), 4, 4),
    (depthwise("dw3_of_14", 2, 19, 14, 14, 3, 3, padding=(1, 1)), 2, 2),
    (depthwise("dw3_stride_two", 2, 9, 56, 56, 3, 3, stride=(2, 2), padding=(1, 1)), 4, 4),
    (depthwise("dw3_odd_rows", 9, 3, 13, 24, 3, 3, m=2, stride=(2, 2), padding=(1, 1)), 4, 4),
    (depthwise("dw3_to_14", 1, 6, 28, 28, 3, 3, stride=(2, 2), padding=(1, 1)), 2, 2),
    (depthwise("dw5", 1, 6, 28, 28, 5, 5, m=3, padding=(2, 2)), 4, 4),
    (depthwise("dw5_of_14", 2, 6, 14, 14, 5, 5, padding=(2, 2), bias=False), 2, 2),
    (depthwise("dw5_stride_two", 3, 6, 56, 56, 5, 5, stride=(2, 2), padding=(2, 2)), 4, 4),
    (depthwise("dw5_to_14", 2, 6, 28, 28, 5, 5, stride=(2, 2), padding=(2, 2)), 2, 2),
    (depthwise("dw3_of_7", 9, 5, 7, 7, 3, 3, padding=(1, 1)), 1, 1),
    (depthwise("dw5_of_7", 9, 5, 7, 7, 5, 5, padding=(2, 2)), 1, 1),
    (depthwise("dw5_to_7", 3, 5, 14, 14, 5, 5, stride=(2, 2), padding=(2, 2)), 1, 1),
    (depthwise("dw3_odd_width", 3, 5, 15, 15, 3, 3, stride=(2, 2), padding=(1, 1)), 1, 1),
    (depthwise("dw7", 1, 7, 56, 56, 7, 7, padding=(3, 3)), 4, 4),
    (depthwise("dw7_of_14", 1, 7, 14, 14, 7, 7, padding=(3, 3)), 2, 2),
    (depthwise("dw7_one_row", 30, 7, 1, 8, 7, 7, padding=(3, 3)), 4, 4),
    (depthwise("dw7_two_columns", 90, 5, 9, 2, 7, 7, padding=(3, 3)), 2, 2),
    (depthwise("dw3_more_rows", 20, 3, 6, 16, 3, 3, padding=(5, 9, 1, 1)), 4, 8),
    (depthwise("dw3_cropped", 20, 3, 16, 16, 3, 3, padding=(0, 0, 1, 1)), 4, 8),
    (depthwise("dw3_wider", 20, 3, 6, 16, 3, 3, padding=(1, 1, 1, 9)), 4, 8),
    (depthwise("dw3_valid", 2, 2, 40, 256, 3, 3), 0, 8),
    (depthwise("dw3_two_warps", 1, 2, 37, 512, 3, 3), 0, 8),
    (depthwise("dw3_partial_warp", 1, 3, 37, 480, 3, 3, m=2), 0, 8),
    (depthwise("dw3_by_7", 2, 2, 26, 256, 3, 7), 0, 8),
    (depthwise("dw3_by_7_half", 1, 2, 26, 200, 3, 7), 0, 8),
]

# Kernels of one row or one column, whose weight gradient alone is in strips.
GRADIENT_STRIPS = [
    depthwise("dw3_by_1", 2, 3, 40, 64, 3, 1),
    depthwise("dw3_by_1_padded", 2, 3, 13, 30, 3, 1, m=2, padding=(1, 0)),
    depthwise("dw3_by_1_odd", 9, 3, 13, 27, 3, 1),
    depthwise("dw1_by_3", 2, 3, 40, 64, 1, 3, padding=(0, 1)),
    depthwise("dw1_by_3_odd", 2, 3, 11, 27, 1, 3, padding=(2, 1)),
]


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    while True:
        n, c, h, w = (
            draw.randint(1, 3),
            draw.randint(1, 9),
            draw.randint(1, 40),
            draw.randint(1, 70),
        )
        r, s = draw.choice([1, 2, 3, 5, 7, 11]), draw.choice([1, 2, 3, 4, 5, 6, 7, 9, 17])
        stride, dilation = (
            (draw.choice(choices), draw.choice(choices))
            for choices in ([1, 1, 1, 2, 3, 4], [1, 1, 1, 2, 3, 5])
        )
        padding = tuple(draw.randint(0, 5) for _ in range(4))
        case = depthwise(
            f"random{seed}", n, c, h, w, r, s, draw.choice([1, 1, 2, 3]),
            stride=stride, padding=padding, dilation=dilation, bias=draw.random() < 0.5,
        )  # fmt: skip
        if min(case.y[2:]) >= 1:
            return case


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case(core: ModuleType, case: Case, dtype: torch.dtype, format: str) -> None:
    run_and_check(core, case, dtype, format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(60))
def test_random_cases(core: ModuleType, seed: int, format: str) -> None:
    case = random_case(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    run_and_check(core, case, dtype, format, before=seed % 5)
    if case.stride == (1, 1) and case.w[0] == case.groups:
        run_and_check(core, case, dtype, format, direction="input_grad")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("case", "columns", "half_columns"), STRIPS, ids=str)
def test_strips(
    core: ModuleType, case: Case, columns: int, half_columns: int, dtype: torch.dtype
) -> None:
    """As many columns as rows can be cut into; single ones where addresses are odd."""
    wanted = columns if dtype == torch.float32 else half_columns
    small = h200(core)
    small.sm_count = 1  # has much to do, with as many columns as there can be
    assert run_and_check(core, case, dtype, "nchw", caps=small)["strips"] == wanted
    run_and_check(core, case, dtype, "nchw")
    said = run_and_check(core, case, dtype, "nchw", before=1, caps=small)
    assert said["strips"] == min(wanted, 1)
    if case.stride == (1, 1) and case.w[0] == case.groups:
        run_and_check(core, case, dtype, "nchw", direction="input_grad", caps=small)


# The same over pixels.
PIXEL_STRIPS = [
    depthwise("dw3", 2, 12, 20, 32, 3, 3, padding=(1, 1)),
    depthwise("dw3_valid", 2, 16, 33, 19, 3, 3, bias=False),
    depthwise("dw3_of_7", 9, 40, 7, 7, 3, 3, padding=(1, 1)),
    depthwise("dw3_one_row", 3, 8, 1, 9, 3, 3, padding=(1, 1)),
    depthwise("dw3_more_padding", 2, 8, 9, 10, 3, 3, padding=(5, 3, 4, 2)),
    depthwise("dw3_cropped", 3, 8, 16, 16, 3, 3, padding=(0, 0, 1, 1)),
    depthwise("dw3_stride_two", 2, 36, 28, 28, 3, 3, stride=(2, 2), padding=(1, 1)),
    depthwise("dw3_stride_two_odd", 3, 20, 15, 13, 3, 3, stride=(2, 2), padding=(0, 1, 1, 0)),
    depthwise("dw3_stride_two_padding", 1, 8, 9, 9, 3, 3, stride=(2, 2), padding=(4, 5, 3, 6)),
    depthwise("dw3_chunks", 2, 264, 5, 6, 3, 3, padding=(1, 1)),
    depthwise("dw5", 2, 20, 15, 14, 5, 5, padding=(2, 2)),
    depthwise("dw5_more_padding", 2, 8, 9, 10, 5, 5, padding=(5, 3, 4, 7), bias=False),
    depthwise("dw5_stride_two", 2, 144, 28, 28, 5, 5, stride=(2, 2), padding=(2, 2)),
    depthwise("dw5_stride_two_odd", 3, 20, 15, 13, 5, 5, stride=(2, 2), padding=(0, 1, 2, 4)),
    depthwise("dw5_one_pixel", 3, 8, 1, 1, 5, 5, padding=(2, 2)),
    depthwise("dw7", 1, 12, 30, 29, 7, 7, padding=(3, 3)),
    depthwise("dw7_of_7", 9, 96, 7, 7, 7, 7, padding=(3, 3)),
    depthwise("dw7_chunks", 2, 150, 7, 5, 7, 7, padding=(3, 3)),
    depthwise("dw7_cropped", 3, 8, 16, 16, 7, 7, padding=(0, 0, 3, 3)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", PIXEL_STRIPS, ids=str)
def test_pixel_strips(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    """Two or four channels at a time; the other kernel where addresses are odd."""
    small = h200(core)
    small.sm_count = 1  # has much to do: strips of many rows, or tiles
    for caps in (small, h200(core)):
        run = partial(run_and_check, core, case, dtype, "nhwc", caps=caps)
        may_be_tiles = caps is small
        assert run()["pixel_strips"] or may_be_tiles
        assert run(before=4)["pixel_strips"] or may_be_tiles
        assert not run(before=1)["pixel_strips"]
        if case.stride == (1, 1):
            assert run(direction="input_grad")["pixel_strips"] or may_be_tiles


@pytest.mark.parametrize("change", [{"m": 2}, {"c": 10}, {"s": 5}, {"dilation": (1, 2)}], ids=str)
def test_what_pixel_strips_are_not_for(core: ModuleType, change: dict[str, Any]) -> None:
    sizes = {"n": 2, "c": 8, "h": 16, "w": 16, "r": 3, "s": 3} | change
    case = depthwise("other", **sizes)
    assert not run_and_check(core, case, torch.float32, "nhwc")["pixel_strips"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [case for case, *_ in STRIPS] + GRADIENT_STRIPS, ids=str)
def test_weight_gradients(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    small = h200(core)
    small.sm_count = 1  # several strips for each thread
    run = partial(run_and_check, core, case, dtype, "nchw", direction="weight_grad")
    wide = run(caps=small)
    assert wide["strips"] > 0
    if case.w[2:] == (3, 3):
        assert run()["strips"] > 0
        elsewhere = run(before=1, caps=small)
        assert elsewhere["strips"] == wide["strips"]
        assert torch.equal(elsewhere["result"], wide["result"])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case.w[0] == case.x[1]], ids=str)
def test_weight_gradients_of_every_case(
    core: ModuleType, case: Case, dtype: torch.dtype, format: str
) -> None:
    """Any stride, dilation and padding."""
    run_and_check(core, case, dtype, format, direction="weight_grad")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(60))
def test_weight_gradients_of_random_cases(core: ModuleType, seed: int, format: str) -> None:
    case = random_case(seed)
    if case.w[0] != case.x[1]:
        pytest.skip("several filters per channel")
    caps = h200(core)
    caps.sm_count = [1, 7, 132][seed % 3]
    dtype = DTYPES[seed % len(DTYPES)]
    run_and_check(core, case, dtype, format, seed % 5, "weight_grad", caps)


@pytest.mark.parametrize("channels_last", [False, True], ids=FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("taps", [3, 5])
def test_weight_gradient_of_infinity(
    core: ModuleType, value: float, channels_last: bool, taps: int
) -> None:
    """Rows that other threads multiply, or nobody, are not multiplied by zero instead."""
    case = depthwise("spoiled", 1, 2, 40, 61, taps, taps)
    for row, column in ((0, 5), (1, 60), (19, 5), (20, 59), (39, 5)):
        x, _, _ = case.tensors()
        x[0, 1, row, column] = value
        y = case.grad_output().abs() + 1
        w = torch.zeros(case.w)
        problem = make_problem(core, case, torch.float32, channels_last)
        problem.pass_ = core.Pass.weight_grad
        source, grad = (Guarded(t, channels_last).tensor for t in (x, y))
        pointers = [t.data_ptr() for t in (source, w, grad)]
        core.run_depthwise(problem, h200(core), *pointers, 0)
        want = reference.gradients(case, x, w, y)[1]
        assert torch.equal(w.isnan(), want.isnan())
        assert torch.equal(w.isposinf(), want.isposinf())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_little_shared_memory(core: ModuleType, dtype: torch.dtype, format: str) -> None:
    """Rows are cut, and their results stored apart."""
    caps = h200(core)
    caps.shared_bytes_per_block = 4096 * dtype.itemsize
    rows = [depthwise("cut_rows", 1, 2, 30, 777, 3, 5, padding=(1, 2))]
    rows.append(depthwise("cut_dilated", 2, 3, 30, 500, 3, 3, m=2, dilation=(1, 4)))
    rows.append(depthwise("cut_aligned", 1, 16, 9, 640, 5, 5, padding=(2, 2), stride=(2, 1)))
    for case in rows:
        said = run_and_check(core, case, dtype, format, caps=caps)
        assert said["shared_bytes"] <= caps.shared_bytes_per_block
        assert said["rows_apart"] == (format == "nchw")


def test_tiles_are_what_they_should_be(core: ModuleType) -> None:
    """Aligned rows are copied 16 bytes at a time; small planes share a block."""
    aligned = run_and_check(core, CASES[1], torch.float32, "nchw")
    assert aligned["unit"] == 4
    assert not aligned["rows_apart"]
    padded = depthwise("padded", 1, 2, 16, 64, 3, 3, padding=(1, 1))
    assert run_and_check(core, padded, torch.bfloat16, "nchw")["unit"] == 8
    assert run_and_check(core, padded, torch.bfloat16, "nchw", before=1)["planes"]
    small = depthwise("small", 64, 64, 7, 7, 3, 3, padding=(1, 1))
    assert run_and_check(core, small, torch.float32, "nchw")["tile_planes"] > 1
    pixels = depthwise("pixels", 1, 32, 16, 16, 3, 3, padding=(1, 1))
    assert run_and_check(core, pixels, torch.float32, "nhwc")["unit"] == 4


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, value: float, operand: str, format: str
) -> None:
    """Without padding: a product with padding may or may not be computed."""
    case = depthwise("spoiled", 2, 6, 15, 26, 3, 6, stride=(1, 2))
    channels_last = format == "nhwc"
    x, w, b = case.tensors()
    (x if operand == "x" else w)[1, 2 if operand == "x" else 0, 2, 4] = value
    y = Guarded(torch.zeros(case.y), channels_last)
    problem = make_problem(core, case, torch.float32, channels_last)
    source = Guarded(x, channels_last).tensor
    pointers = [t.data_ptr() for t in (source, w, y.tensor, b)]
    core.run_depthwise(problem, h200(core), *pointers)
    want = reference.conv2d(case, x, w, b)
    assert not want.isfinite().all()
    assert torch.equal(y.tensor.isnan(), want.isnan())
    assert torch.equal(y.tensor.isposinf(), want.isposinf())


def refuse(core: ModuleType, problem: Any) -> str:
    return str(core.refuse("cuda_depthwise", problem, h200(core)))


def test_refusals_say_why(core: ModuleType) -> None:
    case = depthwise("asked", 2, 6, 12, 16, 3, 3, m=2, padding=(1, 1))
    assert refuse(core, make_problem(core, case, torch.float32, False)) == ""
    assert "float32" in refuse(core, make_problem(core, case, torch.float64, False))

    problem = make_problem(core, case, torch.float32, False)
    problem.y_strides = core.channels_last_strides(*case.y[1:])
    assert "neighbours" in refuse(core, problem)

    for direction, reason in (("input_grad", "one filter"), ("weight_grad", "kernel sizes")):
        last = direction == "weight_grad"
        problem = make_problem(core, case, torch.float32, last)
        problem.pass_ = getattr(core.Pass, direction)
        assert reason in refuse(core, problem)

    problem = make_problem(core, case, torch.float32, False)
    problem.N = 0
    assert "empty" in refuse(core, problem)

    problem = make_problem(core, case, torch.float32, False)
    problem.groups = 2
    assert "groups" in refuse(core, problem)

    wide = depthwise("strides_apart", 1, 1, 4000, 9, 1, 1, stride=(999, 1))
    assert refuse(core, make_problem(core, wide, torch.float32, False)) == ""
    tall = depthwise("too_tall", 1, 1, 70000, 9, 2, 1, dilation=(69000, 1))
    assert "shared memory" in refuse(core, make_problem(core, tall, torch.float32, False))
