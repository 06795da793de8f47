"""convx explain: which engine a shape gets, and why."""

from __future__ import annotations

import argparse

from .._text import show
from ..bench.measure import PASS_NAMES, explain_shape
from ..bench.shapes import DTYPES
from .options import Commands, add_device, dtype_named, shape

_DIRECTIONS = [*PASS_NAMES.values(), "all"]


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("explain", help="which engine a shape gets, and why")
    parser.add_argument("shape", type=shape, help="a suite's shape by name, or its text")
    parser.add_argument("--direction", choices=_DIRECTIONS, default="forward")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="default: the one in the shape's text, or float32"
    )
    parser.add_argument("--precision", choices=["ieee", "tf32"], default="ieee")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--algorithm", default="auto", help="an engine's name, to force it")
    parser.add_argument("--no-floor", action="store_true", help="do not measure the machine")
    add_device(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    every = arguments.direction == "all"
    directions = list(PASS_NAMES.values()) if every else [arguments.direction]
    explanations = [
        explain_shape(
            arguments.shape,
            precision=arguments.precision,
            direction=direction,
            dtype=dtype_named(arguments.dtype or arguments.shape.dtype or "float32"),
            device=arguments.device,
            channels_last=arguments.channels_last,
            algorithm=arguments.algorithm,
            floor=not arguments.no_floor,
        )
        for direction in directions
    ]
    show("\n\n".join(str(explanation) for explanation in explanations))
    return 1 if any(explanation.error for explanation in explanations) else 0
