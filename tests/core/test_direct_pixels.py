"""The weight gradients of cuda_direct for few filters, run on the host from their own source."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from engine_tester import Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host
from layouts import COMMON, LAYOUTS
from test_weight_grad_rows import check

CHANNELS_LAST = COMMON[1]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CASES = [
    Case("one_pixel", (1, 8, 1, 1), (1, 8, 1, 1)),
    Case("one_tile", (2, 64, 9, 11), (2, 64, 1, 1)),
    Case("part_of_a_tile", (2, 40, 9, 11), (3, 40, 1, 1)),
    Case("several_tiles", (1, 200, 7, 33), (5, 200, 1, 1)),
    Case("filters_of_two_tiles", (1, 72, 13, 13), (11, 72, 1, 1)),
    Case("several_slices", (3, 16, 40, 33), (2, 16, 1, 1)),
    Case("strided", (2, 24, 15, 13), (4, 24, 1, 1), (2, 3)),
    Case("padded", (2, 24, 6, 7), (4, 24, 1, 1), (2, 1), padding=(1, 2, 0, 3)),
    Case("groups", (2, 96, 8, 9), (9, 32, 1, 1), groups=3),
    Case("few_channels", (2, 3, 20, 21), (72, 3, 1, 1)),
]


class PixelEngine(HostEngine):
    """cuda_direct with this kernel and tiles of so many filters, whatever the plan would choose."""

    def __init__(self, core: ModuleType, filters: int) -> None:
        super().__init__(core, "cuda_direct_pixels")
        self.name, self.run_kernel = "cuda_direct", partial(self.run_tiles, filters)

    def run_tiles(self, filters: int, *arguments: Any) -> Any:
        said = self.core.run_direct_pixels(*arguments, filters)
        if said is None:
            raise RefusedError("channels are not adjacent")
        self.said = said
        return said


@pytest.mark.parametrize("filters", [2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_gradients(core: ModuleType, case: Case, dtype: torch.dtype, filters: int) -> None:
    """Tensors may begin anywhere, and results do not depend on it."""
    host, problem = PixelEngine(core, filters), Problem(case, dtype, CHANNELS_LAST, "cpu")
    check(host, problem)
    assert host.said["is_transposed"] == (case.name == "few_channels")
    assert host.said["split"] > 1 or case.name != "several_slices"
    first = host.run(problem, "weight_grad")
    assert torch.equal(first, host.run(problem, "weight_grad", 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layouts(core: ModuleType, layout, dtype: torch.dtype) -> None:
    """Layouts without adjacent channels are refused, and no other is misread."""
    case = Case("layout", (3, 32, 6, 10), (4, 32, 1, 1))
    problem = Problem(case, dtype, layout, "cpu")
    try:
        check(PixelEngine(core, 4), problem)
    except RefusedError:
        assert layout.name not in ("channels_last", "x_channels_last")


def test_small_workspaces(core: ModuleType) -> None:
    """One tile at a time, and tiles that write the gradient themselves."""
    case = Case("tiles", (2, 200, 9, 11), (5, 200, 1, 1))
    for limit in (64 * 4 * 4, 0):
        host = PixelEngine(core, 4)
        host.caps.workspace_limit = limit
        check(host, Problem(case, torch.float32, CHANNELS_LAST, "cpu"))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_reach_what_they_should(
    core: ModuleType, dtype: torch.dtype, value: float
) -> None:
    case = Case("padded", (2, 16, 9, 16), (12, 16, 1, 1), padding=(1, 0))
    host = PixelEngine(core, 8)
    for operand, spot in (("x", (1, 5, 4, 6)), ("y", (0, 9, 2, 3))):
        problem = Problem(case, dtype, CHANNELS_LAST, "cpu")
        getattr(problem, operand)[spot] = value
        check_nonfinite_on_host(host, problem, "weight_grad")
    problem = Problem(case, dtype, CHANNELS_LAST, "cpu")
    problem.y[0, 9, 0, 3] = value  # this pixel reads the padding, and no element depends on it
    assert host.run(problem, "weight_grad").isfinite().all()
