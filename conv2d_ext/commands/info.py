"""convx info: versions, libraries, devices, engines."""

from __future__ import annotations

import argparse

from .._text import show
from ..info import collect, format_info, to_json
from .options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("info", help="versions, libraries, devices, engines, host time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    info = collect()
    if arguments.json:
        print(to_json(info))
    else:
        show(format_info(info))
    return 0
