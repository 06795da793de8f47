"""The kernels of cuda_pixels, run on the host from their own source.

A GPU runs the same code in tests/engines; here only copies, barriers and the tensor cores are
replaced by plain C++.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import EDGES, Case, draw
from kernel_tester import MATH, Guarded, make_problem, spread
from pixel_geometry import small_caps
from problems import h200

# Stems: pairs of columns are split when they are staged.
PAIRED = [
    Case("stem", (2, 3, 40, 40), (64, 3, 7, 7), (2, 2), (3, 3)),
    Case("large_stem", (1, 3, 64, 64), (96, 3, 11, 11), (4, 4), (2, 2)),
    Case("half_a_tile", (3, 1, 18, 30), (20, 1, 5, 4), (1, 2), (2, 1)),
    Case("from_an_odd_column", (1, 4, 21, 34), (70, 4, 3, 6), (2, 2), (1, 1)),
    Case("rows_of_two", (2, 3, 20, 38), (33, 3, 3, 3), (2, 2), (1, 1)),  # loaded two at a time
    Case("far_padding", (1, 2, 12, 12), (16, 2, 3, 5), (1, 4), (7, 9)),
    Case("dilated_rows", (1, 3, 30, 44), (40, 3, 3, 3), (1, 2), (2, 1), dilation=(3, 1)),
    Case("groups", (1, 6, 20, 24), (24, 3, 3, 3), (2, 2), (1, 1), groups=2),
    Case("small_images", (40, 3, 8, 8), (64, 3, 3, 3), (2, 2), (1, 1)),
    Case("planes_of_odd_size", (1, 1, 91, 182), (96, 1, 3, 3), (1, 2), (1, 1)),
]
OTHERS = [
    Case("overlapping_windows", (1, 3, 66, 65), (64, 3, 3, 3), (2, 1), (1, 1)),
    Case("odd_stride", (1, 3, 30, 33), (64, 3, 5, 5), (3, 3), (2, 2)),
    Case("odd_rows", (1, 3, 20, 33), (40, 3, 3, 3), (2, 2), (1, 1)),
    Case("many_channels", (1, 24, 14, 16), (128, 24, 3, 3), padding=(1, 1)),
    Case("several_chunks", (2, 40, 9, 10), (64, 40, 3, 3), padding=(1, 1)),
]


def run(
    core: ModuleType,
    case: Case,
    caps: Any,
    channels_last: bool = False,
    before: int = 0,
    tensors: tuple[torch.Tensor, torch.Tensor] | None = None,
    descending: bool = False,
    half: bool = False,
    tf32: bool = False,
) -> tuple[dict[str, Any], torch.Tensor]:
    """(what it was fitted to, the result)

    half: first as halves.
    """
    problem = make_problem(core, case, torch.float32, channels_last)
    problem.precision = core.Precision.tf32 if tf32 else core.Precision.ieee
    x, w, b = case.tensors(torch.float32)
    if tensors is not None:
        x, w = tensors
    poison = torch.full(case.y, torch.nan)
    guarded_x, guarded_y = Guarded(x, channels_last, before), Guarded(poison, channels_last, before)
    handle = core.fit_pixels(problem, caps)
    assert handle is not None
    pointers = [t.data_ptr() for t in (guarded_x.tensor, w, guarded_y.tensor)]
    halves = core.fit_pixels(problem, caps, True) if half else None
    assert half == (halves is not None)
    bias = 0 if b is None else b.data_ptr()
    unfit = core.run_pixels(problem, handle, *pointers, bias, descending, halves)
    assert guarded_x.is_whole()
    assert guarded_y.is_whole()
    return core.describe_pixels(halves or handle) | {"unfit": unfit}, guarded_y.tensor


def run_and_check(
    core: ModuleType,
    case: Case,
    caps: Any,
    channels_last: bool = False,
    before: int = 0,
    descending: bool = False,
    half: bool = False,
    tf32: bool = False,
) -> dict[str, Any]:
    fit, got = run(core, case, caps, channels_last, before, None, descending, half, tf32)
    assert not (half and fit["unfit"])
    reference.check_forward(got, case, *case.tensors(torch.float32), tf32=tf32)
    return fit


@pytest.mark.parametrize("half", [False, True], ids=["exact", "half"])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("case", PAIRED, ids=str)
def test_stems(core: ModuleType, case: Case, small: bool, half: bool) -> None:
    caps = small_caps(core) if small else h200(core)
    # Several tiles for a block; few multiprocessors take long to pack the filters of groups.
    caps.sm_count = 2 if case.groups == 1 else 16
    before = 4 * (len(case.name) % 2)
    fit = run_and_check(core, case, caps, before=before, descending=small, half=half)
    assert fit["paired"] or small, fit


@pytest.mark.parametrize("half", [False, True], ids=["exact", "half"])
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("case", PAIRED[:5], ids=str)
def test_tensors_start_anywhere(core: ModuleType, case: Case, before: int, half: bool) -> None:
    run_and_check(core, case, h200(core), before=before, half=half)


@pytest.mark.parametrize("case", PAIRED, ids=str)
def test_stems_in_tf32(core: ModuleType, case: Case) -> None:
    """As halves, and where values are not fit for that, as TF32."""
    caps = h200(core)
    caps.sm_count = 2
    before = len(case.name) % 5
    fit = run_and_check(core, case, caps, before=before, descending=True, half=True, tf32=True)
    assert fit["paired"]
    x, w, b = case.tensors(torch.float32)
    x[0, 0, 5, 5] = torch.inf
    fit, got = run(core, case, caps, before=before, tensors=(x, w), half=True, tf32=True)
    assert fit["unfit"]
    want = reference.conv2d(case, x, w, b)
    assert torch.equal(got.isfinite(), want.isfinite())
    finite = want.isfinite()
    assert torch.allclose(got[finite].double(), want[finite], rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_others(core: ModuleType, case: Case, channels_last: bool) -> None:
    fit = run_and_check(core, case, h200(core), channels_last, descending=channels_last)
    assert not fit["paired"]


@pytest.mark.parametrize("case", [c for c in EDGES if c.groups < 10], ids=str)
def test_edges(core: ModuleType, case: Case) -> None:
    run_and_check(core, case, h200(core), channels_last=len(case.name) % 2 == 1)


def test_tiles_of_halves(core: ModuleType) -> None:
    """Those without totals sum short reductions, in chains of several steps."""
    cases = [replace(PAIRED[0], w=(40, 3, 7, 7)), PAIRED[1]]
    fits = [run(core, case, h200(core), half=True)[0] for case in cases]
    assert [fit["filters"] for fit in fits] == [64, 96]
    assert 8 < fits[0]["chunks"] * fits[0]["steps"] <= 12
    assert fits[1]["chunks"] * fits[1]["steps"] > 16


@pytest.mark.parametrize("half", [False, True], ids=["exact", "half"])
@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e33], ids=str)
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, value: float, operand: str, half: bool
) -> None:
    """Also past the pairs' columns that belong to no tap."""
    case = Case("spoilt", (2, 3, 28, 30), (70, 3, 5, 3), (2, 2))
    x, w, b = case.tensors(torch.float32)
    if operand == "x":
        x[1, 2, 11, 13] = x[0, 0, 20, 20] = value
    else:
        w[5, 1, 2, 2] = value
    fit, got = run(core, case, h200(core), tensors=(x, w), half=half)
    assert fit["paired"]
    assert fit["unfit"] or not half or (operand == "w" and value == 1e33)
    want = reference.conv2d(case, x, w, b)
    assert value == 1e33 or not want.isfinite().all()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    finite = want.abs() < 1e30
    assert torch.allclose(got[finite].double(), want[finite].double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("filters", [20, 90])
@pytest.mark.parametrize(
    ("name", "unfit"),
    [
        ("rectified", False),
        ("small", False),
        ("large", False),
        ("one small filter", False),
        ("apart", True),
        ("filters apart", True),
        ("one small channel", True),
        ("dark rows", True),
        ("outlier", True),
        ("subnormal", True),
    ],
)
def test_values_that_lie_apart_are_not_halved(
    core: ModuleType, name: str, unfit: bool, filters: int
) -> None:
    """And either way each sum is as near as float32's own rounding errors would leave it."""
    case = Case("spread", (2, 3, 20, 36), (filters, 3, 7, 7), (2, 2), (3, 3), bias=False)
    x, w = spread(case, name, channel=1)
    fit, y = run(core, case, h200(core), tensors=(x, w), half=True)
    assert fit["unfit"] == unfit
    want = reference.conv2d(case, x, w, None)
    terms = reference.conv2d(case, x.abs(), w.abs(), None)
    assert ((y - want).abs() <= 4e-7 * terms + 1e-44).all()


# Large enough for several chunks, tiles and parts; small enough to wait for.
GRADIENTS = [
    Case("several_tiles", (2, 24, 20, 21), (72, 24, 3, 3), padding=(1, 1)),
    Case("pointwise", (2, 70, 15, 20), (96, 70, 1, 1)),
    Case("cropped", (1, 20, 9, 30), (40, 20, 1, 3), padding=(2, 3)),  # more padding than taps reach
    Case("few_filters", (2, 33, 19, 22), (3, 33, 3, 3), padding=(1, 1)),
    Case("strided", (2, 33, 19, 22), (40, 33, 3, 3), (2, 2), (1, 1)),
    Case("strided_along_rows", (1, 17, 12, 70), (24, 17, 3, 5), (1, 2), (1, 2)),
    Case("strided_and_dilated", (1, 20, 15, 16), (24, 20, 3, 3), (2, 2), (2, 2), (3, 1)),
    Case("stride_of_four", (1, 9, 20, 24), (20, 9, 5, 4), (4, 4), (1, 2)),
    Case("groups_of_many", (1, 48, 9, 10), (80, 24, 3, 3), (2, 1), (1, 1), groups=2),
    Case("small_images", (20, 40, 4, 5), (30, 40, 3, 3), padding=(1, 1)),
    Case("parts", (1, 60, 6, 6), (200, 60, 3, 3), padding=(1, 1)),
]


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", GRADIENTS, ids=str)
def test_input_gradients(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], channels_last: bool
) -> None:
    """A gather like any other; with strides, one for each phase."""
    dtype, precision = math
    problem = make_problem(core, case, dtype, channels_last)
    problem.pass_, problem.precision = core.Pass.input_grad, getattr(core.Precision, precision)
    _, w, _ = case.tensors(dtype)
    y = case.grad_output(dtype)
    before = len(case.name) % 3
    guarded_x = Guarded(torch.full(case.x, torch.nan, dtype=dtype), channels_last, before)
    guarded_y = Guarded(y, channels_last, before)
    pointers = [t.data_ptr() for t in (guarded_x.tensor, w, guarded_y.tensor)]
    said = core.run_pixels_engine(problem, h200(core), *pointers, 0)
    assert not isinstance(said, str), said
    assert len(said) == case.stride[0] * case.stride[1]
    assert guarded_x.is_whole()
    got = (guarded_x.tensor, None, None)
    reference.check_gradients(got, case, draw(case.x), w, y, tf32=precision == "tf32")


def test_phases_without_taps_are_left_to_others(core: ModuleType) -> None:
    for case in (
        Case("stride_above_kernel", (1, 16, 9, 9), (16, 16, 1, 1), (2, 2)),
        Case("even_dilation", (1, 16, 9, 9), (16, 16, 3, 3), (2, 2), dilation=(1, 2)),
    ):
        problem = make_problem(core, case, torch.float32)
        problem.pass_ = core.Pass.input_grad
        said = core.run_pixels_engine(problem, h200(core), 0, 0, 0, 0)
        assert said == "no tap reaches some pixels of the input"
