"""Check, explain, measure and tune convx, the 2-D convolution for PyTorch, on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ._interrupts import Terminated, sigterm_raises
from ._ops import says_out_of_memory
from ._user_error import UserError
from ._version import __version__
from .commands import bench, check, demo, explain, info, plot, scan, step, tune
from .commands.options import Parser, one_line

_COMMANDS = (info, check, explain, bench, plot, scan, step, tune, demo)

# Exit statuses besides 0; a shell gives a command that a signal ended 128 and the signal's number.
_FAILED, _USAGE, _INTERRUPTED, _TERMINATED = 1, 2, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    name = f"convx {arguments.command}"
    try:
        with sigterm_raises():
            status: int = arguments.run(arguments)
            sys.stdout.flush()
            return status
    except UserError as error:
        print(f"{name}: error: {one_line(str(error))}", file=sys.stderr)
        return _USAGE
    except Terminated:
        print(f"{name}: terminated", file=sys.stderr)
        return _TERMINATED
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more, as in `convx info | head`. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except OSError as error:
        print(f"{name}: error: {one_line(str(error))}", file=sys.stderr)
        return _FAILED
    except RuntimeError as error:
        if not says_out_of_memory(error) and "DefaultCPUAllocator" not in str(error):
            raise
        print(f"{name}: error: out of memory: {one_line(str(error))}", file=sys.stderr)
        return _FAILED


def _parser() -> Parser:
    parser = Parser(
        prog="convx",
        description=__doc__,
        epilog="Exit status: 0 if all is well; 1 if a result is wrong, a requirement is not met or "
        "the work failed; 2 if an argument is wrong; 130 if interrupted by Ctrl-C, with what was "
        "done so far saved under a name that says incomplete.",
    )
    parser.add_argument("--version", action="version", version=f"convx {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
