"""Where convx stands on the layers of real networks: how many are behind, and which cost most."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from .._precision import PRECISIONS
from .._shape import DIRECTION_NAMES, LAYOUT_NAMES, LAYOUTS, Shape
from .._text import Table, format_table
from .measure import Row
from .report import geometric_mean, networks_text

# A layer is behind if its ratio is below the first of these; the others say how far.
BEHIND = (0.97, 0.95, 0.85)
MOST_LOSSES = 10


def _by_kind(rows: Sequence[Row]) -> Iterator[tuple[list[str], list[Row]]]:
    """The rows of chosen engines for each layout, precision and direction, with these words."""
    chosen = [row for row in rows if row.chosen]
    for kind in itertools.product(LAYOUTS, PRECISIONS, DIRECTION_NAMES):
        found = [row for row in chosen if (row.layout, row.precision, row.direction) == kind]
        if found:
            layout, precision, direction = kind
            yield [LAYOUT_NAMES[layout], precision, DIRECTION_NAMES[direction]], found


def format_standing(rows: Sequence[Row]) -> Table:
    """Geometric mean, numbers of layers behind, and the worst, for each layout, precision,
    direction and batch, and for all batches together."""
    lines = []
    for words, found in _by_kind(rows):
        batches: dict[int, list[Row]] = {}
        for row in found:
            batches.setdefault(Shape.parse(row.text).N, []).append(row)
        parts = [(str(batch), batches[batch]) for batch in sorted(batches)]
        if len(parts) > 1:
            parts.append(("all", found))
        lines += [[*words, batch, *_standing_cells(part)] for batch, part in parts]
    header = ["layout", "precision", "direction", "batch", "layers", "geometric mean"]
    header += [*(f"below {ratio}" for ratio in BEHIND), "worst", "worst layer"]
    return format_table(header, lines, left=3)


def _standing_cells(rows: Sequence[Row]) -> list[str]:
    worst = min(rows, key=lambda row: row.ratio)
    behind = [sum(row.ratio < ratio for row in rows) for ratio in BEHIND]
    mean = geometric_mean(row.ratio for row in rows)
    return [str(len(rows)), f"{mean:.2f}x", *map(str, behind), f"{worst.ratio:.2f}x", worst.shape]


def largest_losses(rows: Sequence[Row], count: int = MOST_LOSSES) -> list[Row]:
    """The rows that lose most time, which is ours minus PyTorch's, the largest loss first. Rows
    that lose none are left out."""
    losing = [row for row in rows if row.ours_ms > row.cudnn_ms]
    return sorted(losing, key=lambda row: row.cudnn_ms - row.ours_ms)[:count]


def format_losses(rows: Sequence[Row], peer: str) -> list[str]:
    """The layers that lose most time in one call, for each layout, precision and direction."""
    lines = [
        [
            row.shape,
            networks_text(row),
            *words,
            row.engine,
            f"{row.ours_ms:.4f}",
            f"{row.cudnn_ms:.4f}",
            f"{row.ours_ms - row.cudnn_ms:.4f}",
            f"{row.ratio:.2f}x",
        ]
        for words, found in _by_kind(rows)
        for row in largest_losses(found)
    ]
    if not lines:
        return [f"no layer is slower than {peer}'s"]
    header = ["layer", "networks", "layout", "precision", "direction", "engine", "ms"]
    header += [f"{peer} ms", "loses ms", "ratio"]
    heading = f"layers that lose most time, at most {MOST_LOSSES} for each layout, precision and "
    return [f"{heading}direction", format_table(header, lines, left=6)]
