"""Strided input gradients: cuda_phases and the depthwise phase strips, run on the host.

Kernels run from their own source; the convolution between the kernels of cuda_phases is computed
by its definition (emulate_phases.cpp).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from kernel_tester import Guarded, make_problem
from problems import h200

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def grouped(name: str, x: tuple[int, ...], k: int, groups: int, **rest: Any) -> Case:
    return Case(name, x, (k, x[1] // groups, 3, 3), stride=(2, 2), groups=groups, **rest)


# With the taps of the inner convolution, and the filters for each channel.
CASES = [
    (Case("one_by_one", (3, 16, 8, 12), (8, 16, 1, 1), (2, 2)), (1, 1), 1),
    (Case("one_by_one_odd", (2, 5, 9, 7), (3, 5, 1, 1), (2, 3)), (1, 1), 1),
    (Case("one_by_one_padded", (2, 8, 9, 7), (4, 8, 1, 1), (2, 2), (1, 1)), (1, 1), 1),
    (Case("two_by_two", (2, 8, 8, 8), (6, 8, 2, 2), (2, 2)), (1, 1), 4),
    (Case("patches", (2, 3, 16, 16), (8, 3, 4, 4), (4, 4)), (1, 1), 16),
    (Case("below_its_stride", (2, 4, 13, 16), (3, 4, 2, 1), (3, 4), (1, 0)), (1, 1), 2),
    (Case("three_by_three", (2, 8, 12, 16), (4, 8, 3, 3), (2, 2), (1, 1)), (2, 2), 4),
    (Case("no_padding", (2, 4, 11, 9), (4, 4, 3, 3), (2, 2)), (2, 2), 4),
    (Case("stem", (1, 3, 24, 24), (6, 3, 7, 7), (2, 2), (3, 3)), (4, 4), 4),
    (Case("wide_stem", (1, 3, 31, 32), (4, 3, 11, 11), (4, 4), (2, 2)), (3, 3), 16),
    (Case("rows_only", (2, 4, 12, 8), (4, 4, 3, 3), (2, 1), (1, 1)), (2, 3), 2),
    (Case("four_sides", (2, 4, 10, 9), (4, 4, 3, 3), (2, 2), (0, 2, 3, 1)), (2, 2), 4),
    (Case("much_padding", (1, 4, 5, 6), (4, 4, 2, 2), (2, 2), (4, 5)), None, 4),
    (grouped("groups", (2, 8, 10, 12), 12, 2, padding=(1, 1)), (2, 2), 4),
    (grouped("depthwise", (2, 8, 10, 12), 8, 8, padding=(1, 1)), (2, 2), 4),
]


def run(
    core: ModuleType,
    case: Case,
    dtype: torch.dtype,
    last: bool,
    caps: Any = None,
    variant: str = "channels",
    before: int = 0,
    operands: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[dict[str, Any], torch.Tensor]:
    """(what it said, the input gradient), checked unless the operands are given."""
    problem = make_problem(core, case, dtype, last)
    problem.pass_ = core.Pass.input_grad
    if variant == "transposed" and dtype == torch.float32:
        problem.precision = core.Precision.tf32
    x, w, _ = case.tensors(dtype)
    y = case.grad_output(dtype)
    if operands is not None:
        y, w = operands
    target = Guarded(torch.full_like(x, torch.nan), last, before)
    source = Guarded(y, last, before)
    pointers = [target.tensor.data_ptr(), w.data_ptr(), source.tensor.data_ptr()]
    caps = caps or h200(core)
    if variant == "strips":
        said = core.run_depthwise(problem, caps, *pointers, 0)
    else:
        said = core.run_phases(problem, caps, *pointers, 0, variant)
    assert isinstance(said, dict), said
    assert target.is_whole()
    if operands is None:
        reference.check_gradients((target.tensor, None, None), case, x, w, y)
    return said, target.tensor


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("case", "taps", "filters"), CASES, ids=str)
def test_phases_as_channels(
    core: ModuleType, case: Case, taps: tuple[int, int] | None, filters: int, dtype: Any, last: bool
) -> None:
    said, _ = run(core, case, dtype, last)
    assert taps is None or said["taps"] == taps
    assert said["filters"] == filters * case.x[1]
    assert said["has_pixels"] == last


def test_units_are_as_wide_as_the_tensors_allow(core: ModuleType) -> None:
    case = CASES[0][0]
    assert run(core, case, torch.bfloat16, True)[0]["unit"] == 8
    assert run(core, case, torch.bfloat16, False)[0]["unit"] == 4
    assert run(core, CASES[1][0], torch.bfloat16, True)[0]["unit"] == 1
    want = run(core, case, torch.bfloat16, True)[1]
    for before in (1, 2, 4):
        assert torch.equal(run(core, case, torch.bfloat16, True, before=before)[1], want)


def test_filters_stay_where_they_are(core: ModuleType) -> None:
    for index, in_place in ((0, True), (3, True), (4, True), (6, False), (13, False)):
        said, _ = run(core, CASES[index][0], torch.float32, False)
        assert said["filters_in_place"] == in_place


CHUNKED = Case("chunked", (5, 8, 12, 16), (4, 8, 3, 3), (2, 2), (1, 1))


@pytest.mark.parametrize(("case", "limit"), [(CASES[0][0], 6 << 10), (CHUNKED, 48 << 10)], ids=str)
def test_images_in_chunks(core: ModuleType, case: Case, limit: int) -> None:
    want = run(core, case, torch.float32, False)[1]
    caps = h200(core)
    caps.workspace_limit = limit
    said, got = run(core, case, torch.float32, False, caps)
    assert said["chunk_images"] < case.x[0]
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("last", "variant"), [(False, "channels"), (True, "channels"), (True, "rows")]
)
@pytest.mark.parametrize("value", [torch.inf, torch.nan], ids=str)
def test_zero_taps_meet_no_infinity(
    core: ModuleType, value: float, last: bool, variant: str
) -> None:
    case = CASES[6][0]
    _, w, _ = case.tensors(torch.float32)
    y = case.grad_output(torch.float32)
    y[0, 1, 2, 3] = value
    said, got = run(core, case, torch.float32, last, variant=variant, operands=(y, w))
    assert said["recomputes"]
    want = torch.nn.grad.conv2d_input(
        list(case.x), w.double(), torch.where(y.isfinite(), y, 0).double(), 2, 1
    )
    touched = torch.zeros(case.x, dtype=torch.bool)
    touched[0, :, 3:6, 5:8] = True
    assert torch.equal(~got.isfinite(), touched)
    assert torch.allclose(got[~touched].double(), want[~touched], atol=1e-5)


VIEWS = [CASES[13][0], CASES[14][0]]


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("case", VIEWS, ids=str)
def test_phases_as_views(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    said, _ = run(core, case, dtype, True, variant="views")
    assert said["views"] == 4


# With the number of row phases.
ROWS = [
    (CASES[3][0], 2),
    (CASES[4][0], 4),
    (CASES[6][0], 2),
    (CASES[8][0], 2),
    (CASES[9][0], 4),
    (Case("columns_only", (2, 4, 9, 8), (4, 4, 3, 3), (1, 2), (1, 1)), 1),
    (Case("dilated_rows", (2, 4, 15, 8), (4, 4, 3, 3), (2, 2), (3, 1), (3, 1)), 2),
    (Case("cropped", (2, 5, 10, 12), (3, 5, 4, 3), (2, 2), (1, 1)), 2),
    (Case("three_wide", (2, 4, 8, 9), (6, 4, 3, 5), (2, 3), (0, 1, 2, 3)), 2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("case", "rows"), ROWS, ids=str)
def test_phases_as_rows(core: ModuleType, case: Case, rows: int, dtype: torch.dtype) -> None:
    said, want = run(core, case, dtype, True, variant="rows")
    assert said["rows"] == rows
    for before in (1, 2):
        assert torch.equal(run(core, case, dtype, True, variant="rows", before=before)[1], want)


# Layers of which each phase has one tap at most.
TRANSPOSED = [
    CASES[0][0],
    CASES[1][0],
    CASES[2][0],
    CASES[3][0],
    Case("stride_above", (2, 16, 17, 12), (8, 16, 2, 3), (4, 4), (1, 0)),
    Case("many_channels", (2, 40, 10, 11), (37, 40, 2, 2), (2, 2), (1, 1)),
    Case("four_sides", (2, 16, 11, 13), (9, 16, 2, 2), (2, 2), (1, 0, 0, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    want = run(core, case, dtype, False, variant="transposed")[1]
    for before in (1, 2, 4):
        got = run(core, case, dtype, False, variant="transposed", before=before)[1]
        assert torch.equal(got, want)


def test_planes_are_accessed_in_units(core: ModuleType) -> None:
    for sizes, unit in (((8, 16), 8), ((6, 4), 8), ((14, 14), 4), ((9, 9), 1)):
        case = Case("units", (2, 8, *sizes), (10, 8, 2, 2), (2, 2), (1, 1))
        said = run(core, case, torch.bfloat16, False, variant="transposed")[0]
        assert said["plane_unit"] == unit


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_chunks_are_transposed(core: ModuleType, dtype: torch.dtype) -> None:
    case = Case("chunked", (5, 8, 12, 16), (8, 8, 2, 2), (2, 2), (1, 1))
    said, want = run(core, case, dtype, False, variant="transposed")
    assert said["chunk_images"] == 5
    caps = h200(core)
    caps.workspace_limit = (48 << 10) * dtype.itemsize // 4
    said, got = run(core, case, dtype, False, caps, variant="transposed")
    assert said["chunk_images"] < 5
    assert torch.equal(got, want)


def test_problems_that_are_not_transposed(core: ModuleType) -> None:
    def refuses(case: Case, dtype: torch.dtype, last: bool) -> bool:
        problem = make_problem(core, case, dtype, last)
        problem.pass_ = core.Pass.input_grad
        return core.run_phases(problem, h200(core), 0, 0, 0, 0, "transposed") == "no such variant"

    assert refuses(CASES[6][0], torch.bfloat16, False)  # phases of several taps
    assert refuses(CASES[0][0], torch.bfloat16, True)
    assert refuses(CASES[0][0], torch.float64, False)
    assert refuses(CASES[5][0], torch.bfloat16, False)  # phases of four channels are not aligned
    assert refuses(CASES[13][0], torch.bfloat16, False)
    assert refuses(Case("channel", (2, 1, 8, 8), (4, 1, 2, 2), (2, 2)), torch.half, False)


def depthwise(name: str, n: int, c: int, h: int, w: int, r: int, pad: Any) -> Case:
    return Case(name, (n, c, h, w), (c, 1, r, r), (2, 2), pad, groups=c)


# With the channels of a thread in channels_last.
STRIPS = [
    (depthwise("dw3", 2, 8, 12, 14, 3, (1, 1)), 4),
    (depthwise("dw3_odd", 2, 6, 13, 11, 3, (1, 1)), 2),
    (depthwise("dw3_odd_channels", 1, 5, 9, 10, 3, (0, 0)), 1),
    (depthwise("dw3_four_sides", 2, 4, 9, 10, 3, (0, 1, 2, 1)), 4),
    (depthwise("dw3_much_padding", 1, 4, 5, 6, 3, (4, 5)), 4),
    (depthwise("dw3_one_pixel", 2, 4, 1, 1, 3, (1, 1)), 4),
    (depthwise("dw5", 2, 8, 14, 12, 5, (2, 2)), 2),
    (depthwise("dw5_odd", 1, 3, 11, 13, 5, (1, 2)), 1),
]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize(("case", "channels"), STRIPS, ids=str)
def test_strips(core: ModuleType, case: Case, channels: int, dtype: Any, last: bool) -> None:
    said, want = run(core, case, dtype, last, variant="strips")
    single = case.x[2] * case.x[3] == 1
    assert said["channels"] == (channels if last or single else 1) or single
    said, got = run(core, case, dtype, last, variant="strips", before=1)
    assert said["channels"] == 1
    assert torch.equal(got, want)
