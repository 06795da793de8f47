"""Tiles of target pixels: every tap of every pixel finds, staged, what the definition reads.

Tiles, places and tables are computed by the kernels' own source, run on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from pixel_geometry import (
    GROUPS,
    MATH,
    PAIR_BYTES,
    Geometry,
    fit_geometry,
    geometries,
    make_geometry,
    read_distances,
    read_places,
    read_tiles,
    tap_distances,
)
from problems import h200, make_problem

from conv2d_ext.bench.shapes import Shape


@pytest.mark.parametrize("group", GROUPS)
def test_tiles_are_all_there(core: ModuleType, group: str) -> None:
    """Tiles are all pairs of pixels and filters, and all parts of the reduction, once."""
    for g in geometries(core, group):
        fit, tiles = g.fit, read_tiles(core, g)
        filter_tiles = fit["filter_tiles"] * g.shape.groups
        assert len(tiles) == fit["tiles"] == fit["pixel_tiles"] * filter_tiles * fit["splits"], g
        if g.shape.N == 0:
            continue
        of_group = g.shape.K // g.shape.groups
        assert (fit["filter_tiles"] - 1) * fit["filters"] < of_group, g
        assert fit["filter_tiles"] * fit["filters"] >= of_group, g
        pixels = {(first, end) for first, end, *_ in tiles.tolist()}
        filters = {(t // fit["filter_tiles"], t % fit["filter_tiles"]) for t in range(filter_tiles)}
        filters = {(group, tile * fit["filters"]) for group, tile in filters}
        chunks = [i * fit["chunks"] // fit["splits"] for i in range(fit["splits"] + 1)]
        assert all(start < end for start, end in pairwise(chunks)), g
        assert len(pixels) == fit["pixel_tiles"], g
        found: Counter[tuple[int, ...]] = Counter()
        for first, end, _, group_of, filter, filter_tile, chunk, chunk_end, split in tiles.tolist():
            assert filter_tile == group_of * fit["filter_tiles"] + filter // fit["filters"], g
            assert (chunk, chunk_end) == (chunks[split], chunks[split + 1]), g
            found[first, end, group_of, filter, split] += 1
        wanted = {
            (*p, *f, split): 1 for p in pixels for f in filters for split in range(fit["splits"])
        }
        assert found == wanted, g


@pytest.mark.parametrize("group", GROUPS)
def test_pixels_are_stored_once(core: ModuleType, group: str) -> None:
    """As pixel_store.cuh does it: windows that overlap store whole sectors of a filter's plane."""
    for g in geometries(core, group):
        places, window, step = read_places(core, g), g.fit["window"], g.fit["window_step"]
        pixels = g.shape.N * g.plane
        first = (places.first + torch.tensor([0, step])).flatten()
        count = (places.end - first.view(-1, 2)).clamp(max=window).flatten()
        first, count = first[count > 0], count[count > 0]
        local = first % g.plane
        sector = 8 if g.fit["splits"] > 1 else 32 // g.element
        overlapping = step < window
        if overlapping:
            _, _, row, column = g.problem.y_strides.tuple()
            assert (row, column) == (g.shape.Q, 1), g
            assert g.fit["per_image"], g
        for aligned in range(sector if overlapping else 1):  # what a filter's plane may start at
            low, high = torch.zeros_like(first), count
            if overlapping:
                to_sector = -(aligned + local) % sector
                low = torch.where(local > 0, to_sector, 0)
                high = torch.minimum(high, step + to_sector)
            high = torch.maximum(high, low)
            change = torch.zeros(pixels + window + 1, dtype=torch.int64)
            change.index_add_(0, first + low, torch.ones_like(first))
            change.index_add_(0, first + high, -torch.ones_like(first))
            stored = change.cumsum(0)
            assert (stored[:pixels] == 1).all(), (aligned, g)
            assert (stored[pixels:] == 0).all(), (aligned, g)


def check_places(core: ModuleType, g: Geometry) -> None:
    fit, shape, places = g.fit, g.shape, read_places(core, g)
    if len(places.first) == 0:
        return
    window, vector = fit["window"], fit["vector"]
    xn, _, xh, xw = g.x
    assert fit["positions"] == fit["entries"] * vector, g
    pixel = torch.cat([torch.arange(window), torch.arange(window) + fit["window_step"]])
    pixel = torch.minimum(places.first + pixel, places.end - 1)
    image, rest = pixel // g.plane, pixel % g.plane
    assert (places.image == places.first.clamp(max=shape.N * g.plane - 1) // g.plane).all(), g

    position = places.bases[:, :, None] + tap_distances(core, g)
    assert position.min() >= 0, g
    assert position.max() < fit["positions"], g
    tiles = torch.arange(len(position))[:, None, None]
    found = places.sources[tiles, position // vector]
    found = torch.where(found < 0, found, found + position % vector * xw)

    tap = torch.arange(g.taps)
    row = (rest // shape.Q)[:, :, None] * shape.stride[0] - shape.pad[0]
    row = row + tap // shape.S * shape.dilation[0]
    column = (rest % shape.Q)[:, :, None] * shape.stride[1] - shape.pad[2]
    column = column + tap % shape.S * shape.dilation[1]
    inside = (row >= 0) & (row < shape.H) & (column >= 0) & (column < shape.W)
    wanted = (image - places.image)[:, :, None] * xn + row * xh + column * xw
    wanted = torch.where(inside, wanted, -1)
    wrong = (found != wanted).nonzero()
    if len(wrong):
        tile, i, t = wrong[0].tolist()
        pytest.fail(
            f"{len(wrong)} places are wrong; the first: tile {tile}, pixel {pixel[tile, i]}, tap "
            f"{t}, position {position[tile, i, t]}: source {found[tile, i, t]}, not "
            f"{wanted[tile, i, t]}; {g}"
        )


@pytest.mark.parametrize("group", GROUPS)
def test_taps_find_what_the_definition_reads(core: ModuleType, group: str) -> None:
    for g in geometries(core, group):
        check_places(core, g)


@pytest.mark.parametrize("math", MATH, ids=str)
def test_any_strides(core: ModuleType, math: tuple[str, str]) -> None:
    """Transposed images, and tensors expanded along an axis."""
    shape = Shape.parse("n12c16h24w16 k64r3s3 stride1x2 pad1,2,0,3")
    strides = [(6144, 384, 1, 24), (0, 384, 16, 1), (384, 0, 16, 1), (256, 16, 0, 1)]
    strides += [(384, 24, 1, 0), (16, 1, 0, 0), (0, 1, 256, 16), (1, 12, 192, 4608)]
    for n, c, h, w in strides:
        problem = make_problem(core, shape, "forward", *math)
        problem.x_strides = core.Strides(n, c, h, w)
        g = fit_geometry(core, shape, problem, h200(core))
        assert g is not None
        check_places(core, g)


@pytest.mark.parametrize(
    ("text", "more_channels"),
    [
        ("n600c512h100w100 k64r1s1 stride100x100", 0),
        ("n16c64h7w7 k64r3s3 pad1,1,1,1", 10_000_000),  # some channels of a larger tensor
    ],
)
def test_images_of_a_tile_may_lie_far_apart(
    core: ModuleType, text: str, more_channels: int
) -> None:
    """A tile of small outputs looks at many images: offsets fit in 32 bits, or no tile does."""
    gaps = (more_channels, 0, 0)
    g = make_geometry(core, Shape.parse(text), MATH[2], False, h200(core), gaps)
    if g is not None:
        check_places(core, g)


@pytest.mark.parametrize("group", GROUPS)
def test_copies_stay_inside_the_source(core: ModuleType, group: str) -> None:
    """Also those that no tap looks at; and they are aligned, as far as x is."""
    for g in geometries(core, group):
        places, run = read_places(core, g), g.fit["run"]
        xn, xc, xh, xw = g.x
        offset, tile = places.sources, places.image.expand_as(places.sources)
        offset, tile = offset[offset >= 0], tile[offset >= 0]
        assert (tile + offset // xn < g.shape.N).all(), g
        within = offset % xn
        assert (within // xh < g.shape.H).all(), g
        assert (within % xh % xw == 0).all(), g
        assert (within % xh // xw + g.fit["vector"] <= g.shape.W).all(), g
        assert (offset % run == 0).all(), g
        channels = g.shape.C // g.shape.groups
        assert xn % run == 0, g
        assert channels * xc % run == 0, g
        assert g.fit["copy_source"] % run == 0 or g.fit["entry_copies"] == 1, g
        assert g.fit["chunk_channels"] * xc % run == 0, g
        assert channels % g.fit["copy_channels"] == 0, g
        assert g.fit["copy_source"] == g.fit["copy_channels"] * xc, g


@pytest.mark.parametrize("group", GROUPS)
def test_folded_taps_are_gathered_in_the_order_of_filters(core: ModuleType, group: str) -> None:
    for g in geometries(core, group):
        if not g.fit["folded"] or g.fit["paired"]:
            continue
        lanes, distances = read_distances(core, g)
        assert sorted(lanes.tolist()) == list(range(g.fit["steps"] * g.fit["step_depth"])), g
        channel, tap = lanes // g.taps, lanes % g.taps
        row = tap // g.shape.S * (g.shape.dilation[0] if g.fit["bands"] else 1)
        position = row * g.fit["row_pitch"] + tap % g.shape.S * g.shape.dilation[1]
        wanted = channel * g.fit["channel_pitch"] + position * g.fit["position_pitch"]
        there = channel < g.fit["chunk_channels"]
        assert torch.equal(distances, torch.where(there, wanted * g.element, -1)), g
        assert there.sum() == g.fit["chunk_channels"] * g.taps, g
        # Only the last step asks whether a k stands for something.
        assert (lanes[~there] // g.fit["step_depth"] == g.fit["steps"] - 1).all(), g


@pytest.mark.parametrize("group", GROUPS)
def test_pairs_of_taps_are_gathered_in_the_order_of_filters(core: ModuleType, group: str) -> None:
    for g in geometries(core, group):
        fit = g.fit
        if not fit["paired"]:
            continue
        pairs, distances = read_distances(core, g)
        assert sorted(pairs.tolist()) == list(range(fit["steps"] * fit["step_depth"] // 2)), g
        of_row = fit["row_pairs"]
        assert of_row == (fit["pair_lead"] + g.shape.S + 1) // 2, g
        channel, row = pairs // of_row // g.shape.R, pairs // of_row % g.shape.R
        position = row * (g.shape.dilation[0] if fit["bands"] else 1) * fit["row_pitch"]
        wanted = (channel * fit["channel_pitch"] + position) // 2 + pairs % of_row
        there = channel < fit["chunk_channels"]
        assert torch.equal(distances, torch.where(there, wanted * PAIR_BYTES, 0)), g
        # Whole pairs are staged, and each pixel's first tap is on the same side of one.
        assert fit["vector"] % 2 == fit["row_pitch"] % 2 == fit["channel_pitch"] % 2 == 0, g
        assert (read_places(core, g).bases % 2 == fit["pair_lead"]).all(), g


def check_shared_memory(g: Geometry) -> None:
    fit = g.fit
    barriers = 8 * 2 * (fit["source_stages"] + fit["filter_stages"])
    assert barriers <= fit["barrier_bytes"], g
    tables = 4 * (fit["steps"] * 4 * fit["table_depth"] + 2 * fit["window"] + fit["entries"])
    assert fit["barrier_bytes"] + tables <= fit["staging_offset"], g
    staging = 2 * fit["store_filters"] * fit["staging_pitch"] * 4
    assert fit["staging_offset"] % 16 == 0, g
    assert fit["staging_offset"] + staging <= fit["source_offset"], g
    assert fit["source_offset"] % 16 == fit["source_stage_bytes"] % 16 == 0, g
    sources = fit["source_stages"] * fit["source_stage_bytes"]
    assert fit["source_stages"] >= 2, g
    assert fit["source_offset"] + sources <= fit["filter_offset"], g
    assert fit["filter_offset"] % 1024 == fit["step_bytes"] % 1024 == 0, g
    assert fit["filter_stage_bytes"] == fit["stage_steps"] * fit["step_bytes"], g
    filters = fit["filter_stages"] * fit["filter_stage_bytes"]
    stages = -(-fit["steps"] // fit["stage_steps"]) * fit["chunks"]
    # Waiting for a second stage before the first is given back would be for ever.
    assert fit["filter_stages"] >= (stages if fit["resident"] else 2), g
    # The kernel moves its start up to the next multiple of 1024.
    assert fit["filter_offset"] + filters + 1023 <= fit["shared_bytes"], g
    assert fit["shared_bytes"] <= g.caps.shared_bytes_per_block, g
    assert fit["packed_bytes"] + fit["partial_bytes"] <= g.caps.workspace_limit, g


def check_stage(g: Geometry) -> None:
    """Copies fill a stage without touching each other, each channel where it is gathered."""
    fit, run = g.fit, g.fit["run"]
    entry = torch.arange(fit["entries"])[:, None, None] * fit["entry_elements"]
    copy = torch.arange(fit["entry_copies"])[:, None] * fit["copy_shared"]
    written = entry + copy + torch.arange(run)
    stage = fit["source_stage_bytes"] // (PAIR_BYTES // 2 if fit["paired"] else g.element)
    assert written.max() < stage, g
    assert torch.bincount(written.flatten()).max() == 1, g
    assert (written[..., 0] % run == 0).all(), g
    assert fit["entry_copies"] * fit["copy_channels"] == fit["chunk_channels"], g
    if fit["channels_last"]:
        gathered = written.flatten(1)
    else:  # [entry][channel][position of the entry]
        gathered = written.transpose(1, 2).flatten(0, 1)
    position = torch.arange(fit["positions"])[:, None] * fit["position_pitch"]
    channel = torch.arange(fit["chunk_channels"]) * fit["channel_pitch"]
    assert torch.equal(gathered, position + channel), g
    if fit["channels_last"] and g.element == 2 and not fit["folded"]:
        # Pairs of channels are gathered as words.
        assert fit["position_pitch"] % 2 == 0, g


@pytest.mark.parametrize("group", GROUPS)
def test_shared_memory(core: ModuleType, group: str) -> None:
    for g in geometries(core, group):
        check_shared_memory(g)
        check_stage(g)


def find_rows_of_eight(core: ModuleType, g: Geometry) -> set[int]:
    """Where eight neighbours that a warp gathers at once begin, modulo all banks, in elements."""
    if g.fit["folded"] or g.fit["channels_last"] or g.shape.stride[1] != 1:
        return set()
    bases = read_places(core, g).bases.view(-1, 8)
    in_row = (bases == bases[:, :1] + torch.arange(8)).all(dim=1)
    return set((bases[in_row, 0] % (128 // g.element)).tolist())


@pytest.mark.parametrize("group", GROUPS)
def test_a_warp_gathers_from_different_banks(core: ModuleType, group: str) -> None:
    for g in geometries(core, group):
        apart = (1 if g.problem.precision.name == "tf32" else 2) * g.fit["channel_pitch"]
        for start in find_rows_of_eight(core, g):
            for tap in range(4 // g.element):  # one that is even, and one that is odd
                elements = [
                    start + tap + pixel + quad * apart for pixel in range(8) for quad in range(4)
                ]
                words = {element * g.element // 4 for element in elements}
                assert len({word % 32 for word in words}) == len(words), g
                assert len(words) == 32 or g.element == 2, g


def describe_ways(core: ModuleType, g: Geometry) -> Iterator[str]:
    fit = g.fit
    staged = "bands" if fit["bands"] else "segments"
    depth = "paired" if fit["paired"] else "folded" if fit["folded"] else "dense"
    yield f"{staged} of {'channels_last' if fit['channels_last'] else 'planes'}, {depth}"
    yield f"{staged} of {'an image' if fit['per_image'] else 'all images'}"
    yield f"{staged}, {fit['vector']} at a time"
    yield f"{g.problem.dtype.name} {g.problem.precision.name}"
    if fit["window_step"] < fit["window"]:
        yield "windows overlap"
    if fit["splits"] > 1:
        yield "parts of the reduction"
    if fit["resident"]:
        yield "resident filters"
    if find_rows_of_eight(core, g):
        yield "eight in a row"


def test_the_problems_reach_every_way(core: ModuleType) -> None:
    """Or the tests above would say less than they seem to."""
    reached = Counter(
        way for group in GROUPS for g in geometries(core, group) for way in describe_ways(core, g)
    )
    wanted = {"windows overlap", "parts of the reduction", "resident filters", "eight in a row"}
    wanted |= {f"{dtype} {precision}" for dtype, precision in MATH}
    for staged in ("bands", "segments"):
        wanted |= {f"{staged} of {scope}" for scope in ("an image", "all images")}
        wanted |= {f"{staged}, {vector} at a time" for vector in (1, 2, 4, 8)}
        wanted |= {f"{staged} of planes, {depth}" for depth in ("dense", "folded", "paired")}
        wanted.add(f"{staged} of channels_last, dense")
    assert set(reached) == wanted
    rare = {way: count for way, count in reached.items() if count < 10}
    assert not rare
