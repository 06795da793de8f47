"""convx tune: measure the engines on a model's convolutions, and keep the fastest in a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .._text import show
from ..convert import convert
from ..tuning import load_tuned, save_tuned, tune
from .models import add_model, make_model
from .options import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("tune", help="measure engines on a model's convolutions")
    add_model(parser)
    parser.add_argument("--train", action="store_true", help="gradients too")
    parser.add_argument("--seconds", type=float, default=0.01, help="spent on each engine")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="write choices to this file, for load_tuned(); those that it has are kept",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out.exists():
        load_tuned(arguments.out)
    model, inputs = make_model(arguments)
    convert(model)
    model.train(arguments.train)
    with tune(arguments.seconds, progress=True) as report, torch.set_grad_enabled(arguments.train):
        outputs = model(*inputs)
        if arguments.train:
            _sum(outputs).backward()
    show(report)
    print(f"{save_tuned(arguments.out)} choices in {arguments.out}")
    return 0


def _sum(outputs: object) -> torch.Tensor:
    """Of all values, wherever a model puts them."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float().sum()
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    return torch.stack([_sum(part) for part in parts]).sum()  # type: ignore[attr-defined]
