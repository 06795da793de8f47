"""Pictures of benchmark rows: how much faster each shape is, and how near to the machine's limits.

matplotlib draws them, an extra of the package that is imported only here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .._files import replacing
from .._precision import dtype_of
from .._shape import DIRECTION_NAMES, Shape, passes_of
from .._user_error import UserError
from .measure import Row
from .report import geometric_mean

_COLOURS = {"fwd": "#3b6fb6", "dgrad": "#e08a2e", "wgrad": "#4f9d69", "train": "#7d5ba6"}
_WORDS = {
    "fwd": "forward",
    "dgrad": "input gradient",
    "wgrad": "weight gradient",
    "train": "training step",
}
_PRECISION_WORDS = {
    "ieee": 'float32, strict (precision="ieee")',
    "tf32": "float32 with TF32, PyTorch's default",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp64": "float64",
}
_LAYOUT_WORDS = {"nchw": "NCHW", "nhwc": "channels_last"}
# Text stays text in SVG, and two runs write the same file.
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "convx", "font.size": 9, "axes.titlesize": 10}
_ROOF_WIDTH = 5.5  # inches
_SUFFIXES = (".png", ".svg", ".pdf")


def require_drawing(path: Path) -> Any:
    """matplotlib's pyplot, drawing to files only. UserError if it is not installed, or if the
    picture's format is unknown."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UserError(f"cannot draw {path}: its name must end in {', '.join(_SUFFIXES)}")
    try:
        import_module("matplotlib").use("Agg")
    except ImportError as error:
        problem = "drawing needs matplotlib, which is not installed: pip install 'conv2d-ext[plot]'"
        raise UserError(problem) from error
    return import_module("matplotlib.pyplot")


def write_plot(path: Path, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Draws the chosen engines' rows, a line of pictures per precision and layout.

    `about` has the other contents of the benchmark's JSON: the machine and its ceilings.
    """
    plt = require_drawing(path)
    rows = [row for row in rows if row.chosen]
    kinds = list(dict.fromkeys((row.precision, row.layout) for row in rows))
    if not kinds:
        raise UserError("there is nothing to draw: no row is of the engine that would be chosen")
    most = max(len({row.shape for row in rows if _kind(row) == kind}) for kind in kinds)
    size = (_ROOF_WIDTH + min(12.0, max(6.0, 0.42 * most)), 4.4 * len(kinds))
    with plt.rc_context(_SETTINGS):
        figure, axes = plt.subplots(
            len(kinds),
            2,
            figsize=size,
            squeeze=False,
            layout="constrained",
            width_ratios=[size[0] - _ROOF_WIDTH, _ROOF_WIDTH],
        )
        for kind, (bars, roof) in zip(kinds, axes, strict=True):
            some = [row for row in rows if _kind(row) == kind]
            _draw_speedups(bars, some, about)
            _draw_roofline(roof, some, about)
        machine = about.get("machine", {})
        figure.suptitle(
            f"convx {machine.get('convx', '')} on {machine.get('device', 'this machine')}, "
            f"torch {machine.get('torch', '')}, revision {machine.get('revision', 'unknown')}"
        )
        suffix = path.suffix.lower()
        dated = {"Date": None} if suffix == ".svg" else None
        with replacing(path, binary=True) as file:
            figure.savefig(file, format=suffix[1:], dpi=150, metadata=dated)
        plt.close(figure)


def _kind(row: Row) -> tuple[str, str]:
    return row.precision, row.layout


def _peer(about: dict[str, Any]) -> str:
    return "cuDNN" if about.get("machine", {}).get("cudnn") else "PyTorch"


def _directions(rows: Sequence[Row]) -> list[str]:
    present = {row.direction for row in rows}
    return [direction for direction in DIRECTION_NAMES if direction in present]


def _draw_speedups(axes: Any, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Bars from the line "as fast as the other", up where convx is faster."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    directions = _directions(rows)
    width = 0.8 / len(directions)
    for i, direction in enumerate(directions):
        mine = [row for row in rows if row.direction == direction]
        places = [shapes.index(row.shape) + (i + 0.5) * width - 0.4 for row in mine]
        heights = [row.ratio - 1 for row in mine]
        mean = geometric_mean(row.ratio for row in mine)
        label = f"{_WORDS[direction]}, mean {mean:.2f}x"
        axes.bar(places, heights, width, bottom=1, color=_COLOURS[direction], label=label)
        timed = [(at, row) for at, row in zip(places, mine, strict=True) if row.inductor_ms]
        if timed:
            ratios = [(row.inductor_ms or 0.0) / row.ours_ms for _, row in timed]
            style = {"color": "black", "marker": "_", "linestyle": "none", "zorder": 3}
            words = "against inductor" if i == 0 else None
            axes.plot([at for at, _ in timed], ratios, label=words, **style)
    axes.axhline(1, color="black", linewidth=1)
    _scale_speedups(axes, [row.ratio for row in rows])
    names = [shape.replace(" ", "\n") for shape in shapes]
    axes.set_xticks(range(len(shapes)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.6, len(shapes) - 0.4)
    axes.set_ylabel(f"times as fast as {_peer(about)}")
    precision, layout = _kind(rows[0])
    mean = geometric_mean(row.ratio for row in rows)
    words = _PRECISION_WORDS.get(precision, precision)
    where = f"{words}, {_LAYOUT_WORDS[layout]}"
    axes.set_title(f"{where}: {mean:.2f}x {_peer(about)} in the geometric mean")
    columns = len(directions) if len(shapes) > 18 else 1
    axes.legend(loc="best", ncols=columns, fontsize=8, framealpha=0.9)


def _scale_speedups(axes: Any, ratios: Sequence[float]) -> None:
    """Logarithmic: half as fast is as far down as twice as fast is up."""
    axes.set_yscale("log", base=2)
    low, high = min(0.5, *ratios) / 1.15, max(2.0, *ratios) * 1.6  # room for the legend
    axes.set_ylim(low, high)
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ticks = [2.0**power for power in powers if power % (1 + len(powers) // 10) == 0]
    axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.axhspan(low, 1, color="#c0392b", alpha=0.06, zorder=0)
    corner = {"transform": axes.transAxes, "color": "#c0392b", "fontsize": 8}
    axes.text(0.006, 0.02, "convx is slower", **corner)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_roofline(axes: Any, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Speed over arithmetic intensity, under the limits of the machine."""
    points = [(*_place(row), row) for row in rows]
    for direction in _directions(rows):
        mine = [point for point in points if point[2].direction == direction]
        colour, words = _COLOURS[direction], _WORDS[direction]
        xs = [x for x, _, _ in mine]
        axes.scatter(xs, [y for _, y, _ in mine], s=26, color=colour, label=words, zorder=3)
        theirs = [y / row.ratio for _, y, row in mine]
        axes.scatter(xs, theirs, s=26, facecolors="none", edgecolors=colour, zorder=2)
    axes.scatter([], [], s=26, facecolors="none", edgecolors="gray", label=_peer(about))
    axes.set_xscale("log")
    axes.set_yscale("log")
    xs = [x for x, _, _ in points]
    left, right = min(xs) / 2, max(xs) * 2
    ceilings = about.get("ceilings", {})
    rate, memory = ceilings.get(rows[0].precision), ceilings.get("bytes_per_s")
    if rate and memory:
        cache = ceilings.get("cache_bytes_per_s", memory)
        roof = _draw_roof(axes, rate, cache, (left, right), color="black", linewidth=1.5)
        if cache > memory:
            style = {"color": "black", "linewidth": 1, "linestyle": "--"}
            _draw_roof(axes, rate, memory, (left, right), label="if nothing is cached", **style)
        axes.fill_between(*roof, max(roof[1]) * 10, color="gray", alpha=0.12, zorder=0)
        lowest = min(min(y, y / row.ratio) for _, y, row in points)
        axes.set_ylim(min(lowest / 2, roof[1][0] / 2), max(roof[1]) * 2)
        limits = f"{rate / 1e12:.3g} TFLOP/s, {memory / 1e9:.4g} GB/s"
        limits += f", cached {cache / 1e9:.4g} GB/s" if cache > memory else ""
        axes.set_title(f"roofline: at most {limits}")
    axes.set_xlim(left, right)
    axes.set_xlabel("flops per byte that has to be moved")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.3, which="major")
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)


def _draw_roof(
    axes: Any, rate: float, bandwidth: float, span: tuple[float, float], **style: Any
) -> tuple[list[float], list[float]]:
    """The line that flops per second cannot exceed, and its corners."""
    left, right = span
    xs = sorted({left, min(max(rate / bandwidth, left), right), right})
    ys = [min(rate, x * bandwidth) / 1e12 for x in xs]
    axes.plot(xs, ys, zorder=1, **style)
    return xs, ys


def _place(row: Row) -> tuple[float, float]:
    """Intensity and TFLOP/s, counting only the flops and bytes that no engine can leave out."""
    shape = Shape.parse(row.text)
    moved = shape.least_elements(row.direction) * dtype_of(row.precision).itemsize
    flops = len(passes_of(row.direction)) * shape.least_flops
    return flops / moved, flops / row.ours_ms / 1e9
