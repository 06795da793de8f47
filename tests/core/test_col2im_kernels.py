"""The kernels of cuda_col2im, run on the host from their own source."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import CASES as GRID
from cases import Case
from engine_tester import Problem
from host_engines import HostEngine, RefusedError, check_nonfinite_on_host, check_on_host
from kernel_tester import MATH, SPREADS, spread
from layouts import COMMON

CASES = [
    Case("three_by_three", (2, 16, 9, 70), (40, 16, 3, 3)),
    Case("padded", (2, 16, 7, 62), (72, 16, 3, 3), padding=(1, 1)),
    Case("many_filters", (1, 8, 6, 30), (200, 8, 3, 3), padding=(1, 1)),
    Case("three_channels", (2, 3, 9, 66), (24, 3, 3, 3), padding=(1, 1)),
    Case("one_channel", (3, 1, 8, 65), (16, 1, 5, 5), padding=(2, 2)),
    Case("six_channels", (1, 6, 8, 20), (17, 6, 3, 3), padding=(1, 1)),
    Case("several_tiles", (1, 28, 5, 20), (130, 28, 3, 3), padding=(1, 1)),
    Case("stem", (2, 3, 23, 141), (24, 3, 7, 7), (2, 2), (3, 3)),
    Case("stem_of_four", (1, 3, 35, 37), (16, 3, 11, 11), (4, 4), (2, 2)),
    Case("patches", (2, 3, 16, 24), (32, 3, 4, 4), (4, 4)),
    Case("strided", (2, 8, 15, 14), (40, 8, 3, 3), (2, 2), (1, 1)),
    Case("stride_above_kernel", (2, 5, 13, 16), (9, 5, 2, 1), (3, 4), (1, 0)),
    Case("dilated", (1, 4, 14, 80), (16, 4, 3, 3), padding=(2, 3), dilation=(2, 3)),
    Case("dilated_strided", (1, 4, 20, 33), (16, 4, 3, 3), (2, 2), (4, 3), (4, 3)),
    Case("far_dilated", (1, 4, 20, 70), (16, 4, 3, 3), padding=(6, 20), dilation=(6, 20)),
    Case("four_sides", (2, 8, 7, 8), (16, 8, 3, 4), padding=(0, 2, 3, 1)),
    Case("much_padding", (1, 4, 5, 6), (4, 4, 2, 2), (2, 2), (4, 5)),
    Case("row_kernel", (1, 8, 6, 70), (24, 8, 1, 9), padding=(0, 4)),
    Case("column_kernel", (1, 8, 20, 9), (24, 8, 7, 1), padding=(3, 0)),
    Case("one_by_one", (2, 12, 7, 9), (40, 12, 1, 1)),
    Case("groups", (2, 24, 9, 11), (48, 8, 3, 3), padding=(1, 1), groups=3),
    Case("cropped", (2, 5, 10, 12), (3, 5, 4, 3), (2, 2), (1, 1)),
]


def make_host(core: ModuleType, precision: str, half: bool = False) -> HostEngine:
    host = HostEngine(core, "cuda_col2im", precision)
    host.run_kernel = partial(core.run_col2im, half=half)
    host.caps.sm_count = 2  # fewer blocks are emulated faster
    return host


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_input_gradients(core: ModuleType, case: Case, math: Any, layout: Any) -> None:
    for half in (False, True) if math[0] == torch.float32 else (False,):
        host = make_host(core, math[1], half)
        assert check_on_host(host, Problem(case, math[0], layout, "cpu"), "input_grad") == ""


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", GRID, ids=str)
def test_every_case(core: ModuleType, case: Case, math: Any) -> None:
    host, tf32 = make_host(core, math[1]), math[1] == "tf32"
    for layout in COMMON:
        problem = Problem(case, math[0], layout, "cpu")
        try:
            result = host.run(problem, "input_grad", before=1)
        except RefusedError as refused:
            pytest.skip(str(refused))
        reference.check_gradients(
            (result, None, None), case, problem.x, problem.w, problem.y, tf32=tf32
        )


@pytest.mark.parametrize("sm_count", [1, 40])
@pytest.mark.parametrize("math", MATH, ids=str)
def test_segments_of_strips(core: ModuleType, math: Any, sm_count: int) -> None:
    """Workers begin and end in the middle of strips."""
    for case in (CASES[0], CASES[7]):
        problem = Problem(case, math[0], COMMON[0], "cpu")
        want = make_host(core, math[1], half=True).run(problem, "input_grad")
        host = make_host(core, math[1], half=True)
        host.caps.sm_count = sm_count
        assert torch.equal(host.run(problem, "input_grad"), want)


@pytest.mark.parametrize("layout", COMMON, ids=str)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", [CASES[1], CASES[7], CASES[13]], ids=str)
def test_infinities(core: ModuleType, case: Case, math: Any, value: float, layout: Any) -> None:
    """They reach what the definition says, and neither borders nor halos spread them."""
    for half in (False, True) if math[0] == torch.float32 else (False,):
        host = make_host(core, math[1], half)
        problem = Problem(case, math[0], layout, "cpu")
        problem.y[0, 3, 2, 0] = value
        check_nonfinite_on_host(host, problem, "input_grad")
        problem = Problem(case, math[0], layout, "cpu")
        problem.w[2, 1, 0, 2] = value
        check_nonfinite_on_host(host, problem, "input_grad")


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize(("name", "unfit"), SPREADS, ids=str)
def test_values_far_apart(core: ModuleType, name: str, unfit: bool, precision: str) -> None:
    case = Case("spread", (2, 8, 14, 40), (24, 8, 3, 3), padding=(1, 1))
    y, w = spread(Case("swapped", case.y, case.w), name)
    problem = Problem(case, torch.float32, COMMON[0], "cpu")
    problem.y.copy_(y)
    problem.w.copy_(w)
    said = {}
    host = make_host(core, precision)

    def run(*given: Any) -> Any:
        said.update(core.run_col2im(*given, half=True))
        return said

    host.run_kernel = run
    result = host.run(problem, "input_grad")
    assert said["is_half"]
    if unfit:
        assert said["unfit"]
    reference.check_gradients(
        (result, None, None), case, problem.x, problem.w, problem.y, tf32=precision == "tf32"
    )


def test_refusals(core: ModuleType) -> None:
    def refusal(case: Case, direction: str = "input_grad") -> str:
        host = make_host(core, "ieee")
        problem = Problem(case, torch.bfloat16, COMMON[0], "cpu")
        return host.refusal(host.describe_called(problem, direction))

    assert refusal(CASES[0]) == ""
    assert "input gradients only" in refusal(CASES[0], "forward")
    assert "fit" in refusal(Case("deep", (1, 4, 4, 4), (4096, 4, 3, 3)))
    wide = Case("wide", (1, 4, 3, 200), (8, 4, 1, 3), dilation=(1, 60))
    assert "reaches too far" in refusal(wide)
