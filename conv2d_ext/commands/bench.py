"""convx bench: measure against PyTorch's own convolution."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .._fused import ACTIVATIONS
from .._interrupts import saving, uninterrupted
from .._precision import precision_name
from .._shape import Shape
from .._text import show
from .._user_error import UserError
from ..bench import report
from ..bench.accuracy import WRONG_ABOVE
from ..bench.host import format_host, host_times, measure_host
from ..bench.measure import Row, able_engines, explain_passes, measure_all
from ..bench.peers import PEERS
from ..bench.plot import require_drawing, write_plot
from ..bench.shapes import NETWORK_PRESETS
from ..bench.standing import format_losses, format_standing
from ..measuring.case import Case, join_engines, torch_precision
from ..measuring.roofline import measure_ceilings
from ..measuring.timing import Timer
from .options import (
    Commands,
    add_device,
    add_direction,
    add_json,
    add_layout,
    add_precision,
    add_seconds,
    add_shapes,
    check_engine,
    choices,
    dtype_named,
    engines_text,
    find_shapes,
    peer_name,
    positive_int,
    positive_number,
    thread_count,
)
from .outputs import Incomplete, check_outputs, check_replaceable, save, save_incomplete

# Whether rows have a residual, by the value of --residual.
RESIDUALS = {"no": (False,), "yes": (True,), "both": (False, True)}


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure against PyTorch's own convolution",
        description="Measure convolutions, ours and PyTorch's own (autotuned cuDNN on a GPU), and "
        "compare them: time, distance from the machine's limits, error. Ctrl-C saves the rows that "
        "are done to files named *.incomplete.*.",
    )
    add_shapes(parser, "full, or cpu without a GPU")
    parser.add_argument(
        "--batch", type=positive_int, metavar="N", help="images, instead of the shapes' own number"
    )
    parser.add_argument(
        "--sample",
        type=positive_int,
        metavar="N",
        help="measure only N of the shapes, evenly spaced and always the same ones",
    )
    add_direction(parser, "all", training_steps=True)
    add_precision(parser, several=True, default="the dtype in the shape's text, or ieee")
    add_layout(parser, several=True)
    parser.add_argument(
        "--bias",
        action="store_true",
        help="add a bias in the forward pass; its gradient is part of a training step",
    )
    parser.add_argument(
        "--activation",
        choices=[name for name in ACTIVATIONS if name != "none"],
        default="none",
        metavar="NAME",
        help="activate the output of forward passes in the same call; PyTorch does it in an "
        "operator of its own, and so does convx in one more time of each row",
    )
    parser.add_argument(
        "--residual",
        nargs="?",
        choices=RESIDUALS,
        default="no",
        const="yes",
        help="the same for a tensor that is added to the output; `both` measures without and with "
        "one",
    )
    parser.add_argument(
        "--vs",
        type=choices(PEERS),
        default=["cudnn"],
        metavar="NAMES",
        help="cudnn (PyTorch's own convolution, which is always measured), cublas (the matrix "
        "product that a 1x1 layer is), inductor (torch.compile); several separated by commas "
        "(default: cudnn)",
    )
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["auto"],
        metavar="NAMES",
        help=f"auto (what a call gets), {engines_text()}; NAME:VARIANT for one of an engine's "
        "variants, NAME:* for all; several separated by commas (default: auto)",
    )
    parser.add_argument(
        "--tune", action="store_true", help="let auto be what tune() measures to be the fastest"
    )
    parser.add_argument(
        "--host",
        action="store_true",
        help="measure the host's time per call over the shapes as a network's layers, instead of "
        "the time of each: function and module, forward and backward, with and without autocast",
    )
    parser.add_argument("--cold", action="store_true", help="empty the L2 cache before each call")
    parser.add_argument(
        "--graphs",
        action="store_true",
        help="time CUDA graphs of ten calls, for layers of a few microseconds (on a GPU)",
    )
    add_seconds(parser, 0.5, "measurement")
    add_device(parser)
    parser.add_argument(
        "--threads", type=thread_count, metavar="N", help="CPU threads (default: PyTorch's choice)"
    )
    add_json(parser, "all rows")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all rows to this file")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw speed-ups and the roofline to this file: .png, .svg or .pdf",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="show how times changed since this earlier file of --json",
    )
    parser.add_argument(
        "--require",
        type=positive_number,
        metavar="RATIO",
        help="status 1 if a chosen engine is less than RATIO times as fast as PyTorch",
    )
    parser.add_argument(
        "--require-mean",
        type=positive_number,
        metavar="RATIO",
        help="status 1 if their geometric mean is less than RATIO",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    device = arguments.device
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cases = _cases(arguments)
    _check(arguments, cases)
    earlier, _ = report.read_json(arguments.compare) if arguments.compare else ([], {})
    timer = Timer(device, arguments.cold, arguments.seconds, arguments.graphs)
    about: dict[str, Any] = {
        "machine": report.describe_machine(device),
        "cold": arguments.cold,
        "graphs": arguments.graphs,
        "tuned": arguments.tune,
    }
    rows: list[Row] = []
    if arguments.host:
        return _run_host(arguments, about)
    with saving(lambda: _save_incomplete(arguments, rows, about, len(cases))):
        precisions = dict.fromkeys(case.precision for case in cases)
        about["ceilings"] = measure_ceilings(device, precisions, arguments.seconds)
        measure_all(
            cases, arguments.engines, timer, about["ceilings"], arguments.vs, arguments.tune, rows
        )
        about["host"] = host_times(device)
    with uninterrupted():
        _save(arguments, rows, about)
    _show(arguments, rows)
    host = about["host"]
    print(
        f"\nhost time of a call under no_grad: convx {host['ours_us']:.1f} us, "
        f"F.conv2d {host['torch_us']:.1f} us"
    )
    if arguments.compare:
        print()
        show(report.format_comparison(earlier, rows))
    return _judge(rows, arguments)


def _run_host(arguments: argparse.Namespace, about: dict[str, Any]) -> int:
    shapes = _shapes(arguments)
    with torch_precision("tf32"):
        rows = measure_host(shapes, arguments.device, arguments.bias, arguments.seconds)
    if not rows:
        raise UserError("--host measures layers with the same padding on opposite sides")
    about["host_layers"] = [asdict(row) for row in rows]
    with uninterrupted():
        _save(arguments, [], about)
    show(format_host(rows))
    return 0


def _shapes(arguments: argparse.Namespace) -> list[Shape]:
    shapes = find_shapes(arguments, "full" if arguments.device.type == "cuda" else "cpu")
    if arguments.batch is not None:
        shapes = [shape.with_batch(arguments.batch) for shape in shapes]
    shapes = list(dict.fromkeys(shapes))  # `models` with --batch has every layer twice
    if arguments.sample is not None:
        shapes = _sample(shapes, arguments.sample)
    for shape in shapes:
        if shape.N == 0:
            raise UserError(f"{shape.text!r} has no images, so there is nothing to measure")
    return shapes


def _cases(arguments: argparse.Namespace) -> list[Case]:
    return [
        Case(
            shape,
            direction,
            precision,
            layout,
            bias=arguments.bias,
            activation=arguments.activation,
            residual=residual,
        )
        for shape in _shapes(arguments)
        for precision, layout, direction, residual in itertools.product(
            _precisions(arguments, shape),
            arguments.layout,
            arguments.direction,
            RESIDUALS[arguments.residual],
        )
    ]


def _sample(shapes: list[Shape], count: int) -> list[Shape]:
    """`count` shapes, evenly spaced, or all if there are no more."""
    count = min(count, len(shapes))
    return [shapes[i * len(shapes) // count] for i in range(count)]


def _precisions(arguments: argparse.Namespace, shape: Shape) -> list[str]:
    if arguments.precision:
        return list(arguments.precision)
    return [precision_name(dtype_named(shape.dtype or "float32"), "ieee")]


def _check(arguments: argparse.Namespace, cases: list[Case]) -> None:
    """UserError for mistakes that would otherwise show after minutes of measuring."""
    if arguments.host:
        for option in ("csv", "plot", "compare", "require", "require_mean"):
            if getattr(arguments, option) is not None:
                name = option.replace("_", "-")
                raise UserError(
                    f"--host has no rows of kernels, so --{name} has no meaning with it"
                )
    if (arguments.residual != "no" or arguments.activation != "none") and (
        arguments.host or arguments.direction != ["fwd"]
    ):
        raise UserError("--activation and --residual need --direction forward, without --host")
    check_outputs(arguments.json, arguments.csv, arguments.plot)
    check_replaceable(arguments.json, "rows", "bench --json")
    if arguments.plot:
        require_drawing(arguments.plot)
    for engine in arguments.engines:
        check_engine(engine, arguments.device)
    able: set[str] = set()
    chosen = False
    for case in cases:
        try:
            explanations = explain_passes(case, arguments.device)
        except RuntimeError as error:  # with --batch a tensor may become too large to address
            raise UserError(f"{case}: {error}") from error
        names = able_engines(arguments.engines, explanations)
        able.update(names)
        choice = join_engines([explanation.algorithm for explanation in explanations])
        chosen = chosen or "auto" in names or choice in names
    for engine in arguments.engines:
        name, _, variant = engine.partition(":")
        if engine not in able and not (variant == "*" and name in able):
            raise UserError(f"engine {engine!r} can run none of the cases; see `convx explain`")
    if arguments.plot and not chosen and not arguments.tune:
        raise UserError("--plot draws the engine that a call gets: add auto to --engines")


def _save(
    arguments: argparse.Namespace,
    rows: list[Row],
    about: dict[str, Any],
    incomplete: Incomplete | None = None,
) -> None:
    """Writes every file that was asked for."""
    machine = about["machine"]
    extra = {key: value for key, value in about.items() if key != "machine"}
    if incomplete:
        extra = {**incomplete.mark, **extra}
    save(arguments.json, lambda path: report.write_json(path, rows, machine, extra), incomplete)
    save(arguments.csv, lambda path: report.write_csv(path, rows), incomplete)
    if any(row.chosen for row in rows):
        save(arguments.plot, lambda path: write_plot(path, rows, about), incomplete)


def _save_incomplete(
    arguments: argparse.Namespace, rows: list[Row], about: dict[str, Any], total: int
) -> None:
    engines_of = [(row.text, row.direction, row.precision, row.layout) for row in rows]
    save_incomplete(
        Incomplete(len(dict.fromkeys(engines_of)), total, "cases"),
        [arguments.json, arguments.csv, arguments.plot],
        lambda incomplete: _save(arguments, rows, about, incomplete),
        lambda: _show(arguments, rows),
    )


def _show(arguments: argparse.Namespace, rows: list[Row]) -> None:
    peer = peer_name(arguments.device)
    parts: list[str] = [report.format_rows(rows, peer), ""]
    if set(NETWORK_PRESETS) & set(arguments.preset or ()):
        parts += [format_standing(rows), "", *format_losses(rows, peer)]
    else:
        parts.append(report.format_means(rows))
    if workspace := report.format_largest_workspace(rows):
        parts += ["", workspace]
    show(*parts)


def _judge(rows: list[Row], arguments: argparse.Namespace) -> int:
    failed = False
    for row in rows:
        if not row.rel_error <= WRONG_ABOVE[row.precision]:
            print(f"wrong: {report.case_words(row)} error {row.rel_error:.1e}")
            failed = True
        if arguments.require is not None and row.chosen and row.ratio < arguments.require:
            print(f"below --require: {report.case_words(row)} {row.ratio:.2f}x")
            failed = True
    mean = report.geometric_mean(row.ratio for row in rows if row.chosen)
    # Without a chosen engine the mean is NaN, which meets no requirement.
    if arguments.require_mean is not None and not mean >= arguments.require_mean:
        print(f"below --require-mean: the geometric mean is {mean:.2f}x")
        failed = True
    return 1 if failed else 0
