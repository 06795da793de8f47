"""The kernels of cuda_mma, run on the host from their own source, against float64.

A GPU runs the same code in tests/engines; here only the product of a warp and the copies are
replaced by plain C++.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import EDGES, Case, draw
from kernel_tester import MATH, Guarded, make_problem
from problems import a100, h200, rtx4090

FORMATS = ["nchw", "nhwc"]
DIRECTIONS = ["forward", "input_grad"]

# Large enough for several stages, tiles and parts; small enough to wait for.
CASES = [
    Case("several_tiles", (2, 24, 20, 21), (72, 24, 3, 3), padding=(1, 1)),
    Case("tiles_of_128_filters", (1, 40, 14, 16), (128, 40, 3, 3), padding=(1, 1)),
    Case("pointwise", (2, 70, 15, 20), (96, 70, 1, 1)),
    Case("stem", (1, 3, 40, 40), (48, 3, 7, 7), (2, 2), (3, 3)),
    Case("odd_planes", (1, 9, 65, 67), (20, 9, 3, 3), padding=(1, 1)),  # windows overlap
    Case("strided", (2, 33, 19, 22), (40, 33, 3, 3), (2, 2), (1, 1)),
    Case("strided_along_rows", (1, 17, 12, 70), (24, 17, 3, 5), (1, 2), (1, 2)),
    Case("strided_along_columns", (1, 17, 70, 12), (24, 17, 5, 3), (2, 1), (2, 1)),
    Case("groups_of_many", (1, 48, 9, 10), (80, 24, 3, 3), (1, 1), (1, 1), groups=2),
    Case("small_images", (20, 40, 4, 5), (30, 40, 3, 3), padding=(1, 1)),
    Case("parts", (1, 200, 6, 6), (60, 200, 3, 3), padding=(1, 1)),
    Case("large_kernel", (1, 20, 16, 18), (33, 20, 5, 9), padding=(2, 4), dilation=(2, 1)),
]


def devices(core: ModuleType) -> list[Any]:
    """The last two have so few multiprocessors that large tiles win; the H200 has two tiles."""
    caps = [a100(core), h200(core), a100(core), rtx4090(core)]
    caps[2].sm_count = caps[3].sm_count = 1
    return caps


def run(
    core: ModuleType,
    case: Case,
    math: tuple[torch.dtype, str],
    format: str,
    direction: str,
    caps: Any,
    tensors: tuple[torch.Tensor, ...] | None = None,
    before: int = 0,
) -> tuple[Any, torch.Tensor]:
    """(what it was fitted to, or the refusal; the result)"""
    dtype, precision = math
    channels_last = format == "nhwc"
    problem = make_problem(core, case, dtype, channels_last)
    problem.pass_ = getattr(core.Pass, direction)
    problem.precision = getattr(core.Precision, precision)
    x, w, b = case.tensors(dtype)
    y = case.grad_output(dtype)
    if tensors is not None:
        x, w, y = tensors
    poison = torch.full_like(y if direction == "forward" else x, torch.nan)
    x, y = (x, poison) if direction == "forward" else (poison, y)
    guarded_x, guarded_y = Guarded(x, channels_last, before), Guarded(y, channels_last, before)
    pointers = [t.data_ptr() for t in (guarded_x.tensor, w, guarded_y.tensor)]
    said = core.run_mma(problem, caps, *pointers, 0 if b is None else b.data_ptr())
    assert guarded_x.is_whole()
    assert guarded_y.is_whole()
    return said, (guarded_y if direction == "forward" else guarded_x).tensor


def run_and_check(
    core: ModuleType,
    case: Case,
    math: tuple[torch.dtype, str],
    format: str,
    direction: str,
    caps: Any = None,
    before: int = 0,
) -> Any:
    said, got = run(core, case, math, format, direction, caps or h200(core), before=before)
    if isinstance(said, str):
        assert "phases" in said or "fits" in said, said
        return []
    x, w, b = case.tensors(math[0])
    tf32 = math[1] == "tf32"
    if direction == "forward":
        reference.check_forward(got, case, x, w, b, tf32=tf32)
    else:
        y = case.grad_output(math[0])
        reference.check_gradients((got, None, None), case, draw(case.x), w, y, tf32=tf32)
    return said


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", [c for c in EDGES if c.groups < 10], ids=str)
def test_edges(core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str) -> None:
    format = FORMATS[(len(case.name) + MATH.index(math)) % 2]
    run_and_check(core, case, math, format, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("math", MATH[:3], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_several_stages(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str
) -> None:
    """In either format, by turns."""
    turn = CASES.index(case) + MATH.index(math) + DIRECTIONS.index(direction)
    format = FORMATS[turn % 2]
    caps = devices(core)[(len(case.name) + len(format + direction + math[1])) % 4]
    run_and_check(core, case, math, format, direction, caps, before=len(case.name) % 5)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_nan_and_infinity_reach_what_they_should(
    core: ModuleType, math: tuple[torch.dtype, str], value: float, operand: str, format: str
) -> None:
    case = Case("spoilt", (2, 20, 11, 13), (70, 20, 3, 3), dilation=(2, 3))
    x, w, b = case.tensors(math[0])
    (x if operand == "x" else w)[1, 7, 1, 2] = value
    y = case.grad_output(math[0])
    _, got = run(core, case, math, format, "forward", h200(core), (x, w, y))
    want = reference.conv2d(case, x, w, b)
    assert not want.isfinite().all()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())


def test_the_cases_reach_every_way(core: ModuleType) -> None:
    """Or the tests above would say less than they seem to."""
    reached: Counter[str] = Counter()
    for case in CASES:
        for caps in devices(core):
            for phase in run_and_check(core, case, MATH[0], "nchw", "forward", caps):
                reached[f"{phase['blocks']}x{phase['filters']} folded {phase['folded']}"] += 1
                reached["bands" if phase["bands"] else "segments"] += 1
                reached[f"{phase['filter_stages']} stages"] += 1
                reached["parts"] += phase["splits"] > 1
                reached["groups of chunks"] += phase["stage_chunks"] > 1
                reached["parts of chunks"] += phase["stage_steps"] < phase["steps"]
                reached["windows overlap"] += phase["window_step"] < phase["window"]
    missing = {way for way, count in reached.items() if count == 0}
    assert not missing
    assert len(reached) == 13, reached
