"""convx explain: which engine a shape gets, and why."""

from __future__ import annotations

import argparse

from .._precision import dtype_of, precision_argument
from .._shape import PASS_NAMES
from .._text import show
from .._user_error import UserError
from ..explain import explain_shape
from .options import (
    Commands,
    add_device,
    add_direction,
    add_dtype,
    add_layout,
    add_precision,
    check_engine,
    dtype_named,
    engines_text,
    shape,
)


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="which engine a shape gets, and why",
        description="List the engines that can compute a convolution, with their predicted times, "
        "and say which one runs it and why. Nothing is computed. Status 1 if no engine can, or if "
        "the one of --algorithm refuses.",
    )
    parser.add_argument(
        "shape",
        type=shape,
        help="a preset's shape by name, such as seed80, or any shape as text, such as "
        '"n8c32h64w64 k64r3s3 pad1,1,1,1"',
    )
    add_direction(parser, "forward")
    add_precision(parser, several=False, default="the dtype in the shape's text, or ieee")
    add_dtype(parser)
    add_layout(parser)
    parser.add_argument(
        "--channels-last",
        dest="layout",
        action="store_const",
        const="nhwc",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--algorithm",
        default="auto",
        metavar="NAME",
        help=f"auto, or an engine to force: {engines_text()} (default: auto)",
    )
    parser.add_argument(
        "--no-floor",
        action="store_true",
        help="do not measure the machine, which the lower bound of the time is computed from",
    )
    add_device(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check_engine(arguments.algorithm, arguments.device)
    dtype = dtype_named(arguments.dtype or arguments.shape.dtype or "float32")
    precision = arguments.precision or "ieee"
    if precision not in ("ieee", "tf32"):
        if (arguments.dtype or arguments.shape.dtype) and dtype != dtype_of(precision):
            raise UserError(f"the shape is {dtype}, but --precision is {precision}")
        dtype = dtype_of(precision)
    explanations = [
        explain_shape(
            arguments.shape,
            precision=precision_argument(precision),
            direction=PASS_NAMES[direction],
            dtype=dtype,
            device=arguments.device,
            channels_last=arguments.layout == "nhwc",
            algorithm=arguments.algorithm,
            floor=not arguments.no_floor,
        )
        for direction in arguments.direction
    ]
    show("\n\n".join(str(explanation) for explanation in explanations))
    return 1 if any(explanation.error for explanation in explanations) else 0
