"""Benchmark rows as a table, as JSON, and compared with an earlier run."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from .. import _files
from .._load import read_build_info
from .._machine import cpu_name
from .._precision import PRECISIONS
from .._shape import DIRECTION_NAMES, LAYOUT_NAMES, LAYOUTS, Shape
from .._text import format_table, mebibytes_text
from .._user_error import UserError
from .._version import __version__
from ..measuring.case import epilogue_words
from .measure import Row

_PACKAGE = Path(__file__).resolve().parents[1]
_KEY = ("shape", "direction", "precision", "layout", "engine")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The hardware, the versions, and the revision of convx that is measured."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else cpu_name(),
        "threads": torch.get_num_threads(),
        "convx": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "revision": find_revision(_PACKAGE),
        "library_revision": read_build_info(_PACKAGE).get("revision"),
    }


def find_revision(package: Path) -> str | None:
    """The commit that a package folder is of, with "-dirty" behind it where files have changed.

    An installed package has the commit that its libraries were built at. Where neither git nor the
    build knows it, as in a copy of a checkout without its .git, CONVX_REVISION says it.
    """
    if (package.parent / ".git").exists():  # else a checkout around site-packages would answer
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, cwd=package.parent, capture_output=True, text=True, check=True, timeout=10
            )
            return done.stdout.strip()
    return read_build_info(package).get("revision") or os.environ.get("CONVX_REVISION")


def format_rows(rows: Sequence[Row], peer: str) -> str:
    peers = "cublas", "inductor", "unfused"
    others = [name for name in peers if any(_time_of(row, name) for row in rows)]
    header = ["shape", "direction", "precision", "layout", "engine", "ms", "TFLOP/s", "of floor"]
    header += [f"{peer} ms", "ratio", "error", f"{peer} error"]
    header += [word for name in others for word in (f"{name} ms", "ratio")]
    cells = [_cells(row) + [c for name in others for c in _peer_cells(row, name)] for row in rows]
    if any(row.workspace_bytes is not None for row in rows):
        header += ["workspace", f"{peer} workspace"]
        cells = [line + _workspace_cells(row) for line, row in zip(cells, rows, strict=True)]
    return format_table(header, cells)


def _workspace_cells(row: Row) -> list[str]:
    counts = row.workspace_bytes, row.cudnn_workspace_bytes
    return ["-" if count is None else mebibytes_text(count) for count in counts]


def _time_of(row: Row, peer: str) -> float | None:
    return getattr(row, f"{peer}_ms")


def _key(row: Row) -> list[str]:
    """The values that identify a row, in the order of _KEY."""
    added = ["+bias"] * row.bias + epilogue_words(row.residual, row.activation)
    direction = " ".join([DIRECTION_NAMES[row.direction], *added])
    return [row.shape, direction, row.precision, LAYOUT_NAMES[row.layout], row.engine]


def _cells(row: Row) -> list[str]:
    *key, engine = _key(row)
    return [
        *key,
        engine + ("" if row.chosen else " (not chosen)"),
        f"{row.ours_ms:.3f}",
        f"{row.tflops:.2f}",
        f"{row.floor_ms / row.ours_ms:.0%}",
        f"{row.cudnn_ms:.3f}",
        f"{row.ratio:.2f}x",
        f"{row.rel_error:.1e}",
        f"{row.cudnn_rel_error:.1e}",
    ]


def _peer_cells(row: Row, peer: str) -> list[str]:
    time = _time_of(row, peer)
    return ["-", "-"] if time is None else [f"{time:.3f}", f"{time / row.ours_ms:.2f}x"]


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
        words = DIRECTION_NAMES[kind[0]], kind[1], LAYOUT_NAMES[kind[2]]
        lines.append([" ".join(words), str(len(ratios)), f"{geometric_mean(ratios):.2f}x"])
    lines.append(["all", str(len(rows)), f"{geometric_mean(r.ratio for r in rows):.2f}x"])
    return format_table(["geometric mean", "rows", "ratio"], lines)


def format_largest_workspace(rows: Sequence[Row]) -> str:
    """The chosen engines' largest workspace and PyTorch's; empty where they are not known."""
    known = [row for row in rows if row.chosen and row.workspace_bytes is not None]
    if not known:
        return ""
    ours = max(known, key=lambda row: row.workspace_bytes or 0)
    theirs = max(known, key=lambda row: row.cudnn_workspace_bytes or 0)
    return (
        f"largest workspace: convx {_workspace_cells(ours)[0]} ({case_words(ours)}), "
        f"PyTorch {_workspace_cells(theirs)[1]} ({case_words(theirs)})"
    )


def networks_text(row: Row) -> str:
    """The networks that have a row's layer, as in "resnet50 x3, resnext50_32x4d"."""
    return ", ".join(
        name if count == 1 else f"{name} x{count}" for name, count in row.networks.items()
    )


def case_words(row: Row) -> str:
    words = row.shape, DIRECTION_NAMES[row.direction], row.precision, LAYOUT_NAMES[row.layout]
    return " ".join(words)


def write_json(
    path: Path, rows: Sequence[Row], machine: dict[str, Any], extra: dict[str, Any]
) -> None:
    """`extra` is added to the file; "incomplete": True marks an interrupted benchmark."""
    document = {"machine": machine, **extra, "rows": [asdict(row) for row in rows]}
    _files.write_json(path, document)


def read_json(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a file that write_json made, and everything else in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = [_read_row(row) for row in document.pop("rows")]
        if not all(isinstance(document.get(key, {}), dict) for key in ("machine", "ceilings")):
            raise TypeError("the machine or its ceilings are no tables of values")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{path} is not a file that `convx bench --json` wrote: {error!r}"
        raise UserError(problem) from error
    return rows, document


def _read_row(values: dict[str, Any]) -> Row:
    """A row whose values have the types that Row says; the file may have been edited."""
    row = Row(**values)
    for field in fields(Row):
        value = getattr(row, field.name)
        kinds: dict[Any, tuple[type, ...]] = {"str": (str,), "float": (int, float)}
        kinds["dict[str, int]"] = (dict,)
        if not isinstance(value, kinds.get(field.type, (object,))):
            raise TypeError(f"{field.name} is {value!r}")
    Shape.parse(row.text)
    for value, known in (
        (row.direction, DIRECTION_NAMES),
        (row.precision, PRECISIONS),
        (row.layout, LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return row


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with _files.replacing(path) as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows({**asdict(row), "networks": networks_text(row)} for row in rows)


def format_comparison(old_rows: Sequence[Row], rows: Sequence[Row]) -> str:
    """Our time now against our time in an earlier run, for rows that are in both."""
    before = {tuple(_key(row)): row for row in old_rows}
    lines = []
    for row in rows:
        old = before.get(tuple(_key(row)))
        if old is None:
            lines.append([*_key(row), "-", f"{row.ours_ms:.3f}", "new"])
        else:
            change = row.ours_ms / old.ours_ms - 1
            times = f"{old.ours_ms:.3f}", f"{row.ours_ms:.3f}"
            lines.append([*_key(row), *times, f"{change:+.1%}"])
    return format_table([*_KEY, "before ms", "now ms", "change"], lines)
