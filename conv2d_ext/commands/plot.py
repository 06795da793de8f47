"""convx plot: the pictures of an earlier benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._user_error import UserError
from ..bench.measure import DIRECTIONS, LAYOUTS
from ..bench.plot import write_plot
from ..bench.precisions import PRECISIONS
from ..bench.report import read_json
from .options import Commands, choices


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("plot", help="draw what `convx bench --json` wrote")
    parser.add_argument("results", type=Path, help="the JSON file")
    parser.add_argument("picture", type=Path, help="the file to write: .png, .svg or .pdf")
    parser.add_argument("--precisions", type=choices(PRECISIONS), help="default: all in the file")
    parser.add_argument("--directions", type=choices(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--layouts", type=choices(LAYOUTS), default=list(LAYOUTS))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    rows, about = read_json(arguments.results)
    wanted = arguments.precisions or PRECISIONS
    rows = [
        row
        for row in rows
        if row.precision in wanted
        and row.direction in arguments.directions
        and row.layout in arguments.layouts
    ]
    if not rows:
        raise UserError(f"{arguments.results} has no rows of {', '.join(wanted)}")
    write_plot(arguments.picture, rows, about)
    print(f"wrote {arguments.picture}")
    return 0
