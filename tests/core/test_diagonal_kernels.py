"""The kernel of cuda_diagonal, run on the host from its own source."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from engine_tester import Problem
from host_engines import MMA_MATH, HostEngine, check_nonfinite_on_host, check_on_host
from kernel_tester import make_problem
from layouts import COMMON
from problems import h200

LAST = COMMON[1]

CASES = [
    Case("of_fours", (2, 64, 9, 11), (64, 4, 3, 3), padding=(1, 1), groups=16),
    Case("of_pairs", (2, 32, 7, 9), (32, 2, 3, 3), padding=(1, 1), groups=16),
    Case("of_eights", (2, 32, 7, 9), (32, 8, 3, 3), padding=(1, 1), groups=4),
    Case("of_sixteens", (2, 48, 7, 9), (48, 16, 3, 3), padding=(1, 1), groups=3),
    Case("of_ones", (1, 24, 9, 9), (24, 1, 3, 3), padding=(1, 1), groups=24),
    Case("of_one_chunk", (3, 8, 12, 20), (8, 4, 3, 3), padding=(1, 1), groups=2),
    Case("of_two_chunks", (2, 24, 9, 20), (24, 4, 3, 3), padding=(1, 1), groups=6),
    Case("of_several_sets", (1, 136, 6, 7), (136, 4, 3, 3), padding=(1, 1), groups=34),
    Case("of_units_of_two", (2, 6, 8, 9), (6, 2, 3, 3), padding=(1, 1), groups=3),
    Case("of_odd_channels", (2, 5, 8, 9), (5, 1, 3, 5), padding=(1, 2), groups=5),
    Case("strided", (2, 32, 15, 17), (32, 4, 3, 3), (2, 2), (1, 1), groups=8),
    Case("strided_apart", (2, 16, 15, 17), (16, 4, 5, 3), (3, 1), (2, 1), groups=4),
    Case("dilated", (2, 16, 15, 17), (16, 4, 3, 3), padding=(2, 3), dilation=(2, 3), groups=4),
    Case("padded_unevenly", (1, 16, 9, 11), (16, 4, 4, 3), padding=(3, 0, 2, 1), groups=4),
    Case("without_bias", (1, 16, 9, 11), (16, 4, 1, 1), groups=4, bias=False),
    Case("of_a_large_kernel", (1, 16, 20, 20), (16, 4, 9, 7), padding=(4, 3), groups=4),
    Case("of_many_columns", (1, 8, 3, 300), (8, 4, 3, 3), padding=(1, 1), groups=2),
    Case("kernel_beyond_image", (2, 8, 3, 3), (8, 4, 5, 5), padding=(2, 2), groups=2),
    Case("of_threes", (2, 12, 7, 9), (12, 3, 3, 3), padding=(1, 1), groups=4),
    Case("of_twenties_and_fours", (1, 72, 6, 7), (72, 24, 3, 3), (2, 2), (1, 1), groups=3),
    Case("of_fifties_and_sixes", (1, 112, 5, 6), (112, 56, 3, 3), (1, 2), (1, 1), groups=2),
    Case("of_sixty_fours", (1, 192, 5, 6), (192, 64, 3, 3), padding=(1, 1), groups=3),
    Case("of_more_filters", (2, 20, 8, 7), (70, 2, 3, 3), (2, 1), (1, 0), groups=10),
    Case("of_fewer_filters", (1, 70, 8, 7), (20, 7, 3, 2), (1, 2), (0, 1), groups=10),
    Case("strided_sixteens", (1, 64, 14, 13), (64, 16, 3, 3), (2, 2), (1, 1), groups=4),
    Case("strided_and_dilated", (1, 32, 19, 23), (32, 8, 3, 4), (3, 3), (3, 2), (2, 2), 4),
    Case("stride_divides_dilation", (1, 32, 15, 17), (32, 8, 3, 3), (2, 2), (1, 3), (2, 4), 4),
    Case("stride_above_kernel", (2, 16, 14, 13), (16, 4, 2, 1), (3, 4), groups=4),
    Case("strided_points", (2, 32, 13, 14), (32, 16, 1, 1), (2, 2), groups=2),
    Case("strided_unevenly", (1, 16, 9, 12), (16, 4, 4, 3), (2, 2), (3, 0, 2, 1), groups=4),
    Case("of_one_row", (1, 16, 1, 30), (16, 8, 1, 5), (2, 2), (0, 2), groups=2),
]


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_diagonals(
    core: ModuleType, case: Case, direction: str, math: tuple[torch.dtype, str]
) -> None:
    dtype, precision = math
    host = HostEngine(core, "cuda_diagonal", precision)
    problem = Problem(case, dtype, LAST, "cpu")
    assert check_on_host(host, problem, direction) == ""


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_a_block_of_many_tiles(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """On a device of one multiprocessor a block takes them one after the other."""
    host = HostEngine(core, "cuda_diagonal", math[1])
    host.caps.sm_count = 1
    case = Case("of_fours", (5, 80, 12, 30), (80, 4, 3, 3), padding=(1, 1), groups=20)
    assert check_on_host(host, Problem(case, math[0], LAST, "cpu"), "forward") == ""
    case = Case("strided", (3, 96, 23, 30), (96, 16, 3, 3), (2, 2), (1, 1), groups=6)
    for direction in ("forward", "input_grad"):
        assert check_on_host(host, Problem(case, math[0], LAST, "cpu"), direction) == ""


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_infinities_stay_in_their_group(
    core: ModuleType, math: tuple[torch.dtype, str], value: float
) -> None:
    dtype, precision = math
    host = HostEngine(core, "cuda_diagonal", precision)
    for case in (
        Case("of_fours", (2, 16, 9, 11), (16, 4, 3, 3), groups=4),
        Case("of_twelves", (2, 36, 9, 11), (36, 12, 3, 3), (2, 2), (1, 1), groups=3),
    ):
        for direction, operand, spot in (
            ("forward", "x", (1, 5, 4, 6)),
            ("forward", "w", (9, 2, 1, 1)),
            ("input_grad", "y", (0, 6, 3, 3)),
        ):
            problem = Problem(case, dtype, LAST, "cpu")
            getattr(problem, operand)[spot] = value
            check_nonfinite_on_host(host, problem, direction)


def test_what_it_leaves_to_others(core: ModuleType) -> None:
    def refusal(case: Case, dtype: torch.dtype = torch.bfloat16, **of: Any) -> str:
        problem = Problem(case, dtype, of.get("layout", LAST), "cpu")
        host = HostEngine(core, "cuda_diagonal", of.get("precision", "ieee"))
        return host.refusal(host.describe_called(problem, of.get("direction", "forward")))

    fours = CASES[0]
    assert refusal(fours) == ""
    assert "16-bit types and TF32 only" in refusal(fours, torch.float32)
    assert refusal(fours, torch.float32, precision="tf32") == ""
    assert "no weight gradient" in refusal(fours, direction="weight_grad")
    assert "not neighbours" in refusal(fours, layout=COMMON[0])
    assert "needs groups" in refusal(Case("dense", (1, 16, 8, 8), (16, 16, 3, 3)))
    far = Case("of_a_large_stride", (1, 16, 20, 20), (16, 4, 3, 3), (5, 1), groups=4)
    assert refusal(far) == ""
    assert "strides up to 4" in refusal(far, direction="input_grad")


@pytest.mark.parametrize("math", MMA_MATH, ids=str)
def test_where_it_is_chosen(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """Where it was the fastest on an H200: not of single channels."""
    for groups, engine in ((32, "cuda_diagonal"), (128, "cuda_depthwise")):
        shape = (64, 128, 56, 56), (128, 128 // groups, 3, 3)
        case = Case("same", *shape, padding=(1, 1), groups=groups)
        problem = make_problem(core, case, math[0], channels_last=True)
        problem.precision = getattr(core.Precision, math[1])
        said = json.loads(core.choose("cuda", problem, h200(core), "auto"))
        assert said["engine"] == engine
