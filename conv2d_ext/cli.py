"""The command line: ``convx`` or ``python -m conv2d_ext``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ._user_error import UserError
from ._version import __version__
from .commands import bench, check, demo, explain, info, plot, scan, step, tune

_COMMANDS = (info, check, explain, bench, plot, scan, step, tune, demo)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except UserError as error:
        print(f"convx: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convx", description=__doc__)
    parser.add_argument("--version", action="version", version=f"convx {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
