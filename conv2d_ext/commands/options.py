"""The options that several commands have: the same names and values everywhere.

Spellings of earlier versions still work. They do not appear in help texts.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from .._choices import engine_names
from .._load import loaded_libraries
from .._precision import PRECISIONS
from .._shape import DIRECTION_NAMES, DTYPE_NAMES, LAYOUT_NAMES, PASS_NAMES, PASSES, Shape
from .._user_error import UserError
from ..bench.shapes import find_shape, load_suite, suite_names
from ..explain import explain_shape

Commands = Any  # argparse does not name the class that add_subparsers returns

# The option's words, and the benchmark's names for them, which rows and files have.
_LAYOUT_WORDS = {long: short for short, long in LAYOUT_NAMES.items()}
# More threads than that are a mistake, and some machines cannot even start them.
_MOST_THREADS = max(1024, os.cpu_count() or 1)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, and takes no abbreviations, so that a new option cannot make a
    script's abbreviation ambiguous."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see {self.prog} --help)\n")


def one_line(message: str) -> str:
    return " ".join(message.split())


def choices(
    known: Sequence[str], values: dict[str, str] | None = None
) -> Callable[[str], list[str]]:
    """An argument that is one or more of these words, separated by commas. `values` maps words to
    their meanings, including words of earlier versions that are not among the known."""
    values = values or {}

    def parse(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known and word not in values:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(values.get(word, word) for word in words))

    return parse


def choice(known: Sequence[str], values: dict[str, str] | None = None) -> Callable[[str], str]:
    """An argument that is one of these words."""
    parse_all = choices(known, values)

    def parse(text: str) -> str:
        found = parse_all(text)
        if len(found) != 1:
            raise argparse.ArgumentTypeError(f"one of {', '.join(known)} is expected")
        return found[0]

    return parse


def positive_int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not greater than zero")
    return number


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number greater than zero")
    return number


def thread_count(text: str) -> int:
    number = positive_int(text)
    if number > _MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MOST_THREADS}")
    return number


def shape(text: str) -> Shape:
    """An argument that is a shape's name or text, of a convolution that exists."""
    try:
        found = find_shape(text)
        explain_shape(found)  # makes the checks of a call
    except (ValueError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return found


def dtype_named(name: str) -> torch.dtype:
    return getattr(torch, name)


def device(text: str) -> torch.device:
    """An argument that is a device whose engines are loaded."""
    try:
        found = torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(str(error).partition("\n")[0]) from error
    if found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text!r}: convx has engines for cpu and cuda")
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError(f"{text!r}: torch cannot use a CUDA device here")
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:
            raise argparse.ArgumentTypeError(f"{text!r}: there are {count} CUDA devices here")
        libraries = loaded_libraries()
        if libraries.cuda is None:
            raise argparse.ArgumentTypeError(f"{text!r}: {libraries.why_no_cuda}")
    return found


def _default_device() -> torch.device:
    usable = torch.cuda.is_available() and loaded_libraries().cuda is not None
    return torch.device("cuda" if usable else "cpu")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=device,
        default=_default_device(),
        help="cpu, cuda or cuda:N (default: cuda where convx can use a GPU, else cpu)",
    )


def add_direction(
    parser: argparse.ArgumentParser, default: str | None, training_steps: bool = False
) -> None:
    """`direction` is a list of the benchmark's names: fwd, dgrad, wgrad, and train if the command
    knows training steps. No default: None."""
    names = DIRECTION_NAMES if training_steps else PASS_NAMES
    words = [*names.values(), "all"]
    parse = choices(words, {long: short for short, long in names.items()} | {s: s for s in names})

    def parse_with_all(text: str) -> list[str]:
        found = parse(text)
        passes = PASSES if "all" in found else ()
        return list(dict.fromkeys([*passes, *(name for name in found if name != "all")]))

    explained = {"training_step": " (the three passes in one row)"}
    if training_steps:
        explained["all"] = " (the three passes, a row each)"
    values = ", ".join(word + explained.get(word, "") for word in words)
    values += "; several separated by commas"
    parser.add_argument(
        "--direction",
        type=parse_with_all,
        default=parse_with_all(default) if default else None,
        metavar="NAMES",
        help=f"{values} (default: {default or 'all'})",
    )
    _add_alias(parser, "--directions", "direction", parse_with_all)


def add_layout(
    parser: argparse.ArgumentParser, several: bool = False, default: str | None = "nchw"
) -> None:
    """`layout` is one of the benchmark's names, nchw or nhwc, or a list of them."""
    words = list(_LAYOUT_WORDS)
    values = {**_LAYOUT_WORDS, "nhwc": "nhwc"}
    parse: Callable[[str], Any] = choices(words, values) if several else choice(words, values)
    more = "; several separated by commas" if several else ""
    parser.add_argument(
        "--layout",
        type=parse,
        default=parse(default) if default else None,
        metavar="NAMES" if several else "NAME",
        help=f"memory format: nchw or channels_last{more} (default: {default or 'all'})",
    )
    if several:
        _add_alias(parser, "--layouts", "layout", parse)


def add_precision(parser: argparse.ArgumentParser, several: bool, default: str) -> None:
    """`precision` is a name or a list of names, or None; `default` describes None in the help."""
    parse: Callable[[str], Any] = choices(PRECISIONS) if several else choice(PRECISIONS)
    more = "; several separated by commas" if several else ""
    parser.add_argument(
        "--precision",
        type=parse,
        metavar="NAMES" if several else "NAME",
        help="ieee (strict float32), tf32 (float32 with products rounded to TF32), bf16, fp16 or "
        f"fp64{more} (default: {default})",
    )
    if several:
        _add_alias(parser, "--precisions", "precision", parse)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """--dtype of earlier versions, whose float32 left the choice of TF32 to PyTorch."""
    parser.add_argument("--dtype", choices=DTYPE_NAMES, help=argparse.SUPPRESS)


def add_seconds(parser: argparse.ArgumentParser, default: float, what: str) -> None:
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=default,
        metavar="S",
        help=f"time spent on each {what} (default: {default:g})",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {what} to this file")


def add_shapes(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "shapes",
        nargs="*",
        type=shape,
        metavar="shape",
        help="a preset's shape by name, such as seed80, or any shape as text, such as "
        '"n8c32h64w64 k64r3s3 pad1,1,1,1"',
    )
    parse = choices(suite_names())
    parser.add_argument(
        "--preset",
        type=parse,
        metavar="NAMES",
        help=f"{', '.join(suite_names())}; several separated by commas (default, unless shapes are "
        f"given: {default})",
    )
    _add_alias(parser, "--suite", "preset", parse)


def find_shapes(arguments: argparse.Namespace, default: str) -> list[Shape]:
    """The shapes that were given, and the presets' shapes."""
    presets = arguments.preset or ([] if arguments.shapes else [default])
    return [*arguments.shapes, *(shape for preset in presets for shape in load_suite(preset))]


def _add_alias(
    parser: argparse.ArgumentParser, name: str, destination: str, parse: Callable[[str], Any]
) -> None:
    parser.add_argument(
        name, dest=destination, type=parse, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def engines_text() -> str:
    """The engines of this machine's devices, for help texts."""
    return ", ".join(engine_names(*dict.fromkeys(["cpu", _default_device().type])))


def check_engine(name: str, where: torch.device) -> None:
    """UserError unless a device has the engine. A variant, behind a colon, may be anything."""
    known = engine_names(where.type)
    if name != "auto" and name.partition(":")[0] not in known:
        raise UserError(f"unknown engine {name!r}; {where.type} has {', '.join(['auto', *known])}")


def peer_name(device: torch.device) -> str:
    return "cuDNN" if device.type == "cuda" else "PyTorch"
