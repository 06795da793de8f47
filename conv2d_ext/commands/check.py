"""convx check: results on this machine against float64."""

from __future__ import annotations

import argparse

from .._text import Progress, show
from ..bench.measure import LAYOUTS
from ..bench.precisions import PRECISIONS, precision_name
from ..bench.shapes import Shape, load_suite, suite_names
from ..check import Finding, check, format_findings
from .options import Commands, add_device, choices, dtype_named, shape


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "check", help="compare output and gradients with float64 on your shapes and device"
    )
    parser.add_argument("shapes", nargs="*", type=shape, help="by name or text; default: a preset")
    parser.add_argument("--preset", choices=suite_names(), default="check")
    parser.add_argument(
        "--precisions",
        type=choices(PRECISIONS),
        help="default: the dtype in the shape's text, or all that the device has",
    )
    parser.add_argument("--layouts", type=choices(LAYOUTS), default=["nchw"])
    add_device(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    shapes = arguments.shapes or load_suite(arguments.preset)
    cases = [
        (shape, precision, layout)
        for shape in shapes
        for precision in arguments.precisions or _precisions(shape, arguments.device.type)
        for layout in arguments.layouts
    ]
    progress = Progress(len(cases))
    findings: list[Finding] = []
    for case in cases:
        findings += check(*case, arguments.device)
        progress.step(" ".join([case[0].name, *case[1:]]))
    show(format_findings(findings))
    return _conclude(findings)


def _precisions(shape: Shape, device: str) -> list[str]:
    if shape.dtype:
        return [precision_name(dtype_named(shape.dtype), "ieee")]
    # The CPU engines have no TF32: it would be float32 a second time.
    return [name for name in PRECISIONS if name != "tf32" or device == "cuda"]


def _conclude(findings: list[Finding]) -> int:
    wrong = [found for found in findings if not found.passed]
    for reason in dict.fromkeys(found.failure for found in wrong if found.failure):
        print(f"failed: {reason}")
    print(f"\n{len(findings) - len(wrong)} of {len(findings)} results are right")
    return 1 if wrong else 0
