"""Problems for the pixel engine, and what its own source, run on the host, makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from problems import h200, make_problem
from torch import Tensor

from conv2d_ext.bench.shapes import Shape

PAIR_BYTES = 12  # two columns, three parts
MATH = [("float32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee"), ("float16", "ieee")]

# Small enough to look at every pixel.
HARD = [
    "n1c1h1w1 k1r1s1",
    "n0c8h9w9 k8r3s3 pad1,1,1,1",
    "n2c64h20w20 k64r3s3 pad1,1,1,1",
    "n2c48h23w37 k96r3s3 pad1,1,1,1",
    "n1c32h40w64 k64r1s1",
    "n2c16h9w700 k64r3s3",  # rows longer than a window
    "n1c16h3w2048 k64r3s5 pad1,1,2,2",
    "n1c8h2w1601 k64r1s9 pad0,0,4,4",
    "n1c16h700w2 k64r5s2",  # rows shorter than a warp's pixels
    "n1c16h900w1 k64r7s1 pad3,3,0,0",
    "n40c64h7w7 k64r3s3 pad1,1,1,1",  # several images per tile
    "n70c32h3w4 k64r3s3 pad1,1,1,1",
    "n300c24h2w2 k40r2s2",  # a pixel per image
    "n600c16h1w1 k64r1s1",
    "n9c16h6w6 k64r1s1 stride5x5",  # stride above kernel
    "n3c24h50w41 k64r2s3 stride7x5 pad1,0,0,2",
    "n2c48h23w37 k64r3s5 stride3x2 pad0,1,2,0 dilation2x3",
    "n2c32h56w56 k128r3s3 stride2x2 pad1,1,1,1",
    "n1c64h40w40 k128r3s3 pad12,12,12,12 dilation12x12",
    "n2c16h20w20 k64r4s2 stride2x3 dilation3x2",
    "n2c16h12w16 k64r3s3 pad0,3,5,1",
    "n1c16h6w8 k64r3s3 pad40,2,3,60",  # far more padding than image
    "n3c16h2w2 k64r1s1 stride3x3 pad9,9,9,9",  # almost all of it padding
    "n1c16h4w4 k64r2s2 pad0,0,200,0",
    "n2c16h4w5 k64r7s9 pad3,3,4,4",  # kernel larger than the image
    "n5c24h3w8 k64r11s13 pad9,6,12,7",
    "n2c3h40w40 k64r7s7 stride2x2 pad3,3,3,3",  # taps are part of k
    "n1c3h64w64 k96r11s11 stride4x4 pad2,2,2,2",
    "n4c3h32w32 k64r3s3 stride2x2 pad1,1,1,1",  # and pairs of columns are staged
    "n9c4h12w14 k96r3s3 stride2x2 pad1,1,1,1",
    "n2c1h28w28 k32r5s4 stride1x2 pad2,2,1,1",
    "n1c3h9w700 k64r3s3 stride1x2",
    "n1c2h5w1200 k64r2s7 stride1x4 pad0,1,3,3",
    "n1c3h7w902 k96r7s7 stride2x2 pad3,3,3,3",
    "n1c1h4w2000 k64r4s11 stride3x4 pad2,2,5,5",
    "n1c3h6w1500 k64r5s5 stride2x2 pad2,2,2,2",
    "n2c1h33w65 k128r5s5 pad2,2,2,2",
    "n1c4h30w64 k64r3s3 pad1,1,1,1 dilation2x2",
    "n4c8h16w16 k200r3s2",
    "n2c5h31w29 k70r2s7 stride1x3 pad0,1,6,6",
    "n3c3h70w70 k64r3s3",
    "n2c32h65w67 k64r3s3 pad1,1,1,1",  # large planes of odd size: windows overlap
    "n2c16h64w65 k300r1s1",
    "n3c16h72w72 k64r3s3 pad1,1,1,1",  # large planes of even size: they do not
    "n2c32h14w14 k32r3s3 pad1,1,1,1 groups2",
    "n2c20h15w16 k30r3s3 pad1,1,1,1 groups5",
    "n1c96h12w12 k192r3s3 pad1,1,1,1 groups3",
    "n2c512h7w7 k512r3s3 pad1,1,1,1",  # parts of the reduction
    "n1c37h13w11 k53r3s3 pad1,1,1,1",
]
RANDOM_GROUPS = 20
GROUPS = HARD + [f"random{i}" for i in range(RANDOM_GROUPS)]


@dataclass
class Geometry:
    """A problem and what the engine makes of it."""

    shape: Shape
    problem: Any
    caps: Any
    element: int
    handle: Any
    fit: dict[str, Any]

    @property
    def x(self) -> tuple[int, int, int, int]:
        """Strides (n, c, h, w)."""
        n, c, h, w = self.problem.x_strides.tuple()
        return n, c, h, w

    @property
    def plane(self) -> int:
        return self.shape.P * self.shape.Q

    @property
    def taps(self) -> int:
        return self.shape.R * self.shape.S

    def __str__(self) -> str:
        dtype, precision = self.problem.dtype.name, self.problem.precision.name
        return f"{self.shape.text} {dtype} {precision} strides{self.x} {self.fit}"


@dataclass
class Places:
    """What the kernels compute, of the pixel tiles: all tensors have one row per tile."""

    first: Tensor
    end: Tensor
    image: Tensor
    bases: Tensor  # positions, of both windows' pixels
    sources: Tensor  # offsets of the entries, or -1


def read_numbers(data: bytes) -> Tensor:
    if not data:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(data), dtype=torch.int32).long()


def read_tiles(core: ModuleType, g: Geometry) -> Tensor:
    return read_numbers(core.place_pixels(g.handle)[0]).view(-1, 9)


def read_places(core: ModuleType, g: Geometry) -> Places:
    numbers, bases, sources, _ = map(read_numbers, core.place_pixels(g.handle))
    tiles = numbers.view(-1, 9)
    tiles = tiles[(tiles[:, 5] == 0) & (tiles[:, 8] == 0)]
    first, end, image = (tiles[:, i : i + 1] for i in range(3))
    rows = len(tiles)
    bases = bases.view(rows, 2 * g.fit["window"])
    return Places(first, end, image, bases, sources.view(rows, g.fit["entries"]))


def fit_geometry(core: ModuleType, shape: Shape, problem: Any, caps: Any) -> Geometry | None:
    handle = core.fit_pixels(problem, caps)
    if handle is None:
        return None
    element = 4 if problem.dtype.name == "float32" else 2
    return Geometry(shape, problem, caps, element, handle, core.describe_pixels(handle))


def make_geometry(
    core: ModuleType,
    shape: Shape,
    math: tuple[str, str],
    channels_last: bool,
    caps: Any,
    gaps: tuple[int, int, int] = (0, 0, 0),
) -> Geometry | None:
    """gaps: how much larger, in channels, rows and columns, the tensor is that x is a view of."""
    problem = make_problem(core, shape, "forward", *math, channels_last=channels_last)
    if any(gaps):
        strides = core.channels_last_strides if channels_last else core.contiguous_strides
        problem.x_strides = strides(shape.C + gaps[0], shape.H + gaps[1], shape.W + gaps[2])
    return fit_geometry(core, shape, problem, caps)


def draw_shape(draw: random.Random) -> Shape:
    """A shape with an output, not too large to look at all of it."""
    while True:
        groups = draw.choice([1, 1, 1, 2, 3])
        channels = draw.choice([1, 1, 2, 3, 4, 5, 8, 12, 16, 24, 33, 64, 130])
        filters = draw.choice([1, 7, 16, 40, 64, 96, 130, 300])
        n = draw.choice([1, 1, 2, 3, 8, 33, 150])
        h, w = (draw.choice([1, 2, 3, 5, 7, 8, 14, 16, 23, 32, 50, 67, 80]) for _ in "hw")
        if draw.random() < 0.15:
            h, w = draw.choice([(3, 900), (700, 2), (2, 1536), (11, 403)])
        r, s = (draw.choice([1, 1, 2, 3, 3, 3, 4, 5, 7, 9]) for _ in "rs")
        stride = (draw.choice([1, 1, 1, 2, 3, 5]), draw.choice([1, 1, 1, 2, 3, 4, 6]))
        dilation = (draw.choice([1, 1, 1, 2, 3, 7]), draw.choice([1, 1, 1, 2, 4, 5]))
        most = draw.choice([0, 1, 3, 3, 8, 30])
        top, bottom, left, right = (draw.randint(0, most) for _ in range(4))
        shape = Shape(
            n, channels * groups, h, w, filters * groups, r, s,
            stride, (top, bottom, left, right), dilation, groups,
        )  # fmt: skip
        pixels = shape.N * shape.P * shape.Q
        if min(shape.P, shape.Q) >= 1 and pixels <= 12_000 and pixels * r * s <= 200_000:
            return shape


def small_caps(core: ModuleType) -> Any:
    """Little shared memory, few multiprocessors: other tiles win."""
    caps = h200(core)
    caps.sm_count = 8
    caps.shared_bytes_per_block = 110_000
    return caps


def geometries(core: ModuleType, group: str) -> Iterator[Geometry]:
    """Of a shape, in every math and layout, or of a few random problems."""
    every_caps = [h200(core), small_caps(core)]
    if group.startswith("random"):
        draw = random.Random(group)
        for _ in range(20):
            gaps = (0, 0, 0)
            if draw.random() < 0.3:
                gaps = (draw.choice([0, 4, 3]), draw.choice([0, 2]), draw.choice([0, 1, 4, 8]))
            shape, math = draw_shape(draw), draw.choice(MATH)
            g = make_geometry(core, shape, math, draw.random() < 0.4, draw.choice(every_caps), gaps)
            if g is not None:
                yield g
        return
    for math in MATH:
        for channels_last in (False, True):
            for caps in every_caps:
                g = make_geometry(core, Shape.parse(group), math, channels_last, caps)
                if g is not None:
                    yield g


def tap_distances(core: ModuleType, g: Geometry) -> Tensor:
    """Positions from a pixel's base to each tap, of a chunk's first channel."""
    if g.fit["paired"]:
        pairs, distances = read_distances(core, g)
        found = torch.full((len(pairs),), -1)
        found[pairs] = distances
        lead = g.fit["pair_lead"]
        column = torch.arange(g.shape.S) + lead
        pair = torch.arange(g.shape.R)[:, None] * g.fit["row_pairs"] + column // 2
        return (found[pair] // PAIR_BYTES * 2 + column % 2 - lead).flatten()
    if g.fit["folded"]:
        lanes, distances = read_distances(core, g)
        found = torch.full((g.fit["steps"] * g.fit["step_depth"],), -1)
        found[lanes] = distances
        return found[: g.taps] // (g.element * g.fit["position_pitch"])
    rows = torch.arange(g.shape.R) * (g.shape.dilation[0] if g.fit["bands"] else 1)
    columns = torch.arange(g.shape.S) * g.shape.dilation[1]
    return (rows[:, None] * g.fit["row_pitch"] + columns).flatten()


def read_distances(core: ModuleType, g: Geometry) -> tuple[Tensor, Tensor]:
    """(lane, distance) of all that threads gather; lanes are a chunk's k, in the filters' order.

    Where columns are paired: of pairs of lanes.
    """
    distances = read_numbers(core.place_pixels(g.handle)[3])
    depth = g.fit["table_depth"]
    step, quad, n = torch.meshgrid(
        torch.arange(g.fit["steps"]), torch.arange(4), torch.arange(depth), indexing="ij"
    )
    k = quad + 4 * n if depth == 2 else 2 * quad + n % 2 + 8 * (n // 2)
    return (step * 4 * depth + k).flatten(), distances
