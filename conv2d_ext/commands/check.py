"""convx check: results on this machine against float64."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict
from typing import Any

from .._files import write_json
from .._interrupts import saving, uninterrupted
from .._precision import PRECISIONS, precision_name
from .._progress import Progress
from .._shape import LAYOUT_NAMES, Shape
from .._text import show
from ..bench.report import describe_machine
from ..check import Finding, check, format_findings
from .options import (
    Commands,
    add_device,
    add_json,
    add_layout,
    add_precision,
    add_shapes,
    dtype_named,
    find_shapes,
)
from .outputs import Incomplete, check_outputs, check_replaceable, save, save_incomplete


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="compare output and gradients with float64 on your shapes and device",
        description="Compute convolutions and their gradients on random numbers, and compare every "
        "element with float64. Status 1 if one is further off than rounding explains.",
    )
    add_shapes(parser, "check")
    add_precision(
        parser, several=True, default="the dtype in the shape's text, or all of the device"
    )
    add_layout(parser, several=True)
    add_device(parser)
    add_json(parser, "all results")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check_outputs(arguments.json)
    check_replaceable(arguments.json, "findings", "check --json")
    cases = [
        (shape, precision, layout)
        for shape in find_shapes(arguments, "check")
        for precision, layout in itertools.product(
            arguments.precision or _precisions(shape, arguments.device.type), arguments.layout
        )
    ]
    machine = describe_machine(arguments.device)
    findings: list[Finding] = []
    with (
        saving(lambda: _save_incomplete(arguments, findings, machine, len(cases))),
        Progress(len(cases)) as progress,
    ):
        for shape, precision, layout in cases:
            label = shape.name or shape.text
            with progress.step(f"{label} {precision} {LAYOUT_NAMES[layout]}"):
                findings += check(shape, precision, layout, arguments.device)
    with uninterrupted():
        _save(arguments, findings, machine)
    return _conclude(findings)


def _precisions(shape: Shape, device: str) -> list[str]:
    if shape.dtype:
        return [precision_name(dtype_named(shape.dtype), "ieee")]
    # The CPU engines have no TF32: it would be float32 a second time.
    return [name for name in PRECISIONS if name != "tf32" or device == "cuda"]


def _save(
    arguments: argparse.Namespace,
    findings: list[Finding],
    machine: dict[str, Any],
    incomplete: Incomplete | None = None,
) -> None:
    rows = [{**asdict(found), "passed": found.passed} for found in findings]
    mark = incomplete.mark if incomplete else {}
    document = {**mark, "machine": machine, "findings": rows}
    save(arguments.json, lambda path: write_json(path, document), incomplete)


def _save_incomplete(
    arguments: argparse.Namespace, findings: list[Finding], machine: dict[str, Any], total: int
) -> None:
    results_per_case = 4
    save_incomplete(
        Incomplete(len(findings) // results_per_case, total, "cases"),
        [arguments.json],
        lambda incomplete: _save(arguments, findings, machine, incomplete),
        lambda: _conclude(findings),
    )


def _conclude(findings: list[Finding]) -> int:
    show(format_findings(findings))
    wrong = [found for found in findings if not found.passed]
    for reason in dict.fromkeys(found.failure for found in wrong if found.failure):
        print(f"failed: {reason}")
    print(f"\n{len(findings) - len(wrong)} of {len(findings)} results are right")
    return 1 if wrong else 0
