"""Tables and quantities, as reports and the command line print them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in plain text. The first `left` columns start at their left edge, others end at
    their right one."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "  ".join("-" * width for width in widths).rstrip())
    return "\n".join(out)


def show(report: object) -> None:
    """Prints a report: in colour where rich is installed and standard output is a terminal."""
    console = _find_console() if sys.stdout.isatty() else None
    if console is None:
        print(report)
    else:
        console.print(str(report), markup=False, emoji=False)


def _find_console() -> Any:
    try:
        return import_module("rich.console").Console(soft_wrap=True)  # lines stay lines
    except ImportError:
        return None


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()
) -> str:
    """The same for a notebook; styles holds a row's CSS, where it has any."""
    out = ["<table><thead><tr>", *(f"<th>{escape(cell)}</th>" for cell in header)]
    out.append("</tr></thead><tbody>")
    for i, row in enumerate(rows):
        style = f' style="{styles[i]}"' if i < len(styles) and styles[i] else ""
        cells = (f'<td style="text-align: left">{escape(cell)}</td>' for cell in row)
        out.append(f"<tr{style}>{''.join(cells)}</tr>")
    return "".join([*out, "</tbody></table>"])


def time_text(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f} ms" if microseconds >= 1e3 else f"{microseconds:.1f} us"


def mebibytes_text(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


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
