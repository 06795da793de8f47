"""cuda_boxes over planes, by channels_last copies: the kernels' own source on the host."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import Case
from kernel_tester import make_problem
from problems import h200
from test_boxes_kernels import CASES, MATH, random_case, run

# Layers that no form of planes takes.
COPIED = [
    Case("taps", (2, 16, 8, 8), (16, 16, 3, 3), padding=(1, 1)),
    Case("strided", (2, 16, 8, 8), (24, 16, 1, 1), stride=(2, 2)),
    Case("strided_taps", (4, 24, 9, 11), (72, 24, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("odd_channels", (3, 37, 9, 10), (41, 37, 3, 2), padding=(1, 0), bias=False),
    Case("padded", (2, 16, 8, 8), (16, 16, 1, 1), padding=(1, 1)),
    Case("one_image", (1, 136, 13, 15), (136, 136, 3, 3), padding=(2, 2), dilation=(2, 2)),
]


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", COPIED, ids=str)
def test_planes_are_copied(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str
) -> None:
    assert run(core, case, math, direction, planes=True)
    run(core, case, math, direction, planes=True, before=1, descending=True)


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
def test_one_of_the_tensors_has_planes(core: ModuleType, direction: str, planes: bool) -> None:
    for case in COPIED:
        assert run(core, case, MATH[1], direction, planes=planes, source_is_last=planes)


@pytest.mark.parametrize("seed", range(12))
def test_random_planes(core: ModuleType, seed: int) -> None:
    direction = ("forward", "input_grad")[seed % 2]
    run(core, random_case(seed), MATH[seed % len(MATH)], direction, planes=True)


def test_reductions_of_copies_are_split(core: ModuleType) -> None:
    case = Case("deep", (2, 264, 7, 7), (64, 264, 3, 3), padding=(1, 1))
    assert run(core, case, MATH[1], planes=True, parts=3)["parts"] == 3


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
def test_batches_fit_in_the_workspace(core: ModuleType, direction: str) -> None:
    case = Case("batches", (6, 16, 12, 12), (24, 16, 3, 3), padding=(1, 1))
    filters = 24 * 16 * 9 * 4
    image = 12 * 12 * (16 + 24) * 4
    for images in (6, 3, 2, 1):
        limit = filters + images * image + 2048
        said = run(core, case, MATH[0], direction, planes=True, workspace_limit=limit)
        assert said["workspace_bytes"] <= limit
        assert said["workspace_bytes"] > images * image


def explain(core: ModuleType, problem: Any, caps: Any) -> dict[str, Any]:
    said = json.loads(core.choose("cuda", problem, caps, "auto"))
    return next(each for each in said["candidates"] if each["name"] == "cuda_boxes")


def test_an_image_that_does_not_fit_is_refused(core: ModuleType) -> None:
    problem = make_problem(core, COPIED[0], torch.bfloat16, channels_last=False)
    caps = h200(core)
    assert "channels_last copies" in explain(core, problem, caps)["geometry"]
    caps.workspace_limit = 1024
    assert explain(core, problem, caps)["refusal"] == (
        "channels_last copies do not fit in the workspace"
    )


def test_forms_of_planes_need_no_copies(core: ModuleType) -> None:
    for case in CASES[:4]:
        problem = make_problem(core, case, torch.bfloat16, channels_last=True)
        assert "copies" not in explain(core, problem, h200(core))["geometry"]
    plain = Case("plain", (2, 16, 8, 8), (16, 16, 1, 1))
    problem = make_problem(core, plain, torch.bfloat16, channels_last=False)
    assert "copies" not in explain(core, problem, h200(core))["geometry"]
