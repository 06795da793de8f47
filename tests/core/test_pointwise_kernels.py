"""The pointwise kernels, run on the host from their own source, against float64.

Barriers, tables and tensor cores are emulated (emulated_cuda/device); a GPU runs the same code in
tests/engines.
"""

from __future__ import annotations

import json
import random
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case, draw
from kernel_tester import SPREADS, Guarded, make_problem, spread
from problems import h200

MATH = ["ieee", "tf32", "bfloat16", "float16", "half ieee", "half tf32"]


def pointwise(
    name: str, n: int, c: int, h: int, w: int, k: int, groups: int = 1, **rest: Any
) -> Case:
    return Case(name, (n, c, h, w), (k, c // groups, 1, 1), groups=groups, **rest)


CASES = [
    pointwise("one_pixel", 1, 1, 1, 1, 1),
    pointwise("one_tile", 1, 64, 8, 16, 64),
    pointwise("tiles_of_one_image", 1, 40, 16, 40, 70, bias=False),
    pointwise("images_in_a_tile", 9, 24, 4, 8, 72),
    pointwise("images_of_49_pixels", 7, 19, 7, 7, 23),
    pointwise("images_of_196_pixels", 3, 33, 14, 14, 130),
    pointwise("many_filters", 1, 64, 16, 24, 256),
    pointwise("many_channels", 2, 200, 4, 24, 64),
    # A ring that holds less than two tiles, and several tiles for either warpgroup.
    pointwise("channels_pass_by", 1, 250, 38, 32, 64),
    pointwise("a_tile_in_the_ring", 1, 100, 38, 32, 80),
    # Tiles of two images: rows are copied in two parts.
    pointwise("images_of_200_pixels", 5, 40, 10, 20, 70),
    pointwise("images_of_tile_and_unit", 4, 20, 8, 17, 20),
    pointwise("long_rows_of_two_images", 5, 72, 10, 20, 70),
    pointwise("groups", 2, 36, 8, 10, 66, groups=3),
    pointwise("large_groups", 2, 192, 8, 10, 200, groups=2),
    pointwise("many_strided", 2, 80, 15, 13, 70, stride=(2, 2)),
    pointwise("strided", 2, 20, 15, 13, 30, stride=(2, 2)),
    pointwise("strided_per_axis", 2, 8, 9, 10, 6, stride=(2, 3), bias=False),
    pointwise("padded", 2, 5, 4, 4, 3, padding=(1, 2, 0, 3)),
    pointwise("all_padding", 1, 2, 2, 2, 3, stride=(3, 3), padding=(3, 3)),
]


def random_case(seed: int) -> Case:
    random_of = random.Random(seed)
    groups = random_of.choice([1, 1, 1, 2, 3])
    return pointwise(
        f"random{seed}",
        random_of.randint(1, 4),
        groups * random_of.randint(1, 70),
        random_of.randint(1, 14),
        random_of.choice([1, 5, 8, 16, 24, 33]),
        groups * random_of.randint(1, 90),
        groups,
        stride=(random_of.choice([1, 1, 2]), random_of.choice([1, 1, 3])),
        padding=tuple(random_of.choice([0, 0, 0, 1]) for _ in range(4)),
        bias=random_of.random() < 0.5,
    )


def run_and_check(
    core: ModuleType,
    case: Case,
    math: str,
    format: str = "nchw",
    before: int = 0,
    direction: str = "forward",
    caps: Any = None,
    few: bool = False,
) -> Any:
    half, math = math.startswith("half "), math.removeprefix("half ")
    dtype = torch.float32 if math in ("ieee", "tf32") else getattr(torch, math)
    channels_last = format == "nhwc"
    problem = make_problem(core, case, dtype, channels_last)
    problem.precision = core.Precision.tf32 if math == "tf32" else core.Precision.ieee
    problem.pass_ = getattr(core.Pass, direction)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    forward = direction == "forward"
    if forward:
        y = torch.zeros_like(y)
    else:
        x = torch.zeros_like(x)
    guarded_x, guarded_y = Guarded(x, channels_last, before), Guarded(y, channels_last, before)
    pointers = [t.data_ptr() for t in (guarded_x.tensor, w, guarded_y.tensor)]
    bias = 0 if b is None else b.data_ptr()
    if caps is None:
        caps = h200(core)
        caps.sm_count = 3  # so that blocks have several tiles
    said = core.run_pointwise(problem, caps, *pointers, bias, half, few)
    if few and said is None:
        return None
    if half and math == "ieee":  # of short sums the error would show, of long ones it would grow
        channels = case.w[1] if forward else case.w[0] // case.groups
        assert (said is not None) == (64 <= channels <= 160)
        if said is None:
            return None
    assert said is not None, f"{case}: no tile fits"
    assert not said["unfit"]
    tf32 = math == "tf32"
    if forward:
        reference.check_forward(guarded_y.tensor, case, x, w, b, tf32=tf32)
    else:
        grads = (guarded_x.tensor, None, None)
        reference.check_gradients(grads, case, draw(case.x), w, y, tf32=tf32)
    assert guarded_x.is_whole()
    assert guarded_y.is_whole()
    return said


@pytest.mark.parametrize("math", MATH)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case(core: ModuleType, case: Case, math: str) -> None:
    run_and_check(core, case, math)
    if case.stride == (1, 1):
        run_and_check(core, case, math, direction="input_grad")


@pytest.mark.parametrize("seed", range(40))
def test_random_cases(core: ModuleType, seed: int) -> None:
    case, math = random_case(seed), MATH[seed % 6]
    format = "nhwc" if seed % 5 == 4 else "nchw"
    run_and_check(core, case, math, format, before=seed % 3)
    if case.stride == (1, 1):
        run_and_check(core, case, math, format, direction="input_grad")


FEW = [
    pointwise("two", 2, 64, 8, 16, 2),
    pointwise("one", 3, 19, 4, 10, 1, bias=False),
    pointwise("three", 1, 7, 12, 22, 3),
    pointwise("eight", 5, 40, 8, 9, 8),
    pointwise("in_groups", 2, 27, 8, 8, 15, groups=3),
]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("math", MATH[:4])
@pytest.mark.parametrize("case", FEW, ids=str)
def test_few_filters(core: ModuleType, case: Case, math: str, before: int) -> None:
    """At odd addresses products take over."""
    assert run_and_check(core, case, math, few=True, before=before) is not None
    turned = pointwise(case.name, *case.x[:1], case.w[0], *case.x[2:], case.x[1], case.groups)
    said = run_and_check(core, turned, math, few=True, before=before, direction="input_grad")
    assert (said is None) == (turned.w[1] > 8)


def test_few_filters_are_chosen_where_they_apply(core: ModuleType) -> None:
    def plan(case: Case, channels_last: bool = False) -> bool:
        problem = make_problem(core, case, torch.float32, channels_last)
        said = json.loads(core.choose("cuda", problem, h200(core), "cuda_pointwise"))
        tile = next(c["tile"] for c in said["candidates"] if c["name"] == "cuda_pointwise")
        return tile[2] == 1

    case = pointwise("large", 4, 64, 256, 256, 2)
    assert plan(case)
    assert not plan(case, channels_last=True)
    assert not plan(pointwise("more_filters", 4, 64, 256, 256, 9))
    assert not plan(pointwise("within_units", 4, 64, 255, 255, 2))
    assert not plan(pointwise("strided", 4, 64, 256, 256, 2, stride=(2, 2)))


def test_shapes_are_what_they_should_be(core: ModuleType) -> None:
    """Filters that do not fit together are shared out among blocks, and planes are aligned."""
    case = pointwise("channels_and_filters", 1, 192, 8, 32, 192)
    said = run_and_check(core, case, "ieee", caps=h200(core))
    assert said["filter_tiles"] > 1
    assert said["aligned_source"]
    assert said["aligned_target"]
    assert said["stages"] < said["chunks"]  # they pass by
    assert not run_and_check(core, CASES[4], "bfloat16")["aligned_source"]
    case = pointwise("rows_are_copied", 1, 64, 24, 32, 64)
    assert run_and_check(core, case, "half tf32")["whole_rows"]
    said = run_and_check(core, case, "half ieee")
    assert said["whole_rows"]
    assert (said["raw_stages"], said["stages"]) == (0, 8)
    said = run_and_check(core, case, "bfloat16")
    assert not said["whole_rows"]
    assert (said["raw_stages"], said["stages"]) == (4, 8)
    # Of more filters; and of images that end within a sector.
    case = pointwise("stored_by_lanes", 1, 64, 24, 32, 256)
    caps = h200(core)
    caps.sm_count = 1
    said = run_and_check(core, case, "bfloat16", caps=caps)
    assert (said["filter_tiles"], said["raw_stages"], said["stages"]) == (1, 0, 10)
    assert run_and_check(core, case, "tf32", caps=caps)["whole_rows"]
    assert not run_and_check(core, case, "half ieee", caps=caps)["whole_rows"]
    assert not run_and_check(core, CASES[5], "half tf32")["whole_rows"]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(("name", "unfit"), SPREADS)
def test_values_that_lie_apart_are_not_halved(
    core: ModuleType, name: str, unfit: bool, last: bool
) -> None:
    """And either way each sum is as near as float32's own rounding errors would leave it."""
    case = pointwise("spread", 2, 72, 7, 20, 20, bias=False)
    x, w = spread(case, name)
    guarded = [Guarded(x, last), Guarded(torch.full(case.y, torch.nan), last)]
    x, y = (operand.tensor for operand in guarded)
    problem = make_problem(core, case, torch.float32, last)
    problem.precision = core.Precision.ieee
    pointers = [t.data_ptr() for t in (x, w, y)]
    said = core.run_pointwise(problem, h200(core), *pointers, 0, True)
    assert said is not None
    assert said["unfit"] == unfit
    want = reference.conv2d(case, x, w, None)
    terms = reference.conv2d(case, x.abs(), w.abs(), None)
    assert ((y - want).abs() <= 4e-7 * terms + 1e-44).all()


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38], ids=str)
@pytest.mark.parametrize("math", ["ieee", "tf32", "half ieee", "half tf32"])
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, math: str, value: float, operand: str
) -> None:
    """Sums that splitting spoils are formed anew."""
    half, math = math.startswith("half "), math.removeprefix("half ")
    case = pointwise("spoilt", 2, 67 if half else 19, 7, 12, 23)
    x, w, b = case.tensors()
    (x if operand == "x" else w)[1, 2, 0, 0] = value
    y = Guarded(torch.zeros(case.y), channels_last=False)
    problem = make_problem(core, case, torch.float32, channels_last=False)
    problem.precision = getattr(core.Precision, math)
    assert b is not None
    pointers = [t.data_ptr() for t in (x, w, y.tensor, b)]
    said = core.run_pointwise(problem, h200(core), *pointers, half)
    assert said is not None
    assert said["unfit"] == half
    want = reference.conv2d(case, x, w, b).float()
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(y.tensor), test(want))
    finite = want.isfinite()
    assert torch.allclose(y.tensor[finite], want[finite], rtol=1e-3, atol=1e-3)
