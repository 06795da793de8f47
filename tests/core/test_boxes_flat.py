"""Flat tiles of cuda_boxes: consecutive pixels of all rows and images, which TMA reads in im2col
mode. Emulated as in test_boxes_kernels.py."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import reference
import torch
from cases import Case
from kernel_tester import Guarded, make_problem
from problems import h200
from test_boxes_kernels import CASES, MATH, PHASES, check_not_finite, run

# Extents that leave much of every box outside of the target, which is less than a tile, or several
# tiles with an incomplete last one.
FLAT = [
    Case("thirteen", (2, 24, 13, 21), (72, 24, 3, 3), padding=(1, 1)),
    Case("several_images_in_a_tile", (5, 40, 5, 7), (24, 40, 3, 3), padding=(1, 1)),
    Case("less_than_a_tile", (1, 72, 7, 7), (40, 72, 3, 3), padding=(1, 1), bias=False),
    Case("one_by_seven", (2, 24, 9, 19), (16, 24, 1, 7), padding=(0, 3)),
    Case("seven_by_one", (3, 16, 17, 11), (24, 16, 7, 1), padding=(3, 0)),
    Case("dilated", (2, 24, 15, 17), (16, 24, 3, 3), padding=(2, 4), dilation=(2, 3)),
    Case("four_sides", (3, 16, 9, 11), (16, 16, 3, 4), padding=(0, 2, 3, 1)),
    Case("more_padding_than_kernel", (2, 16, 6, 9), (8, 16, 2, 1), padding=(3, 2, 1, 4)),
    Case("no_padding", (2, 40, 11, 13), (136, 40, 3, 3)),
    Case("many_chunks", (1, 200, 11, 15), (72, 200, 3, 3), padding=(1, 1)),
    Case("odd_channels_and_filters", (2, 37, 9, 13), (53, 37, 3, 3), padding=(1, 1)),
    Case("few_odd_filters", (2, 24, 9, 17), (7, 24, 3, 3), padding=(1, 1)),
    Case("filters_in_pieces", (2, 24, 9, 17), (134, 24, 3, 3), padding=(1, 1)),
]
STRIDED = [
    Case("stride_of_two", (2, 24, 25, 27), (40, 24, 3, 3), stride=(2, 2), padding=(1, 1)),
    Case("unequal_strides", (3, 16, 19, 29), (24, 16, 3, 5), stride=(3, 2), padding=(2, 0, 1, 3)),
    Case("pixels_two_apart", (3, 72, 13, 22), (72, 72, 1, 1), stride=(2, 2)),
    Case("dilated_and_strided", (2, 16, 23, 26), (16, 16, 3, 3), stride=(2, 2), dilation=(3, 2)),
    Case("eight_apart", (1, 16, 1, 900), (68, 16, 1, 1), stride=(1, 8)),
]


@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", FLAT + STRIDED + CASES, ids=str)
def test_flat_tiles(core: ModuleType, case: Case, math: tuple[torch.dtype, str]) -> None:
    """By TMA and, from unaligned addresses, by lanes. The last tile may have one piece only."""
    directions = ["forward"] + ["input_grad"] * (case.stride == (1, 1))
    for direction in directions:
        for before, pieces, resident, filters in (
            (0, 0, -1, 0),
            (0, 2, 0, 128),
            (0, 2, 1, 64),
            (1, 1, 0, 0),
            (1, 2, 0, 64),
        ):
            wish = {"before": before, "pieces": pieces, "resident": resident, "filters": filters}
            said = run(core, case, math, direction, flat=1, descending=pieces > 1, **wish)
            if said is None:  # resident filters do not fit
                assert resident == 1
                continue
            pixels = case.y if direction == "forward" else case.x
            count = pixels[0] * pixels[2] * pixels[3]
            targets = -(-pixels[1] // said["filters"])
            assert said["flat"]
            assert said["box"] == (min(128, count), 1, 1)
            assert said["tiles"] == -(-count // (128 * said["pieces"])) * targets


@pytest.mark.parametrize(("parts", "pieces"), [(2, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("math", MATH, ids=str)
@pytest.mark.parametrize("case", [FLAT[0], FLAT[9], STRIDED[0]], ids=str)
def test_reductions_are_split(
    core: ModuleType, case: Case, math: tuple[torch.dtype, str], parts: int, pieces: int
) -> None:
    """Slices begin and end within a tap; with few multiprocessors, only the last wave is split."""
    for sm_count, before in ((132, 0), (132, 1), (3, 0)):
        wish = {"parts": parts, "pieces": pieces, "before": before, "sm_count": sm_count}
        said = run(core, case, math, flat=1, **wish)
        assert said["flat"]
        assert said["parts"] > 1
        if case is FLAT[0] and parts == 4 and sm_count == 3:
            assert (said["tiles"], said["whole_tiles"]) == (5, 3)


@pytest.mark.parametrize("math", MATH, ids=str)
def test_tiles_in_turn(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    for resident, pieces in ((0, 1), (1, 1), (0, 2)):
        wish = {"resident": resident, "pieces": pieces, "filters": 64, "in_turn": 1, "sm_count": 1}
        said = run(core, FLAT[8], math, flat=1, **wish)
        assert said["in_turn"]
        assert said["tiles"] > said["grid"]


def test_flat_tiles_are_chosen_where_they_are_less_work(core: ModuleType) -> None:
    """They are one wave of 132 multiprocessors where 136 boxes are two."""
    for case, flat, tiles in (
        (Case("one_wave", (1, 8, 100, 168), (8, 8, 3, 3), padding=(1, 1)), True, 132),
        (Case("many_images", (13, 8, 7, 7), (8, 8, 3, 3), padding=(1, 1)), True, 5),
        (Case("strided", (1, 8, 29, 33), (8, 8, 3, 3), stride=(2, 2), padding=(1, 1)), True, 2),
        # Boxes of 2 x 2 pixels of 32 images have no pixels left over.
        (Case("as_many_boxes", (32, 8, 14, 14), (8, 8, 3, 3), padding=(1, 1)), False, 49),
        (Case("one_box", (2, 8, 7, 9), (8, 8, 3, 3), padding=(1, 1)), False, 1),
    ):
        said = run(core, case, MATH[1], pieces=1, sm_count=132)
        assert (said["flat"], said["tiles"]) == (flat, tiles), case
        assert run(core, case, MATH[1], pieces=1, sm_count=132, flat=0)["tiles"] >= tiles


@pytest.mark.parametrize(
    ("case", "direction", "can_be_flat"),
    [
        # Offsets of taps are at most 255, and corners are from -128 to 127.
        (
            Case(
                "offset_255",
                (1, 8, 3, 270),
                (8, 8, 1, 2),
                padding=(0, 0, 0, 128),
                dilation=(1, 255),
            ),
            "forward",
            True,
        ),
        (
            Case(
                "offset_256",
                (1, 8, 3, 270),
                (8, 8, 1, 2),
                padding=(0, 0, 0, 129),
                dilation=(1, 256),
            ),
            "forward",
            False,
        ),
        (Case("padding_128", (1, 8, 3, 9), (8, 8, 1, 9), padding=(0, 0, 128, 0)), "forward", True),
        (Case("padding_129", (1, 8, 3, 9), (8, 8, 1, 9), padding=(0, 0, 129, 0)), "forward", False),
        (Case("ends_128_before", (2, 8, 131, 9), (8, 8, 129, 1)), "forward", True),
        (Case("ends_129_before", (2, 8, 132, 9), (8, 8, 130, 1)), "forward", False),
        *((case, "input_grad", False) for case in PHASES[:2]),
    ],
    ids=str,
)
def test_limits(core: ModuleType, case: Case, direction: str, can_be_flat: bool) -> None:
    for math in MATH[:2]:
        said = run(core, case, math, direction, flat=1)
        assert (said is not None) == can_be_flat
        assert run(core, case, math, direction) is not None


def part_of(shape: tuple[int, ...], larger: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The first elements of a larger channels_last tensor, and that tensor."""
    whole = Guarded(torch.full(larger, torch.nan, dtype=dtype), channels_last=True)
    n, c, h, w = shape
    return whole.tensor[:n, :c, :h, :w], whole


@pytest.mark.parametrize("math", MATH, ids=str)
def test_pixels_apart(core: ModuleType, math: tuple[torch.dtype, str]) -> None:
    """The source may have gaps anywhere; the target's pixels must be equally spaced."""
    case = Case("apart", (3, 24, 9, 13), (40, 24, 3, 3), padding=(1, 1))
    x, w, b = case.tensors(math[0])
    source, _ = part_of(case.x, (3, 32, 11, 14), math[0])
    source.copy_(x)
    assert b is not None
    for larger, flat in (((3, 48, 9, 13), True), ((3, 40, 9, 14), False), ((3, 40, 10, 13), False)):
        target, whole = part_of(case.y, larger, math[0])
        problem = make_problem(core, case, math[0])
        problem.precision = getattr(core.Precision, math[1])
        problem.x_strides = core.Strides(*source.stride())
        problem.y_strides = core.Strides(*target.stride())
        pointers = [t.data_ptr() for t in (source, w, target, b)]
        said = core.run_boxes(problem, h200(core), *pointers, flat=1)
        assert (said is not None) == flat
        if said is None:
            continue
        reference.check_forward(target.contiguous(), case, x, w, b, tf32=math[1] == "tf32")
        assert whole.is_whole()
        outside = torch.ones(larger, dtype=torch.bool)
        outside[:, :40] = False
        assert whole.tensor[outside].isnan().all()


@pytest.mark.parametrize("operand", ["x", "w"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("math", MATH, ids=str)
def test_nan_and_infinity_stay_where_they_belong(
    core: ModuleType, math: tuple[torch.dtype, str], value: float, operand: str
) -> None:
    """Also where one tile has the ends of two images."""
    case = Case("not_finite", (4, 24, 7, 9), (40, 24, 3, 3), padding=(1, 1))
    x, w, b = case.tensors(math[0])
    tensor = x if operand == "x" else w
    tensor[1, 2, 0, 0] = tensor[2, 3, -1, -1] = value
    check_not_finite(core, case, math, (x, w, b), channels_last=True, parts=1, flat=1)
