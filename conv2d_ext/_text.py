"""Tables and quantities, as reports and the command line print them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import Any

# Wider than any table: the terminal wraps long lines, where rich would cut off figures.
_ANY_WIDTH = 10_000
# A speed-up, such as 1.25x.
_RATIO = re.compile(r"\d+\.\d+x")


class Table(str):
    """A table in plain text that remembers its cells, so that rich can draw it on a terminal."""

    header: list[str]
    rows: list[list[str]]
    left: int


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """A table in plain text; the first `left` columns are left-aligned, others right-aligned."""
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
    table = Table("\n".join(out))
    table.header, table.rows, table.left = lines[0], lines[1:], left
    return table


def show(*parts: object) -> None:
    """Prints texts and tables, one below the other: in colour, with tables by rich, where rich is
    installed and standard output is a terminal, and in plain text elsewhere."""
    console = _find_console() if sys.stdout.isatty() else None
    for part in parts:
        if console is None:
            print(part)
        elif isinstance(part, Table):
            console.print(_rich_table(part))
        else:
            console.print(str(part), markup=False, emoji=False)


def _find_console() -> Any:
    try:
        return import_module("rich.console").Console(width=_ANY_WIDTH)
    except ImportError:
        return None


def _rich_table(table: Table) -> Any:
    """rich's table of the same cells, with columns as wide as their longest cell."""
    text = import_module("rich.text").Text
    out = import_module("rich.table").Table(
        box=import_module("rich.box").SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, cell in enumerate(table.header):
        out.add_column(text(cell), justify="left" if i < table.left else "right", no_wrap=True)
    for row in table.rows:
        out.add_row(*(text(cell, style=_style(cell)) for cell in row))
    return out


def _style(cell: str) -> str:
    if cell in ("PASS", "FAIL"):
        return "green" if cell == "PASS" else "bold red"
    if _RATIO.fullmatch(cell):
        return "green" if float(cell[:-1]) >= 1 else "red"
    return ""


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()
) -> str:
    """A table for a notebook; `styles` holds the CSS of each row, or an empty text."""
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


def times_text(times: tuple[float, float]) -> str:
    """Milliseconds with PyTorch and with convx, and their ratio."""
    before, after = times
    return f"{before:.3f} -> {after:.3f} ms ({before / after:.2f}x)"
