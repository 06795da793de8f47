"""What several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..bench.measure import explain_shape
from ..bench.shapes import Shape, find_shape

Commands = Any  # argparse does not name the class that add_subparsers returns


def choices(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument that is one or more of these words, separated by commas."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return words

    return parse


def shape(text: str) -> Shape:
    """An argument that is a shape's name or text, of a convolution that exists."""
    try:
        found = find_shape(text)
        explain_shape(found)  # makes the checks of a call
    except (ValueError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return found


def dtype_named(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def device(text: str) -> torch.device:
    """An argument that is a device whose engines are loaded."""
    try:
        found = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(str(error).partition("\n")[0]) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r}: torch cannot use a CUDA device here")
    if found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r}: convx has engines for cpu and cuda")
    return found


def add_device(parser: argparse.ArgumentParser) -> None:
    default = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--device", type=device, default=default, help="cpu, cuda or cuda:N")


def peer_name(device: torch.device) -> str:
    return "cuDNN" if device.type == "cuda" else "PyTorch"
