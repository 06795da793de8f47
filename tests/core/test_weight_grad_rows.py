"""The row kernel of cuda_weight_grad, run on the host from its own source."""

from __future__ import annotations

from types import ModuleType

import pytest
import reference
import torch
from cases import CASES as GRID
from cases import Case
from engine_tester import Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host
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


class RowEngine(HostEngine):
    """cuda_weight_grad with its row kernel, whatever the plan would choose."""

    def __init__(self, core: ModuleType, precision: str) -> None:
        super().__init__(core, "cuda_weight_grad", precision)
        self.run_kernel = core.run_weight_grad_rows


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
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", ROW_CASES, ids=str)
def test_weight_gradients(core: ModuleType, case: Case, math, before: int) -> None:
    """Rows begin at any element, as tensors do."""
    check(RowEngine(core, math[1]), Problem(case, math[0], COMMON[0], "cpu"), before)


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_every_case(core: ModuleType, case: Case, math) -> None:
    host = RowEngine(core, math[1])
    try:
        check(host, Problem(case, math[0], COMMON[0], "cpu"), before=1)
    except RefusedError as refused:
        pytest.skip(str(refused))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_infinities_reach_what_they_should(core: ModuleType, math, value: float) -> None:
    host = RowEngine(core, math[1])
    for operand, spot in (("x", (1, 5, 4, 6)), ("y", (0, 9, 2, 3))):
        case = Case("dilated", (2, 16, 9, 11), (16, 16, 3, 3), dilation=(2, 1))
        problem = Problem(case, math[0], COMMON[0], "cpu")
        getattr(problem, operand)[spot] = value
        check_nonfinite_on_host(host, problem, "weight_grad")


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("operand", ["x", "y"])
@pytest.mark.parametrize("factor", [1e9, 1e-15, 1e18], ids=str)
def test_wide_ranges(core: ModuleType, precision: str, operand: str, factor: float) -> None:
    """Values that scaled float16 cannot hold are found by whoever rounds them."""
    case = Case("wide", (2, 16, 9, 70), (24, 16, 3, 3), padding=(1, 1))
    problem = Problem(case, torch.float32, COMMON[0], "cpu")
    getattr(problem, operand)[:, 5] *= factor
    check(RowEngine(core, precision), problem)
