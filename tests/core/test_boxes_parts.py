"""Reductions of cuda_boxes that are split among blocks, emulated as in test_boxes_kernels.py."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from kernel_tester import make_problem
from problems import h200
from test_boxes_kernels import MATH, check_not_finite, run

# Long reductions: the last chunk may have fewer channels, and the last slice fewer chunks.
CUT = [
    (Case("pixels", (2, 520, 9, 12), (72, 520, 1, 1)), False),
    (Case("strided_pixels", (2, 264, 9, 12), (136, 264, 1, 1), stride=(2, 2), bias=False), False),
    (Case("odd_pixels", (2, 523, 5, 7), (75, 523, 1, 1)), False),
    (Case("lines", (3, 520, 8, 12), (72, 520, 1, 1)), True),
    (Case("images", (7, 520, 7, 7), (72, 520, 1, 1)), True),
    (Case("pairs", (3, 520, 14, 14), (72, 520, 1, 1), bias=False), True),
    (Case("spans", (2, 523, 11, 13), (75, 523, 1, 1)), True),
]


@pytest.mark.parametrize("parts", [2, 4, 8])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize(("case", "planes"), CUT, ids=str)
def test_parts_of_a_reduction(
    core: ModuleType, case: Case, planes: bool, math: tuple[torch.dtype, str], parts: int
) -> None:
    for direction, before in (("forward", 0), ("forward", 1), ("input_grad", 0)):
        if direction == "input_grad" and case.stride != (1, 1):
            continue
        wish = {"planes": planes, "before": before, "parts": parts, "sm_count": 132}
        said = run(core, case, math, direction, descending=parts == 4, **wish)
        chunks = -(-case.w[direction == "forward"] // (32 if math[1] == "tf32" else 64))
        if chunks < 2 * parts:
            assert said is None
        else:
            assert said["chunks"] == chunks
            assert said["parts"] == -(-chunks // -(-chunks // parts))
            assert not said["resident"]


# Slices of several taps begin and end within a tap.
CUT_TAPS = [
    Case("taps", (1, 72, 9, 10), (72, 72, 3, 3), padding=(1, 1)),
    Case("many_filters", (2, 40, 7, 8), (264, 40, 3, 3), padding=(1, 1), bias=False),
    Case("odd_taps", (2, 37, 9, 9), (75, 37, 3, 4), padding=(0, 1, 2, 1), dilation=(2, 1)),
    Case("strided_taps", (2, 136, 9, 12), (24, 136, 5, 3), stride=(2, 3), padding=(2, 0)),
]


@pytest.mark.parametrize(("parts", "filters"), [(2, 256), (3, 64), (5, 128), (12, 0)])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CUT_TAPS, ids=str)
def test_parts_of_several_taps(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], parts: int, filters: int
) -> None:
    for direction, before in (("forward", 0), ("forward", 1), ("input_grad", 0)):
        if direction == "input_grad" and case.stride != (1, 1):
            continue
        wish = {"before": before, "parts": parts, "filters": filters, "sm_count": 132}
        last = direction == "input_grad" or before == 0
        said = run(core, case, math, direction, filters_last=last, descending=parts == 5, **wish)
        chunks = -(-case.w[direction == "forward"] // (32 if math[1] == "tf32" else 64))
        steps = chunks * case.w[2] * case.w[3]
        if steps < 2 * parts:
            assert said is None
        else:
            assert said["parts"] == -(-steps // -(-steps // parts))
            assert said["filters"] == (filters or said["filters"])


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("math", MATH, ids=str)
def test_only_the_last_wave_is_split(
    core: ModuleType, math: tuple[torch.dtype, str], direction: str
) -> None:
    for case, planes, filters, pieces, sm_count in (
        (Case("boxes", (3, 40, 9, 20), (136, 40, 3, 3), padding=(1, 1)), False, 128, 1, 3),
        (Case("two_boxes", (7, 72, 7, 20), (72, 72, 3, 3), padding=(1, 1)), False, 128, 2, 3),
        (Case("filters", (1, 200, 13, 20), (200, 200, 3, 1), padding=(1, 0)), False, 192, 1, 4),
        (Case("lines", (2, 392, 16, 12), (392, 392, 1, 1)), True, 64, 1, 3),
    ):
        wish = {"planes": planes, "filters": filters, "pieces": pieces, "sm_count": sm_count}
        for parts in (2, 3):
            last = not planes and parts == 2
            said = run(core, case, math, direction, parts=parts, filters_last=last, **wish)
            wave = sm_count * (2 if filters * pieces == 64 else 1)
            assert said["parts"] == parts
            assert said["whole_tiles"] == said["tiles"] // wave * wave
            assert 0 < said["whole_tiles"] < said["tiles"]


def test_parts_have_room_in_the_workspace(core: ModuleType) -> None:
    case = Case("few_tiles", (2, 1408, 17, 17), (432, 1408, 1, 1))
    problem = make_problem(core, case, torch.bfloat16)
    caps = h200(core)

    def ask(algorithm: str = "auto") -> dict[str, Any]:
        said = json.loads(core.choose("cuda", problem, caps, algorithm))
        assert bool(said["error"]) == (algorithm != "auto")
        return next(each for each in said["candidates"] if each["name"] == "cuda_boxes")

    cut = ask()
    assert cut["split"] > 1
    caps.workspace_limit = cut["workspace_bytes"] - 1
    whole = ask()
    assert whole["split"] < cut["split"]
    assert whole["workspace_bytes"] <= caps.workspace_limit
    caps.workspace_limit = 2 * problem.K * problem.C + 4096  # packed filters, and little more
    assert ask()["split"] == 1
    ask("cuda_boxes:parts_2")


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_nan_and_infinity_of_parts(
    core: ModuleType, math: tuple[torch.dtype, str], value: float, operand: str
) -> None:
    case = Case("not_finite", (2, 24, 7, 9), (40, 24, 3, 3), padding=(1, 1))
    x, w, b = case.tensors(math[0])
    (x if operand == "x" else w)[1, 2, 0, 0] = value
    check_not_finite(core, case, math, (x, w, b), channels_last=True, parts=3)
