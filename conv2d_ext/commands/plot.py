"""convx plot: the pictures of an earlier benchmark."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .._interrupts import uninterrupted
from .._user_error import UserError
from ..bench.plot import require_drawing, write_plot
from ..bench.report import read_json
from .options import Commands, add_direction, add_layout, add_precision
from .outputs import check_outputs


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "plot",
        help="draw what `convx bench --json` wrote",
        description="Draw the speed-ups and the roofline of an earlier benchmark, with matplotlib.",
    )
    parser.add_argument("results", type=Path, help="the file that `convx bench --json` wrote")
    parser.add_argument("picture", type=Path, help="the file to write: .png, .svg or .pdf")
    add_direction(parser, None, training_steps=True)
    add_precision(parser, several=True, default="all in the file")
    add_layout(parser, several=True, default=None)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    require_drawing(arguments.picture)
    check_outputs(arguments.picture)
    if os.path.realpath(arguments.picture) == os.path.realpath(arguments.results):
        raise UserError(f"the picture would be written over {arguments.results}")
    rows, about = read_json(arguments.results)
    for option in ("direction", "precision", "layout"):
        wanted = getattr(arguments, option)
        rows = [row for row in rows if wanted is None or getattr(row, option) in wanted]
        if not rows:
            raise UserError(f"{arguments.results} has no rows of {', '.join(wanted or ['any'])}")
    if about.get("incomplete"):
        print(f"note: {arguments.results} is an incomplete benchmark", file=sys.stderr)
    with uninterrupted():
        write_plot(arguments.picture, rows, about)
    print(f"wrote {arguments.picture}")
    return 0
