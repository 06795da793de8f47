"""convx info: versions, libraries, devices, engines."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._files import replacing
from .._text import show
from ..info import collect, format_info, to_json
from .options import Commands
from .outputs import check_outputs, check_replaceable


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "info",
        help="versions, libraries, devices, engines, host time",
        description="Say everything about this installation that a report of a problem needs: "
        "versions, libraries, devices, engines and the host time of a call.",
    )
    parser.add_argument(
        "--json", nargs="?", const=True, metavar="FILE", help="print JSON, or write it to this file"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.json) if isinstance(arguments.json, str) else None
    check_outputs(path)
    check_replaceable(path, "convx", "info --json")
    info = collect()
    if path:
        with replacing(path) as file:
            file.write(to_json(info) + "\n")
    elif arguments.json:
        print(to_json(info))
    else:
        show(format_info(info))
    return 0
