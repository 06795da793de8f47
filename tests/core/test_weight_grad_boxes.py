"""The kernel of cuda_weight_grad that TMA boxes of rows feed, run on the host from its source."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from engine_tester import Problem
from host_engines import (
    HostEngine,
    RefusedError,
    check_nonfinite_on_host,
    check_weight_grad_of,
)
from layouts import COMMON
from problems import h200
from problems import make_problem as describe
from test_weight_grad_rows import check

from conv2d_ext.bench.shapes import Shape

BOX_MATH = [(torch.bfloat16, "ieee"), (torch.float16, "ieee"), (torch.float32, "tf32")]

# Planes, or else rows, are multiples of 16 bytes.
CASES = [
    Case("one_tile", (1, 64, 8, 8), (64, 64, 1, 1)),
    Case("odd_channels", (3, 37, 8, 9), (83, 37, 1, 1)),
    Case("many_filters", (2, 40, 8, 17), (300, 40, 1, 1)),
    Case("many_channels", (2, 333, 8, 17), (40, 333, 1, 1)),
    Case("many_of_both", (1, 290, 4, 8), (520, 290, 1, 1)),
    Case("padded", (2, 24, 7, 16), (40, 24, 1, 1), padding=(1, 0)),
    Case("three_sides", (2, 24, 7, 16), (40, 24, 1, 1), padding=(1, 2, 0, 8)),
    Case("rows_apart", (2, 24, 7, 72), (40, 24, 1, 1), (2, 1)),
    Case("groups", (2, 96, 8, 9), (72, 48, 1, 1), groups=2),
    Case("groups_of_four", (2, 64, 8, 9), (128, 4, 1, 1), groups=16),
]


class BoxEngine(HostEngine):
    """cuda_weight_grad with this kernel, whatever the plan would choose."""

    def __init__(self, core: ModuleType, precision: str, writes_result: bool = True) -> None:
        super().__init__(core, "cuda_weight_grad", precision)
        self.run_kernel = self.run_boxes
        self.writes_result = writes_result
        self.said: dict[str, Any] = {}  # of the last geometry

    def run_boxes(self, *arguments: Any) -> Any:
        said = self.core.run_weight_grad_boxes(*arguments, self.writes_result)
        if said is None:
            raise RefusedError("TMA cannot read these rows")
        self.said = said
        return said


@pytest.mark.parametrize("writes_result", [True, False], ids=["clusters", "partial_sums"])
@pytest.mark.parametrize("math", BOX_MATH, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_gradients(core: ModuleType, case: Case, math, writes_result: bool) -> None:
    check(BoxEngine(core, math[1], writes_result), Problem(case, math[0], COMMON[0], "cpu"))


@pytest.mark.parametrize("math", BOX_MATH, ids=str)
def test_few_multiprocessors(core: ModuleType, math) -> None:
    """A slice is longer than a chain of accumulators may be."""
    host = BoxEngine(core, math[1])
    host.caps.sm_count = 1
    case = Case("long", (9, 8, 48, 50), (16, 8, 1, 1))
    check(host, Problem(case, math[0], COMMON[0], "cpu"))


REFUSED = [
    Case("several_taps", (1, 16, 8, 8), (16, 16, 1, 3)),
    Case("strided", (1, 16, 8, 8), (16, 16, 1, 1), (1, 2)),
    Case("odd_planes", (1, 16, 7, 7), (16, 16, 1, 1)),
    Case("odd_rows", (1, 16, 8, 7), (16, 16, 1, 1), padding=(1, 0)),
    Case("padded_left", (1, 16, 8, 8), (16, 16, 1, 1), padding=(0, 0, 8, 0)),
]


@pytest.mark.parametrize("math", BOX_MATH, ids=str)
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused(core: ModuleType, case: Case, math) -> None:
    with pytest.raises(RefusedError, match="TMA"):
        check(BoxEngine(core, math[1]), Problem(case, math[0], COMMON[0], "cpu"))


@pytest.mark.parametrize("writes_result", [True, False], ids=["clusters", "partial_sums"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", BOX_MATH, ids=str)
def test_infinities_reach_what_they_should(
    core: ModuleType, math, value: float, writes_result: bool
) -> None:
    case = Case("padded", (2, 16, 9, 16), (80, 16, 1, 1), padding=(1, 0))
    check_weight_grad_of(BoxEngine(core, math[1], writes_result), case, math[0], value)


@pytest.mark.parametrize("math", BOX_MATH, ids=str)
def test_clusters_of_several_channel_sets(core: ModuleType, math) -> None:
    """A block has 128 filters and two sets of 128 channels, and an infinity is in the second."""
    host = BoxEngine(core, math[1])
    host.caps.sm_count = 2
    problem = Problem(Case("sets", (2, 200, 8, 8), (70, 200, 1, 1)), math[0], COMMON[0], "cpu")
    check(host, problem)
    said = host.said
    assert said["writes_result"]
    assert (said["slices"], said["channel_sets"], said["columns"]) == (2, 2, 128)
    problem.x[1, 150, 4, 6] = torch.inf
    check_nonfinite_on_host(host, problem, "weight_grad")


@pytest.mark.parametrize("math", BOX_MATH, ids=str)
def test_many_slices(core: ModuleType, math) -> None:
    """A thread of the reduction adds every 32nd slice."""
    host = BoxEngine(core, math[1], writes_result=False)
    check(host, Problem(Case("long", (9, 8, 48, 50), (16, 8, 1, 1)), math[0], COMMON[0], "cpu"))
    assert host.said["slices"] > 64


@pytest.mark.parametrize("operand", ["x", "y"])
@pytest.mark.parametrize("factor", [1e9, 1e-15, 1e18], ids=str)
def test_wide_ranges(core: ModuleType, operand: str, factor: float) -> None:
    """TF32 has the range of float32."""
    problem = Problem(Case("wide", (2, 16, 8, 70), (24, 16, 1, 1)), torch.float32, COMMON[0], "cpu")
    getattr(problem, operand)[:, 5] *= factor
    check(BoxEngine(core, "tf32"), problem)


ROW_BOXES = 4  # OperandSource::kRowBoxes


@pytest.mark.parametrize("math", BOX_MATH, ids=str)
def test_misaligned_tensors_are_packed(core: ModuleType, math) -> None:
    """The plan reads boxes, and a tensor that begins elsewhere is packed instead."""
    host = HostEngine(core, "cuda_weight_grad", math[1])
    problem = Problem(Case("large", (4, 64, 32, 32), (136, 64, 1, 1)), math[0], COMMON[0], "cpu")
    planned = core.plan_weight_grad(host.describe_called(problem, "weight_grad"), host.caps)
    assert planned["gradient_source"] == ROW_BOXES
    for before in (0, 1):
        check(host, problem, before)


def test_blocks_have_many_filters(core: ModuleType) -> None:
    """Half of them: X is read twice, but partial sums are half as many (69 us instead of 73 in
    float32 on an H200)."""
    shape = Shape.parse("n64c64h56w56 k256r1s1")
    for dtype in ("bfloat16", "float32"):
        problem = describe(core, shape, "weight_grad", dtype, "tf32")
        planned = core.plan_weight_grad(problem, h200(core))
        assert planned["gradient_source"] == ROW_BOXES
        assert planned["filter_tiles"] == 2
        assert planned["tiles"] == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_large_gradients_need_no_reduction(core: ModuleType, dtype: str) -> None:
    """Two slices of many tiles are clusters, which write dW."""
    problem = describe(core, Shape.parse("n16c1024h32w32 k2048r1s1"), "weight_grad", dtype, "tf32")
    planned = core.plan_weight_grad(problem, h200(core))
    assert planned["gradient_source"] == ROW_BOXES
    assert planned["writes_result"]
    assert planned["slices"] == 2
