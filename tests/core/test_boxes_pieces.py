"""Tiles of cuda_boxes that have two boxes, one for each warpgroup, emulated as in
test_boxes_kernels.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from cases import Case
from test_boxes_kernels import CASES, MATH, run


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_tiles_of_two_boxes(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], direction: str
) -> None:
    for before, resident, sm_count, filters in ((0, 1, 1, 64), (0, 0, 2, 128), (1, 0, 2, 128)):
        wish = {"before": before, "resident": resident, "sm_count": sm_count, "pieces": 2}
        wish |= {"in_turn": resident, "filters": filters}
        said = run(core, case, math, direction, filters_last=True, descending=before > 0, **wish)
        if said is None:  # resident filters do not fit
            assert resident == 1
            continue
        assert (said["pieces"], said["filters"]) == (2, filters)


@pytest.mark.parametrize("math", MATH, ids=str)
def test_warpgroups_are_staggered(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """Tiles with as many steps as the ring has stages; the last tile may have one box."""
    for case, staggered in (
        (Case("steps", (5, 40, 9, 10), (136, 40, 3, 3), padding=(1, 1)), True),
        (Case("few_steps", (3, 40, 9, 13), (72, 40, 1, 1)), False),
        (Case("phases", (3, 72, 14, 18), (40, 72, 6, 5), stride=(2, 2), padding=(2, 2)), True),
        (Case("few_taps", (3, 72, 14, 18), (40, 72, 3, 3), stride=(2, 2), padding=(1, 1)), False),
    ):
        for direction, parts in (("forward", 1), ("input_grad", 1), ("forward", 2)):
            wish = {"pieces": 2, "resident": 0, "parts": parts, "filters_last": True}
            said = run(core, case, math, direction, sm_count=1 if parts == 1 else 132, **wish)
            if said is None:
                assert parts > 1
                assert not staggered
            elif parts == 1 and (direction == "input_grad" or case.stride == (1, 1)):
                assert said["staggered"] == staggered, (case, direction, said)
