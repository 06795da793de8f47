"""The row kernel of cuda_weight_grad, run on the host from its own source."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import CASES as GRID
from cases import Case
from engine_tester import Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host, check_weight_grad_of
from kernel_tester import MATH
from layouts import COMMON
from test_weight_grad_kernels import CASES

ROW_CASES = [
    *CASES,
    Case("several_segments", (2, 16, 5, 150), (72, 16, 3, 3), padding=(1, 1)),
    Case("several_runs", (1, 40, 37, 9), (16, 40, 3, 3), padding=(1, 1)),
    Case("odd_rows", (2, 5, 7, 67), (9, 5, 3, 2), padding=(0, 1)),
    Case("one_by_one", (2, 72, 9, 11), (130, 72, 1, 1)),
    Case("stride_above_kernel", (2, 24, 13, 17), (16, 24, 1, 2), (3, 4)),
    Case("dilated_rows", (1, 16, 24, 9), (16, 16, 4, 1), dilation=(5, 1)),
]


# 16-bit rows begin at multiples of 4 bytes.
EVEN_CASES = [
    Case("one_tile", (1, 64, 8, 8), (64, 64, 3, 3), padding=(1, 1)),
    Case("two_filter_tiles", (2, 32, 9, 12), (130, 32, 3, 3), padding=(1, 1)),
    Case("two_channel_tiles", (2, 72, 9, 6), (24, 72, 3, 3), padding=(1, 1)),
    Case("dilated", (1, 40, 12, 14), (16, 40, 3, 3), padding=(2, 3), dilation=(2, 3)),
    Case("strided", (2, 24, 15, 16), (40, 24, 3, 3), (2, 2), (1, 1)),
    Case("stem", (2, 3, 23, 28), (24, 3, 7, 7), (2, 2), (3, 3)),
    Case("asymmetric", (1, 32, 14, 20), (64, 32, 5, 9)),
    Case("column_kernel", (1, 24, 20, 10), (24, 24, 7, 1), padding=(3, 0)),
    Case("groups_of_four", (2, 64, 9, 12), (64, 4, 3, 3), padding=(1, 1), groups=16),
    Case("groups_of_48", (1, 96, 9, 12), (144, 48, 3, 3), padding=(1, 1), groups=2),
    Case("four_sides", (2, 16, 7, 8), (16, 16, 3, 5), padding=(0, 2, 3, 1)),
    Case("several_segments", (2, 16, 5, 150), (72, 16, 3, 3), padding=(1, 1)),
    Case("rows_of_8_bytes", (1, 16, 5, 132), (16, 16, 3, 3), padding=(1, 1)),
    Case("rows_of_16_bytes", (1, 16, 5, 136), (16, 16, 3, 3), padding=(1, 1)),
    Case("several_runs", (1, 40, 37, 10), (16, 40, 3, 3), padding=(1, 1)),
    Case("one_by_one", (2, 72, 9, 12), (130, 72, 1, 1)),
    Case("stride_above_kernel", (2, 24, 13, 16), (16, 24, 1, 2), (3, 4)),
]


class RowEngine(HostEngine):
    """cuda_weight_grad with its row kernel, whatever the plan would choose."""

    def __init__(self, core: ModuleType, precision: str) -> None:
        super().__init__(core, "cuda_weight_grad", precision)
        self.run_kernel = self.run_rows

    def run_rows(self, *arguments: Any) -> Any:
        said = self.core.run_weight_grad_rows(*arguments)
        if said is None:
            raise RefusedError("the row kernel cannot read these rows")
        self.said = said
        return said


def check(host: HostEngine, problem: Problem, before: int = 0) -> None:
    result = host.run(problem, "weight_grad", before)
    reference.check_gradients(
        (None, result, None),
        problem.case,
        problem.x,
        problem.w,
        problem.y,
        tf32=host.precision == "tf32",
    )


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("case", ROW_CASES, ids=str)
def test_float32(core: ModuleType, case: Case, precision: str, before: int) -> None:
    """Rows begin at any element, as tensors do."""
    check(RowEngine(core, precision), Problem(case, torch.float32, COMMON[0], "cpu"), before)


@pytest.mark.parametrize("before", [0, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", EVEN_CASES, ids=str)
def test_sixteen_bits(core: ModuleType, case: Case, dtype: torch.dtype, before: int) -> None:
    check(RowEngine(core, "ieee"), Problem(case, dtype, COMMON[0], "cpu"), before)


def test_odd_rows_of_sixteen_bits_are_left_to_packing(core: ModuleType) -> None:
    problem = Problem(Case("odd", (1, 16, 4, 7), (16, 16, 3, 3)), torch.float16, COMMON[0], "cpu")
    with pytest.raises(RefusedError, match="rows"):
        check(RowEngine(core, "ieee"), problem)


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_every_case(core: ModuleType, case: Case, math) -> None:
    host = RowEngine(core, math[1])
    try:
        check(host, Problem(case, math[0], COMMON[0], "cpu"), before=2)
    except RefusedError as refused:
        pytest.skip(str(refused))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_infinities_reach_what_they_should(core: ModuleType, math, value: float) -> None:
    case = Case("dilated", (2, 16, 9, 12), (16, 16, 3, 3), dilation=(2, 1))
    check_weight_grad_of(RowEngine(core, math[1]), case, math[0], value)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("operand", ["x", "y"])
@pytest.mark.parametrize("factor", [1e9, 1e-15, 1e18], ids=str)
def test_wide_ranges(core: ModuleType, precision: str, operand: str, factor: float) -> None:
    """Values that scaled float16 cannot hold are found by whoever rounds them."""
    case = Case("wide", (2, 16, 9, 70), (24, 16, 3, 3), padding=(1, 1))
    problem = Problem(case, torch.float32, COMMON[0], "cpu")
    getattr(problem, operand)[:, 5] *= factor
    check(RowEngine(core, precision), problem)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        Case("dense", (2, 64, 20, 56), (64, 64, 3, 3), padding=(1, 1)),
        Case("half_a_set", (2, 50, 20, 56), (64, 50, 3, 3), padding=(1, 1)),
        Case("groups_of_four", (2, 128, 20, 56), (128, 4, 3, 3), padding=(1, 1), groups=32),
        Case("groups_of_six", (2, 126, 20, 56), (63, 6, 3, 3), padding=(1, 1), groups=21),
        Case("tall", (1, 128, 20, 56), (64, 128, 7, 3), padding=(3, 1)),
    ],
    ids=str,
)
def test_channel_sets(core: ModuleType, case: Case, dtype: torch.dtype) -> None:
    """Warpgroups share the filters of a block, and have different channels."""
    host = RowEngine(core, "tf32")
    host.caps.sm_count = 2
    check(host, Problem(case, dtype, COMMON[0], "cpu"))
    assert host.said["channel_sets"] == 2


def test_a_channel_set_without_channels(core: ModuleType) -> None:
    host = RowEngine(core, "tf32")
    host.caps.sm_count = 2
    case = Case("five_blocks", (1, 152, 20, 56), (40, 152, 3, 3), padding=(1, 1))
    check(host, Problem(case, torch.float32, COMMON[0], "cpu"))
    assert host.said["channel_sets"] == 2


# float32 in strict precision: tiles of 48 columns, 16 channels of a kernel row each.
GROUPED = [
    Case("groups_of_4", (2, 64, 9, 12), (64, 4, 3, 3), padding=(1, 1), groups=16),
    Case("groups_of_8", (1, 64, 9, 66), (128, 8, 3, 3), padding=(1, 1), groups=8),
    Case("groups_of_16", (2, 48, 7, 13), (72, 16, 3, 3), padding=(0, 2), groups=3),
    Case("groups_of_32", (1, 64, 9, 12), (64, 32, 3, 3), padding=(1, 1), groups=2),
    Case("groups_of_six", (2, 42, 9, 11), (63, 6, 3, 3), padding=(1, 1), groups=7),
    Case("strided", (2, 32, 11, 13), (32, 8, 3, 3), (2, 2), (1, 1), groups=4),
    Case("dilated", (1, 32, 12, 14), (32, 4, 3, 3), padding=(2, 3), dilation=(2, 3), groups=8),
    Case("five_rows", (1, 32, 9, 12), (64, 8, 5, 3), padding=(2, 1), groups=4),
]


@pytest.mark.parametrize("sm_count", [2, 132])
@pytest.mark.parametrize("case", GROUPED, ids=str)
def test_groups_in_strict_float32(core: ModuleType, case: Case, sm_count: int) -> None:
    host = RowEngine(core, "ieee")
    host.caps.sm_count = sm_count
    check(host, Problem(case, torch.float32, COMMON[0], "cpu"), before=1)
    assert host.said["is_scaled"]


@pytest.mark.parametrize("group_channels", [4, 8, 16, 32])
def test_narrow_tiles_hold_both_components(core: ModuleType, group_channels: int) -> None:
    """A block has 64 filters and two sets of 16 channels, with all taps."""
    groups = 64 // group_channels
    weight = (64, group_channels, 3, 3)
    case = Case("grouped", (1, 64, 20, 56), weight, padding=(1, 1), groups=groups)
    host = RowEngine(core, "ieee")
    host.caps.sm_count = 2
    check(host, Problem(case, torch.float32, COMMON[0], "cpu"))
    assert (host.said["columns"], host.said["atom_channels"]) == (48, 16)
    assert (host.said["channel_sets"], host.said["tap_groups"]) == (2, 3)


@pytest.mark.parametrize("operand", ["x", "y"])
@pytest.mark.parametrize("factor", [1e9, 1e-15, 1e18], ids=str)
def test_wide_ranges_of_groups(core: ModuleType, operand: str, factor: float) -> None:
    case = Case("wide", (2, 64, 9, 56), (64, 4, 3, 3), padding=(1, 1), groups=16)
    problem = Problem(case, torch.float32, COMMON[0], "cpu")
    getattr(problem, operand)[:, 37] *= factor
    check(RowEngine(core, "ieee"), problem)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_infinities_stay_in_their_group(core: ModuleType, value: float) -> None:
    for operand, spot in (("x", (1, 37, 4, 6)), ("y", (0, 41, 2, 3))):
        case = Case("grouped", (2, 64, 9, 12), (64, 4, 3, 3), padding=(1, 1), groups=16)
        problem = Problem(case, torch.float32, COMMON[0], "cpu")
        getattr(problem, operand)[spot] = value
        check_nonfinite_on_host(RowEngine(core, "ieee"), problem, "weight_grad")
