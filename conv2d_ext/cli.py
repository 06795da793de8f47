"""The command line: ``convx`` or ``python -m conv2d_ext``."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from . import conv2d
from .bench import report
from .bench.measure import (
    DIRECTIONS,
    LAYOUTS,
    PRECISIONS,
    TOLERANCES,
    Case,
    Row,
    explain_shape,
    measure,
)
from .bench.shapes import find_shape, load_suite, suite_names
from .bench.timing import Timer, host_us, measure_ceilings


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    return arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convx", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="the three seed workloads: engine, error, time")
    demo.add_argument("--device", default=None)
    demo.set_defaults(run=_demo)

    show = commands.add_parser("explain", help="which engine a shape gets, and why")
    show.add_argument("shape", help="a suite's shape by name, or its text")
    show.add_argument("--direction", default="forward")
    show.add_argument("--dtype", default="float32")
    show.add_argument("--precision", default="ieee")
    show.add_argument("--device", default=None)
    show.set_defaults(run=_explain)

    bench = commands.add_parser("bench", help="measure against PyTorch's own convolution")
    bench.add_argument("shapes", nargs="*", help="shapes by name or text; default: a suite")
    bench.add_argument("--suite", choices=suite_names(), help="default: full, or cpu without a GPU")
    bench.add_argument("--directions", type=_choices(DIRECTIONS), default=list(DIRECTIONS))
    bench.add_argument("--precisions", type=_choices(PRECISIONS), default=["ieee"])
    bench.add_argument("--layouts", type=_choices(LAYOUTS), default=["nchw"])
    bench.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["auto"],
        help="auto (the heuristic's choice) or names, separated by commas",
    )
    bench.add_argument("--cold", action="store_true", help="empty the L2 cache before each call")
    bench.add_argument("--seconds", type=float, default=0.5, help="time spent on each measurement")
    bench.add_argument("--device", default=None)
    bench.add_argument("--threads", type=int, help="CPU threads")
    bench.add_argument("--json", type=Path, help="write all rows to this file")
    bench.add_argument("--compare", type=Path, help="show changes against this earlier file")
    bench.add_argument("--require", type=float, help="fail if a chosen engine's ratio is below")
    bench.add_argument("--require-mean", type=float, help="fail if their mean is below")
    bench.set_defaults(run=_bench)
    return parser


def _choices(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        words = text.split(",")
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return words

    return parse


def _device(name: str | None) -> torch.device:
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def _peer(device: torch.device) -> str:
    return "cuDNN" if device.type == "cuda" else "PyTorch"


def _demo(arguments: argparse.Namespace) -> int:
    device = _device(arguments.device)
    shapes = load_suite("seed" if device.type == "cuda" else "seed_cpu")
    precisions = ["ieee", "tf32"] if device.type == "cuda" else ["ieee"]
    cases = [
        Case(shape, direction, precision, "nchw")
        for shape in shapes
        for precision in precisions
        for direction in DIRECTIONS
    ]
    rows = _measure_all(cases, ["auto"], Timer(device), measure_ceilings(device))
    machine = report.describe_machine(device)
    if device.type == "cuda":
        print(f"the three workloads on {machine['device']}, against cuDNN")
    else:
        print(f"the three workloads, reduced for a CPU, on {machine['threads']} threads")
    print(report.format_rows(rows, _peer(device)))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    explanation = explain_shape(
        find_shape(arguments.shape),
        precision=arguments.precision,
        direction=arguments.direction,
        dtype=getattr(torch, arguments.dtype),
        device=_device(arguments.device),
    )
    print(explanation)
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = _device(arguments.device)
    suite = arguments.suite or ("full" if device.type == "cuda" else "cpu")
    shapes = [find_shape(text) for text in arguments.shapes] or load_suite(suite)
    product = itertools.product(
        shapes, arguments.precisions, arguments.layouts, arguments.directions
    )
    cases = [Case(shape, d, p, layout) for shape, p, layout, d in product]
    ceilings = measure_ceilings(device)
    timer = Timer(device, arguments.cold, arguments.seconds)
    rows = _measure_all(cases, arguments.engines, timer, ceilings)
    host = _host_times(device)
    print(report.format_rows(rows, _peer(device)))
    print()
    print(report.format_means(rows))
    print(
        f"\nhost time of a call under no_grad: convx {host['ours_us']:.1f} us, "
        f"F.conv2d {host['torch_us']:.1f} us"
    )
    if arguments.json:
        extra = {"cold": arguments.cold, "host": host, "ceilings": ceilings}
        report.write_json(arguments.json, rows, report.describe_machine(device), extra)
    if arguments.compare:
        print("\n" + report.format_comparison(arguments.compare, rows))
    return _judge(rows, arguments)


def _judge(rows: list[Row], arguments: argparse.Namespace) -> int:
    failed = False
    for row in rows:
        if not row.rel_error <= TOLERANCES[row.precision]:
            print(f"wrong: {row.shape} {row.direction} {row.precision} error {row.rel_error:.1e}")
            failed = True
        if arguments.require is not None and row.chosen and row.ratio < arguments.require:
            print(f"below --require: {row.shape} {row.direction} {row.precision} {row.ratio:.2f}x")
            failed = True
    mean = report.geometric_mean(row.ratio for row in rows if row.chosen)
    if arguments.require_mean is not None and mean < arguments.require_mean:
        print(f"below --require-mean: the geometric mean is {mean:.2f}x")
        failed = True
    return 1 if failed else 0


def _measure_all(
    cases: list[Case], engines: list[str], timer: Timer, ceilings: dict[str, float]
) -> list[Row]:
    progress = report.Progress(len(cases))
    rows = []
    for case in cases:
        try:
            rows += measure(case, engines, timer, ceilings)
        except KeyboardInterrupt:  # what has been measured is worth showing
            print(f"interrupted after {progress.done} of {len(cases)} cases", file=sys.stderr)
            break
        progress.step(f"{case.shape.name} {case.direction} {case.precision} {case.layout}")
    return rows


def _host_times(device: torch.device) -> dict[str, float]:
    """A convolution so small that only the way to it takes time."""
    x = torch.randn(1, 4, 8, 8, device=device)
    w = torch.randn(4, 4, 3, 3, device=device)
    with torch.no_grad():
        return {
            "ours_us": host_us(lambda: conv2d(x, w, padding=1)),
            "torch_us": host_us(lambda: F.conv2d(x, w, padding=1)),
        }


if __name__ == "__main__":
    sys.exit(main())
