"""Measured choices, and the files that keep them.

A file is {"format": 1, "convx": version, "choices": [...]}. A row of "choices" holds the fields of
Tuned, and "convx" if another version than the one in the head measured it. In memory every row has
its "convx". Rows of other versions are never parsed further, so that they survive whatever fields
they have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _ops
from ._arguments import ConvParams
from ._files import replacing
from ._layout import is_channels_last
from ._shape import Shape
from ._user_error import UserError
from ._values import tuples
from ._version import __version__

_FORMAT = 1
# What the libraries say of a problem, and a choice does not depend on.
_EPILOGUE = ("residual", "activation", "negative_slope")


@dataclass(frozen=True)
class Problem:
    """A convolution without its values. A choice depends on it and on the machine alone."""

    direction: str
    dtype: str
    precision: str
    bias: bool
    groups: int
    input: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    output: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    input_stride: tuple[int, int, int, int]
    weight_stride: tuple[int, int, int, int]
    output_stride: tuple[int, int, int, int]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Problem:
        """A choice is measured without residual and activation, and serves calls with them too."""
        measured = {name: value for name, value in fields.items() if name not in _EPILOGUE}
        return cls(**tuples(measured))

    def __str__(self) -> str:
        k, _, r, s = self.weight
        geometry = self.stride, self.padding, self.dilation
        return Shape(*self.input, k, r, s, *geometry, self.groups).text

    def arguments(self, algorithm: str, device: torch.device) -> tuple[Any, ...]:
        """The arguments of the operators that take a problem."""
        lists = self.input, self.input_stride, self.weight, self.weight_stride, self.output_stride
        geometry = self.stride, self.padding, self.dilation
        return (
            self.direction,
            self.dtype,
            *map(list, lists),
            self.bias,
            *map(list, geometry),
            self.groups,
            self.precision,
            algorithm,
            device.index or 0,
        )

    def operands(self, device: torch.device) -> Callable[[str], Tensor]:
        """A function that computes the problem on random tensors with a given algorithm."""
        dtype = getattr(torch, self.dtype)
        generator = torch.Generator(device)  # the program's own numbers stay as they are

        def random(size: Sequence[int], stride: Sequence[int]) -> Tensor:
            extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            values = torch.randn(extent, device=device, dtype=dtype, generator=generator)
            return values.as_strided(list(size), list(stride))

        x = random(self.input, self.input_stride)
        w = random(self.weight, self.weight_stride)
        g = random(self.output, self.output_stride)
        b = random(self.weight[:1], (1,)) if self.bias else None

        result = x if self.direction == "input_grad" else w

        def call(algorithm: str) -> Tensor:
            geometry = *self.stride, *self.padding, *self.dilation
            params = ConvParams(*geometry, self.groups, self.precision, algorithm)
            return _ops.run(self.direction, x, w, b, g, is_channels_last(result), params)

        return call


@dataclass(frozen=True)
class Tuned:
    """A measured choice; ``default`` is the algorithm that the planner takes without it."""

    machine: str
    problem: Problem
    algorithm: str
    us: float
    default: str
    default_us: float


def rows_to_keep(path: Path) -> list[dict[str, Any]]:
    """The rows that save_tuned() keeps of a file. UserError if the file holds anything else, which
    must not be overwritten."""
    try:
        return read_rows(path) if path.is_file() and path.stat().st_size else []
    except (OSError, ValueError) as error:
        raise UserError(f"convx.save_tuned: cannot add to path={str(path)!r}: {error}") from error


def write_incomplete(path: Path, choices: Sequence[Tuned]) -> None:
    """Write the choices of a measurement that was interrupted to a file that says so."""
    write_rows(path, [row_of(choice) for choice in choices], incomplete=True)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that exists. ValueError if it is no file of choices, or has a format that
    this version does not know."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not {"format", "convx", "choices"} <= content.keys():
        raise ValueError("it is not a file that save_tuned() wrote")
    if content["format"] != _FORMAT:
        written = f"format {content['format']} of convx {content['convx']}"
        raise ValueError(f"it has {written}, which convx {__version__} does not know")
    rows = content["choices"]
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {"machine", "problem"} <= row.keys() for row in rows
    ):
        raise ValueError("it is not a file that save_tuned() wrote")
    rows = [{**row, "convx": str(row.get("convx", content["convx"]))} for row in rows]
    for row in rows:
        if row["convx"] == __version__:
            choice_of(row)
    return rows


def write_rows(path: Path, rows: Sequence[dict[str, Any]], incomplete: bool = False) -> None:
    mark = '"incomplete": true, ' if incomplete else ""
    head = f'{{"format": {_FORMAT}, "convx": "{__version__}", {mark}"choices": ['
    lines = []
    for row in rows:
        shown = {k: v for k, v in row.items() if k != "convx" or v != __version__}
        lines.append("\n" + json.dumps(shown))  # a choice per line
    with replacing(path) as file:
        file.write(head + ",".join(lines) + "\n]}\n")


def row_of(choice: Tuned) -> dict[str, Any]:
    return {**asdict(choice), "convx": __version__}


def choice_of(row: dict[str, Any]) -> Tuned:
    fields = {name: value for name, value in row.items() if name != "convx"}
    try:
        return Tuned(**{**fields, "problem": Problem.from_json(row["problem"])})
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a choice in it cannot be read: {error}") from error


def row_key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["convx"], str(row["machine"]), json.dumps(row["problem"], sort_keys=True)
