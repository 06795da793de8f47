"""Benchmark rows as a table, as JSON, and compared with an earlier run."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from .measure import Row

_KEY = ("shape", "direction", "precision", "layout", "engine")


def describe_machine(device: torch.device) -> dict[str, Any]:
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "convx": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "python": platform.python_version(),
        "revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """The checkout's revision, where the benchmark runs in one."""
    try:
        command = ["git", "describe", "--always", "--dirty"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(out)


def format_rows(rows: Sequence[Row], peer: str) -> str:
    header = ["shape", "direction", "precision", "layout", "engine", "ms", "TFLOP/s", "of floor"]
    header += [f"{peer} ms", "ratio", "error", f"{peer} error"]
    return format_table(
        header,
        (
            [
                row.shape,
                row.direction,
                row.precision,
                row.layout,
                row.engine + ("" if row.chosen else " (not chosen)"),
                f"{row.ours_ms:.3f}",
                f"{row.tflops:.2f}",
                f"{row.floor_ms / row.ours_ms:.0%}",
                f"{row.cudnn_ms:.3f}",
                f"{row.ratio:.2f}x",
                f"{row.rel_error:.1e}",
                f"{row.cudnn_rel_error:.1e}",
            ]
            for row in rows
        ),
    )


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else float("nan")


def format_means(rows: Sequence[Row]) -> str:
    """Geometric means of the chosen engines' ratios, per direction and precision, and over all."""
    rows = [row for row in rows if row.chosen]
    kinds = sorted({(row.direction, row.precision, row.layout) for row in rows})
    lines = []
    for kind in kinds:
        ratios = [r.ratio for r in rows if (r.direction, r.precision, r.layout) == kind]
        lines.append([" ".join(kind), str(len(ratios)), f"{geometric_mean(ratios):.2f}x"])
    lines.append(["all", str(len(rows)), f"{geometric_mean(r.ratio for r in rows):.2f}x"])
    return format_table(["geometric mean", "rows", "ratio"], lines)


def write_json(
    path: Path, rows: Sequence[Row], machine: dict[str, Any], extra: dict[str, Any]
) -> None:
    document = {"machine": machine, **extra, "rows": [asdict(row) for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def format_comparison(old_path: Path, rows: Sequence[Row]) -> str:
    """Our time now against our time in an earlier run, for rows that are in both."""
    old_rows = json.loads(old_path.read_text())["rows"]
    before = {tuple(row[key] for key in _KEY): row for row in old_rows}
    lines = []
    for row in rows:
        old = before.get(tuple(getattr(row, key) for key in _KEY))
        if old is None:
            lines.append([*(getattr(row, key) for key in _KEY), "-", f"{row.ours_ms:.3f}", "new"])
        else:
            change = row.ours_ms / old["ours_ms"] - 1
            times = f"{old['ours_ms']:.3f}", f"{row.ours_ms:.3f}"
            lines.append([*(getattr(row, key) for key in _KEY), *times, f"{change:+.1%}"])
    return format_table([*_KEY, "before ms", "now ms", "change"], lines)


class Progress:
    """A bar on standard error; nothing where that is not a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def step(self, label: str) -> None:
        self.done += 1
        if not sys.stderr.isatty():
            return
        filled = 30 * self.done // max(self.total, 1)
        bar = "#" * filled + "." * (30 - filled)
        sys.stderr.write(f"\r[{bar}] {self.done}/{self.total} {label:<48.48}")
        if self.done == self.total:
            sys.stderr.write("\n")
        sys.stderr.flush()
