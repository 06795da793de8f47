"""The kernel of cuda_bands, run on the host from its own source."""

from __future__ import annotations

import json
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from engine_tester import Problem
from host_engines import MMA_MATH, HostEngine, check_nonfinite_on_host, check_on_host
from kernel_tester import make_problem
from layouts import COMMON
from problems import a100, h200

CASES = [
    Case("same_31", (2, 3, 20, 56), (3, 1, 31, 31), padding=(15, 15), groups=3),
    Case("of_small_planes", (37, 2, 7, 7), (2, 1, 13, 13), padding=(6, 6), groups=2),
    Case("of_even_planes", (5, 2, 14, 14), (2, 1, 27, 27), padding=(13, 13), groups=2),
    Case("of_columns_in_fours", (2, 2, 9, 28), (2, 1, 5, 29), padding=(2, 14), groups=2),
    Case("of_one_row_of_taps", (2, 2, 5, 70), (2, 1, 1, 31), padding=(0, 15), groups=2),
    Case("of_one_column_of_taps", (2, 2, 40, 18), (2, 1, 31, 1), padding=(15, 0), groups=2),
    Case("of_many_columns", (1, 2, 6, 150), (2, 1, 3, 33), padding=(1, 16), groups=2),
    Case("in_groups_of_steps", (2, 1, 6, 60), (1, 1, 5, 51), padding=(2, 25), groups=1),
    Case("in_more_groups", (1, 2, 4, 90), (2, 1, 3, 70), padding=(1, 35), groups=2),
    Case("dilated", (2, 2, 20, 40), (2, 1, 7, 7), padding=(9, 12), dilation=(3, 4), groups=2),
    Case("of_strided_rows", (2, 2, 33, 24), (2, 1, 9, 13), (3, 1), (4, 6), groups=2),
    Case("padded_unevenly", (2, 2, 11, 21), (2, 1, 5, 15), padding=(3, 0, 14, 2), groups=2),
    Case("without_padding", (2, 3, 18, 40), (3, 1, 13, 17), groups=3),
    Case("of_three_filters", (2, 2, 9, 20), (6, 1, 5, 13), padding=(2, 6), groups=2),
    Case("kernel_beyond_image", (3, 2, 4, 5), (2, 1, 13, 31), padding=(6, 15), groups=2),
    Case("all_padding", (2, 2, 3, 3), (2, 1, 3, 17), padding=(2, 40), groups=2, bias=False),
    Case("of_many_rows", (1, 1, 300, 9), (1, 1, 5, 5), padding=(2, 2), groups=1),
]


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bands(core: ModuleType, case: Case, direction: str, math: tuple[torch.dtype, str]) -> None:
    dtype, precision = math
    host = HostEngine(core, "cuda_bands", precision)
    problem = Problem(case, dtype, COMMON[0], "cpu")
    if refusal := check_on_host(host, problem, direction):
        assert direction == "input_grad", refusal
        assert case.stride != (1, 1) or case.w[0] != case.x[1], refusal


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_infinities_stay_where_they_are_seen(
    core: ModuleType, math: tuple[torch.dtype, str], value: float
) -> None:
    dtype, precision = math
    host = HostEngine(core, "cuda_bands", precision)
    case = Case("without_padding", (2, 3, 18, 40), (3, 1, 13, 17), groups=3)
    for operand, spot in (("x", (1, 1, 6, 20)), ("w", (2, 0, 3, 16))):
        problem = Problem(case, dtype, COMMON[0], "cpu")
        getattr(problem, operand)[spot] = value
        check_nonfinite_on_host(host, problem, "forward")
    # Zeros of a band lie beside every tap.
    problem = Problem(case, dtype, COMMON[0], "cpu")
    problem.x[0, 0, 9, 39] = value
    result = host.run(problem, "forward")
    assert bool(result[0, 0, :, :23].isfinite().all())
    assert not bool(result[0, 0, :, 23].isfinite().any())


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_tiles_give_the_same_bits(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    dtype, precision = math
    host = HostEngine(core, "cuda_bands", precision)
    case = Case("wide", (5, 2, 40, 70), (2, 1, 5, 21), padding=(2, 10), groups=2)
    problem = Problem(case, dtype, COMMON[0], "cpu")
    described = host.describe_called(problem, "forward")
    said = json.loads(core.choose("cuda", described, h200(core), "cuda_bands"))
    (bands,) = [c for c in said["candidates"] if c["name"] == "cuda_bands"]
    assert len(bands["variants"]) == 5
    result = host.run(problem, "forward")
    kernel = host.run_kernel
    for variant in bands["variants"]:
        host.run_kernel = partial(kernel, variant=variant)
        assert torch.equal(host.run(problem, "forward"), result)


def fit(core: ModuleType, case: Case) -> dict[str, Any]:
    problem = Problem(case, torch.bfloat16, COMMON[0], "cpu")
    described = HostEngine(core, "cuda_bands").describe_called(problem, "forward")
    return core.fit_bands(described, h200(core))


def test_steps_outside_of_the_image_are_left_out(core: ModuleType) -> None:
    """One step has all 14 columns, two have 28 of them, four 56; bands begin with them."""
    for width, taps, products, lead, unit in (
        (14, 27, 1, 3, 2),
        (28, 29, 4, 2, 4),
        (56, 31, 10, 1, 8),
    ):
        shape = (8, 64, width, width), (64, 1, taps, taps)
        said = fit(core, Case("same", *shape, padding=(taps // 2, taps // 2), groups=64))
        assert said["products"] * said["column_tiles"] == products
        assert (said["steps"], said["groups"], said["lead"], said["unit"]) == (3, 1, lead, unit)


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_a_block_of_many_images(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """On a device of one multiprocessor a block takes them one after the other."""
    host = HostEngine(core, "cuda_bands", math[1])
    host.caps.sm_count = 1
    case = Case("small", (150, 1, 7, 7), (1, 1, 5, 13), padding=(2, 6), groups=1)
    assert check_on_host(host, Problem(case, math[0], COMMON[0], "cpu"), "forward") == ""


def test_small_images_share_a_block(core: ModuleType) -> None:
    said = fit(core, Case("small", (64, 256, 7, 7), (256, 1, 13, 13), padding=(6, 6), groups=256))
    images, rows = said["tile"]
    assert rows == 7
    assert images * rows > 32 * (said["warps"] - 1)  # all have something to do
    assert images in (18, 36)


def test_what_it_leaves_to_others(core: ModuleType) -> None:
    def refusal(case: Case, dtype: torch.dtype = torch.bfloat16, **of: Any) -> str:
        problem = Problem(case, dtype, of.get("layout", COMMON[0]), "cpu")
        host = HostEngine(core, "cuda_bands")
        host.caps = of.get("caps", h200(core))
        return host.refusal(host.describe_called(problem, of.get("direction", "forward")))

    same = Case("same", (1, 2, 8, 32), (2, 1, 5, 13), padding=(2, 6), groups=2)
    assert refusal(same) == ""
    assert refusal(same, caps=a100(core)) == ""
    assert "16-bit types and TF32 only" in refusal(same, torch.float32)
    assert "no weight gradient" in refusal(same, direction="weight_grad")
    assert "not neighbours" in refusal(same, layout=COMMON[1])
    assert "as many groups" in refusal(Case("dense", (1, 2, 8, 32), (2, 2, 5, 13)))
    strided = Case("strided", (1, 2, 8, 32), (2, 1, 5, 13), (1, 2), groups=2)
    assert "slide by one" in refusal(strided)
    far = Case("far", (1, 2, 3, 260), (2, 1, 1, 241), groups=2)
    assert "more than 240 columns" in refusal(far)


@pytest.mark.parametrize(("taps", "width"), [(3, 56), (5, 28), (7, 14), (9, 28), (13, 7), (31, 56)])
def test_where_it_is_chosen(core: ModuleType, taps: int, width: int) -> None:
    """Where it was the fastest on an H200: from 9x9 taps on."""
    engine = "cuda_bands" if taps >= 9 else "cuda_depthwise"
    for dtype, precision in ((torch.bfloat16, "ieee"), (torch.float32, "tf32")):
        shape = (64, 192, width, width), (192, 1, taps, taps)
        case = Case("same", *shape, padding=(taps // 2, taps // 2), groups=192)
        problem = make_problem(core, case, dtype)
        problem.precision = getattr(core.Precision, precision)
        said = json.loads(core.choose("cuda", problem, h200(core), "auto"))
        assert said["engine"] == engine
