"""Windows of a flattened image: every tap of every pixel reads what the definition reads."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from cases import CASES, Case
from problems import h200, make_problem

from conv2d_ext.bench.shapes import Shape, load_suite

# Shapes for which different ways to cut the line win, small enough to look at every pixel.
MORE = [
    "n2c16h9w700 k64r3s3",  # rows longer than a window
    "n2c32h8w600 k64r5s9 pad2,2,4,4 dilation2x3",  # pairs of rows, a dilation apart
    "n3c64h20w20 k64r3s3 pad1,1,1,1",  # several rows per window
    "n9c64h7w7 k64r3s3 pad1,1,1,1",  # several images per window
    "n2c48h23w37 k64r3s3 stride2x2 pad1,1,1,1",
    "n2c48h23w37 k64r3s5 stride3x2 pad0,1,2,0 dilation2x3",
    "n1c64h40w40 k128r3s3 pad12,12,12,12 dilation12x12",
    "n2c3h40w40 k64r7s7 stride2x2 pad3,3,3,3",
    "n2c512h20w20 k512r1s1",  # both warpgroups on one window
    "n1c64h10w300 k256r3s3",
    "n2c64h12w32 k128r3s3 pad1,1,1,1",  # windows of two rows
]


ALIGNMENT = 8  # of the positions that copies of a line start at


def shape_of(case: Case) -> Shape:
    n, c, h, w = case.x
    k, _, r, s = case.w
    return Shape(n, c, h, w, k, r, s, case.stride, case.pad4, case.dilation, case.groups, case.name)


def locate(fit: dict[str, Any], position: int) -> tuple[int, int, int, int]:
    """(image, strip, row, column) of a position of the line."""
    position, column = divmod(position, fit["pitch"])
    position, row = divmod(position, fit["rows"])
    image, strip = divmod(position, fit["strips"])
    return image, strip, row, column


def windows(fit: dict[str, Any]) -> Iterator[tuple[int, int, int, bool]]:
    """(tile's first position, window's first, its offset in the tile, if it ends with its row)"""
    count = 2 if fit["filter_groups"] == 1 else 1
    for tile in range(fit["pixel_tiles"]):
        if fit["pair_rows"] == 0:
            first = tile * fit["window_step"] * count
        else:
            rest, window = divmod(tile, fit["column_windows"])
            image, pair = divmod(rest, fit["pairs_per_image"])
            block, within = divmod(pair, fit["pair_rows"])
            row = block * 2 * fit["pair_rows"] + within
            first = (image * fit["rows"] + row) * fit["pitch"] + window * fit["window_step"]
        for i in range(count):
            position = first + i * fit["second_window"]
            yield first, position, i * fit["second_offset"], fit["pair_rows"] != 0


def source_of(fit: dict[str, Any], shape: Shape, first: int, place: int) -> tuple[int, int, int]:
    """(image, row, column) that a place of a tile holds; outside the image it holds zero.

    first: where copies start, the last multiple of ALIGNMENT before the tile.
    """
    segment, within = divmod(place, fit["segment_length"])
    shift, row_phase, column_phase, _ = fit["segments"][segment]
    image, strip, row, column = locate(fit, first + shift + within)
    y = (row + fit["row_base"]) * shape.stride[0] + row_phase
    x = strip * fit["strip_columns"] + column + fit["column_base"]
    return image, y, x * shape.stride[1] + column_phase


def check(fit: dict[str, Any], shape: Shape) -> None:
    top, _, left, _ = shape.pad
    inside = lambda n, y, x: n < shape.N and 0 <= y < shape.H and 0 <= x < shape.W  # noqa: E731
    seen = set()
    for first, position, offset, ends_with_row in windows(fit):
        lead = first % ALIGNMENT
        first, offset = first - lead, offset + lead
        for shift, *_ in fit["segments"]:
            assert shift % ALIGNMENT == 0
            assert first + shift + fit["segment_length"] <= fit["line_positions"]
        start_row = locate(fit, position)[2]
        for j in range(fit["columns"]):
            n, strip, p, column = locate(fit, position + j)
            q = strip * fit["strip_columns"] + column
            is_target = n < shape.N and p < shape.P and column < fit["strip_columns"]
            if not is_target or q >= shape.Q or (ends_with_row and p != start_row):
                continue
            seen.add((n, p, q))
            for tap, tap_position in enumerate(fit["tap_positions"]):
                found = source_of(fit, shape, first, tap_position + offset + j)
                r, s = divmod(tap, shape.S)
                y = p * shape.stride[0] - top + r * shape.dilation[0]
                x = q * shape.stride[1] - left + s * shape.dilation[1]
                wanted = (n, y, x)
                assert found == wanted or not (inside(*found) or inside(*wanted)), (n, p, q, r, s)
    assert len(seen) == shape.N * shape.P * shape.Q


MATH = [("float32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")]
SMALL = [shape_of(case) for case in CASES if case.x[0] > 0] + [Shape.parse(text) for text in MORE]
SMALL = [shape for shape in SMALL if shape.N * shape.P * shape.Q * shape.R * shape.S < 200_000]


@pytest.mark.parametrize(("dtype", "precision"), MATH)
@pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.name or shape.text)
def test_taps_read_what_they_should(
    core: ModuleType, shape: Shape, dtype: str, precision: str
) -> None:
    fit = core.fit_window(make_problem(core, shape, "forward", dtype, precision), h200(core))
    if fit is not None:
        check(fit, shape)


@pytest.mark.parametrize(("dtype", "precision"), MATH)
def test_dense_shapes_have_a_tile(core: ModuleType, dtype: str, precision: str) -> None:
    caps = h200(core)
    for shape in load_suite("full"):
        fit = core.fit_window(make_problem(core, shape, "forward", dtype, precision), caps)
        if shape.groups == 1 and shape.C >= 16 and shape.name != "kb87pw":
            assert fit is not None, shape.name  # there one image's line is above the workspace
        if fit is not None:
            assert fit["shared_bytes"] <= caps.shared_bytes_per_block
            assert 1 <= fit["splits"] <= fit["chunks"]


def test_the_cases_cut_the_line_in_every_way(core: ModuleType) -> None:
    """Or the test above would say less than it seems to."""
    fits = [
        core.fit_window(make_problem(core, shape, "forward", *math), h200(core))
        for shape in SMALL
        for math in MATH
    ]
    fits = [fit for fit in fits if fit is not None]
    assert any(fit["pair_rows"] for fit in fits)
    assert any(fit["strips"] > 1 for fit in fits)
    assert any(not fit["by_rows"] and len(fit["segments"]) > 1 for fit in fits)
    assert {fit["filter_groups"] for fit in fits} == {1, 2}
