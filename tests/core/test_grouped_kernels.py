"""The grouped kernels, run on the host from its own source, against float64.

A GPU runs the same code in tests/engines; here every machine can see that the tiling is right.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case, draw
from kernel_tester import Guarded, make_problem
from problems import h200

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HALVES = [torch.bfloat16, torch.float16]
SEGMENTS, ROWS, ROWS_STRIDE_2 = range(3)  # ColumnWindow
SPAN_TILE, SPAN_FILTERS, SPAN_ROWS = range(3)  # ResultSpans


def grouped(
    name: str, n: int, groups: int, c: int, k: int, h: int, w: int, r: int, s: int, **rest: Any
) -> Case:
    """c channels and k filters in each group."""
    return Case(name, (n, c * groups, h, w), (k * groups, c, r, s), groups=groups, **rest)


PADDED = {"padding": (1, 1)}
STRIDED = {"padding": (1, 1), "stride": (2, 2)}

CASES = [
    grouped("resnext_4", 2, 4, 4, 4, 56, 56, 3, 3, **PADDED),
    grouped("resnext_8", 1, 4, 8, 8, 28, 28, 3, 3, **PADDED),
    grouped("resnext_16", 3, 2, 16, 16, 14, 14, 3, 3, **PADDED),
    grouped("small_planes", 3, 5, 4, 4, 7, 7, 3, 3, **PADDED),
    grouped("stride_two", 2, 4, 4, 4, 56, 56, 3, 3, **STRIDED),
    grouped("stride_two_of_8", 1, 3, 8, 8, 28, 28, 3, 3, **STRIDED),
    grouped("stride_two_odd", 2, 2, 6, 5, 27, 29, 3, 3, **STRIDED),
    grouped("stride_two_no_padding", 1, 2, 4, 4, 21, 24, 3, 3, stride=(2, 2)),
    grouped("no_padding", 2, 3, 4, 4, 18, 34, 3, 3),
    grouped("one_filter_of_group", 2, 4, 3, 1, 12, 14, 3, 3, **PADDED),
    grouped("two_filters_of_group", 2, 5, 2, 2, 16, 20, 3, 3, **PADDED),
    grouped("three_filters_of_group", 2, 3, 5, 3, 16, 20, 3, 3, **PADDED),
    grouped("seven_filters_of_group", 1, 2, 13, 7, 11, 20, 3, 3, **PADDED),
    grouped("one_group", 1, 1, 16, 16, 20, 24, 3, 3, **PADDED),
    grouped("one_channel_out", 3, 1, 2, 6, 11, 16, 3, 3, **PADDED),
    grouped("one_by_one", 2, 4, 4, 8, 9, 16, 1, 1),
    grouped("five_by_five", 1, 3, 4, 4, 20, 24, 5, 5, padding=(2, 2)),
    grouped("seven_by_seven", 1, 2, 3, 4, 19, 32, 7, 7, padding=(3, 3)),
    grouped("row_kernel", 1, 2, 4, 4, 6, 40, 1, 13, padding=(0, 6)),
    grouped("column_kernel", 2, 2, 4, 4, 40, 8, 9, 1, padding=(4, 0)),
    grouped("dilation", 2, 3, 4, 4, 20, 22, 3, 3, padding=(2, 3), dilation=(2, 3)),
    grouped("aligned_dilation", 1, 2, 4, 4, 20, 32, 3, 3, padding=(4, 4), dilation=(4, 4)),
    grouped("stride_and_dilation", 1, 2, 4, 6, 25, 27, 4, 5, stride=(2, 3), dilation=(3, 2)),
    grouped("stride_beyond_kernel", 1, 2, 5, 4, 19, 23, 2, 2, stride=(3, 5)),
    grouped("stride_of_rows_only", 1, 2, 4, 4, 19, 24, 3, 3, stride=(2, 1), padding=(1, 1)),
    grouped("four_sided_padding", 2, 3, 2, 4, 9, 16, 3, 4, padding=(0, 2, 3, 1)),
    grouped("all_padding", 1, 2, 2, 3, 2, 2, 1, 1, stride=(3, 3), padding=(3, 3)),
    grouped("long_rows", 1, 1, 4, 4, 9, 2100, 3, 3, padding=(1, 1)),
    grouped("long_strided_rows", 1, 1, 4, 4, 7, 2100, 3, 3, **STRIDED),
    grouped("without_bias", 2, 2, 4, 4, 13, 20, 3, 3, padding=(1, 1), bias=False),
    grouped("one_pixel", 1, 1, 2, 1, 1, 1, 1, 1),
]


def random_case(seed: int) -> Case:
    draw = random.Random(seed)
    while True:
        n, groups = draw.randint(1, 3), draw.randint(1, 5)
        c, k = draw.choice([2, 3, 4, 5, 8, 16]), draw.choice([1, 2, 3, 4, 6, 8, 16])
        h, w = draw.randint(1, 40), draw.choice([draw.randint(1, 70), 8 * draw.randint(1, 8)])
        r, s = draw.choice([1, 2, 3, 3, 5, 7]), draw.choice([1, 2, 3, 3, 3, 4, 5, 6, 9])
        stride, dilation = (
            (draw.choice(choices), draw.choice(choices))
            for choices in ([1, 1, 1, 2, 2, 3], [1, 1, 1, 2, 3])
        )
        padding = tuple(draw.randint(0, 5) for _ in range(4))
        case = grouped(
            f"random{seed}", n, groups, c, k, h, w, r, s,
            stride=stride, padding=padding, dilation=dilation, bias=draw.random() < 0.5,
        )  # fmt: skip
        if min(case.y[2:]) >= 1:
            return case


def without_tensor_cores(core: ModuleType) -> Any:
    caps = h200(core)
    caps.compute_major, caps.code_arch = 7, 75
    return caps


def run_and_check(
    core: ModuleType,
    case: Case,
    dtype: torch.dtype = torch.float32,
    before: int = 0,
    direction: str = "forward",
    caps: Any = None,
    run: str = "run_grouped",
    last: bool = False,
) -> dict[str, Any]:
    problem = make_problem(core, case, dtype, last)
    problem.pass_ = getattr(core.Pass, direction)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    forward = direction == "forward"
    if forward:
        y = torch.full_like(y, torch.nan)
    else:
        x = torch.full_like(x, torch.nan)
    guarded_x, guarded_y = Guarded(x, last, before), Guarded(y, last, before)
    said = getattr(core, run)(
        problem,
        without_tensor_cores(core) if caps is None else caps,
        guarded_x.tensor.data_ptr(),
        w.data_ptr(),
        guarded_y.tensor.data_ptr(),
        0 if b is None else b.data_ptr(),
    )
    assert said is not None, f"{case}: no tile fits"
    if forward:
        reference.check_forward(guarded_y.tensor, case, x, w, b)
    else:
        reference.check_gradients((guarded_x.tensor, None, None), case, draw(case.x), w, y)
    assert guarded_x.is_whole()
    assert guarded_y.is_whole()
    return said


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    run_and_check(core, case, dtype)
    if case.stride == (1, 1) and case.w[0] // case.groups >= 2:
        run_and_check(core, case, dtype, direction="input_grad")


OF_FOURS = [case for case in CASES if case.w[1] % 4 == case.w[0] // case.groups % 4 == 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", OF_FOURS, ids=str)
def test_channels_last(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    said = run_and_check(core, case, dtype, last=True)
    assert said["pixels"]
    assert said["aligned"]
    assert run_and_check(core, case, dtype, before=1, last=True)["pixels"]  # element by element
    if case.stride == (1, 1):
        run_and_check(core, case, dtype, direction="input_grad", last=True)


def test_channels_last_with_more_weights_than_a_block_has(core: ModuleType) -> None:
    case = grouped("many", 1, 9, 16, 16, 5, 11, 5, 5, padding=(2, 2))
    said = run_and_check(core, case, last=True)
    assert said["quad_blocks"] > 1


@pytest.mark.parametrize("seed", range(80))
def test_random_cases(core: ModuleType, seed: int) -> None:
    case = random_case(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    run_and_check(core, case, dtype, before=seed % 5)
    if case.stride == (1, 1) and case.w[0] // case.groups >= 2:
        run_and_check(core, case, dtype, direction="input_grad")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_little_shared_memory(core: ModuleType, dtype: torch.dtype) -> None:
    caps = without_tensor_cores(core)
    caps.shared_bytes_per_block = 8192 * dtype.itemsize
    rows = [
        grouped("cut_rows", 1, 2, 8, 4, 30, 777, 3, 5, padding=(1, 2)),
        grouped("cut_rows_of_three", 2, 2, 4, 4, 30, 640, 3, 3, padding=(1, 1)),
        grouped("cut_strided", 1, 2, 12, 8, 30, 512, 3, 3, padding=(1, 1), stride=(2, 2)),
    ]
    for case in rows:
        said = run_and_check(core, case, dtype, caps=caps)
        assert said["shared_bytes"] <= caps.shared_bytes_per_block
        assert said["tile"][2] < case.y[3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 4, 6, 16])
def test_blocks_go_through_several_images(
    core: ModuleType, channels: int, dtype: torch.dtype
) -> None:
    """On a small GPU a block computes its tile for one image after the other."""
    most_images = 0
    for sms, kilobytes in ((1, 227), (1, 40), (2, 16), (1, 16)):
        caps = without_tensor_cores(core)
        caps.sm_count, caps.shared_bytes_per_block = sms, kilobytes << 10
        for stride in (1, 2):
            case = grouped(
                "images",
                11,
                5,
                channels,
                channels,
                21,
                24,
                3,
                3,
                padding=(1, 1),
                stride=(stride,) * 2,
            )
            said = run_and_check(core, case, dtype, caps=caps)
            most_images = max(most_images, said["images"])
    assert most_images > 1


def test_tiles_are_what_they_should_be(core: ModuleType) -> None:
    """Rows padded by one column are copied 16 bytes at a time and stored four columns at once."""
    said = run_and_check(core, CASES[0])
    assert (said["window"], said["unit"], said["store_width"]) == (ROWS, 4, 4)
    assert run_and_check(core, CASES[0], torch.bfloat16)["unit"] == 8
    assert run_and_check(core, CASES[4])["window"] == ROWS_STRIDE_2
    unpadded = run_and_check(core, grouped("unpadded", 1, 2, 4, 4, 18, 32, 3, 5))
    assert (unpadded["window"], unpadded["unit"]) == (SEGMENTS, 4)
    assert run_and_check(core, CASES[2])["chunks"] == 4
    assert run_and_check(core, CASES[2])["store_width"] == 2
    assert run_and_check(core, CASES[9])["filters"] == 2
    small = grouped("small", 64, 32, 4, 4, 7, 7, 3, 3, **PADDED)
    assert run_and_check(core, small)["tile"][0] > 1


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("s", [3, 6])
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, s: int, value: float, operand: str
) -> None:
    """Without padding: a product with padding may or may not be computed."""
    case = grouped("spoiled", 2, 3, 4, 6, 15, 26, 3, s, stride=(1, 2))
    x, w, b = case.tensors()
    (x if operand == "x" else w)[1, 2, 2, 2] = value
    y = Guarded(torch.zeros(case.y))
    pointers = [t.data_ptr() for t in (x, w, y.tensor, b)]
    core.run_grouped(make_problem(core, case, torch.float32), h200(core), *pointers)
    want = reference.conv2d(case, x, w, b)
    assert not want.isfinite().all()
    assert torch.equal(y.tensor.isnan(), want.isnan())
    assert torch.equal(y.tensor.isposinf(), want.isposinf())


def refuse(core: ModuleType, problem: Any) -> str:
    return str(core.refuse("cuda_grouped", problem, h200(core)))


def test_refusals_say_why(core: ModuleType) -> None:
    case = grouped("asked", 2, 3, 4, 6, 12, 16, 3, 3, stride=(2, 2))
    assert refuse(core, make_problem(core, case, torch.float32)) == ""
    assert "float32" in refuse(core, make_problem(core, case, torch.float64))

    for direction, reason in (("input_grad", "stride 1"), ("weight_grad", "weight gradient")):
        problem = make_problem(core, case, torch.float32)
        problem.pass_ = getattr(core.Pass, direction)
        assert reason in refuse(core, problem)

    last = make_problem(core, case, torch.float32, True)
    assert "multiples of 4" in refuse(core, last)
    last.x_strides = core.Strides(4608, 2, 384, 24)  # every second channel of others' memory
    assert "neighbours" in refuse(core, last)
    large = grouped("large", 1, 4, 16, 16, 30, 30, 15, 15)
    assert "shared memory" in refuse(core, make_problem(core, large, torch.float32, True))

    problem = make_problem(core, case, torch.float32)
    problem.N = 0
    assert "empty" in refuse(core, problem)

    problem = make_problem(core, case, torch.float32)
    problem.w_strides = core.Strides(1 << 29, 9, 3, 1)
    assert "apart" in refuse(core, problem)

    for c, k, reason in ((1, 4, "two channels"), (17, 4, "16"), (4, 17, "16")):
        wrong = grouped("wrong", 1, 2, c, k, 9, 9, 3, 3)
        assert reason in refuse(core, make_problem(core, wrong, torch.float32))

    tall = grouped("too_tall", 1, 1, 2, 2, 70000, 9, 2, 1, dilation=(69000, 1))
    assert "shared memory" in refuse(core, make_problem(core, tall, torch.float32))


def run_mma(core: ModuleType, case: Case, dtype: torch.dtype, **rest: Any) -> dict[str, Any]:
    rest.setdefault("caps", h200(core))
    return run_and_check(core, case, dtype, run="run_grouped_mma", **rest)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_by_tensor_cores(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    run_mma(core, case, dtype)
    if case.stride == (1, 1) and case.w[0] // case.groups >= 2:
        run_mma(core, case, dtype, direction="input_grad")


@pytest.mark.parametrize("seed", range(80))
def test_random_cases_by_tensor_cores(core: ModuleType, seed: int) -> None:
    case = random_case(1000 + seed)
    dtype = HALVES[seed % 2]
    run_mma(core, case, dtype, before=seed % 9)
    if case.stride == (1, 1) and case.w[0] // case.groups >= 2:
        run_mma(core, case, dtype, direction="input_grad")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_little_shared_memory_for_tensor_cores(core: ModuleType, dtype: torch.dtype) -> None:
    caps = h200(core)
    caps.shared_bytes_per_block = 32768
    for case in (
        grouped("cut_rows", 1, 2, 8, 4, 9, 777, 3, 5, padding=(1, 2)),
        grouped("cut_strided", 1, 2, 12, 8, 9, 1024, 3, 3, padding=(1, 1), stride=(2, 2)),
    ):
        said = run_mma(core, case, dtype, caps=caps)
        assert said["shared_bytes"] <= caps.shared_bytes_per_block
        assert said["tile"][2] < case.y[3]
        assert said["spans"] == SPAN_ROWS


@pytest.mark.parametrize("channels", [3, 4, 8])
def test_blocks_go_through_several_images_by_tensor_cores(core: ModuleType, channels: int) -> None:
    caps = h200(core)
    caps.sm_count, caps.shared_bytes_per_block = 1, 24 << 10
    case = grouped("images", 7, 3, channels, channels, 13, 15, 3, 3, padding=(1, 1))
    assert run_mma(core, case, torch.bfloat16, caps=caps)["images"] > 1


def test_tiles_for_tensor_cores_are_what_they_should_be(core: ModuleType) -> None:
    said = run_mma(core, CASES[0], torch.bfloat16)
    assert (said["unit"], said["steps"], said["filters"]) == (8, 5, 4)
    assert said["pairs"]
    caps = h200(core)
    caps.sm_count = 1
    eights = grouped("eights", 2, 2, 8, 8, 14, 14, 3, 3, **PADDED)
    said = run_mma(core, eights, torch.float16, caps=caps)
    assert (said["steps"], said["cells"], said["spans"]) == (6, 7, SPAN_TILE)
    odd = run_mma(core, grouped("odd", 1, 2, 4, 4, 9, 57, 3, 3, **PADDED), torch.float16)
    assert (odd["unit"], odd["pairs"]) == (1, False)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("filters", [4, 6, 12])
def test_zeros_among_weights_make_no_nan(
    core: ModuleType, filters: int, value: float, operand: str, dtype: torch.dtype
) -> None:
    """A product has the taps of several rows, and one row's pixels are not the others'."""
    case = grouped("spoiled", 2, 3, 5, filters, 15, 26, 3, 3)
    x, w, b = case.tensors(dtype)
    (x if operand == "x" else w)[1, 2, 2, 2] = value
    y = Guarded(torch.zeros(case.y, dtype=dtype))
    pointers = [t.data_ptr() for t in (x, w, y.tensor, b)]
    assert core.run_grouped_mma(make_problem(core, case, dtype), h200(core), *pointers)
    want = reference.conv2d(case, x, w, b)
    assert not want.isfinite().all()
    assert torch.equal(y.tensor.isnan(), want.isnan())
    assert torch.equal(y.tensor.isposinf(), want.isposinf())
