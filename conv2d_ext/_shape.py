"""The shape of a convolution, its text form, and the names of passes and layouts.

convx's messages use the text form "n8c32h512w512 k64r5s9 stride1x1 pad2,2,4,4 dilation2x3 groups1
float32": pad is top, bottom, left, right. Values that equal their default may be left out, and so
may the dtype.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from ._arguments import output_extent

_SIZES = re.compile(r"n(\d+)c(\d+)h(\d+)w(\d+)$")
_FILTERS = re.compile(r"k(\d+)r(\d+)s(\d+)$")
_PAIR = re.compile(r"(stride|dilation)(\d+)x(\d+)$")
_PAD = re.compile(r"pad(\d+),(\d+),(\d+),(\d+)$")
_GROUPS = re.compile(r"groups(\d+)$")
DTYPE_NAMES = ("float32", "float64", "float16", "bfloat16")

# A pass is one of the three computations of a convolution. Rows and files have the short names;
# options, tables and the API have the long ones.
PASS_NAMES = {"fwd": "forward", "dgrad": "input_grad", "wgrad": "weight_grad"}
SHORT_NAMES = {long: short for short, long in PASS_NAMES.items()}
PASSES = tuple(PASS_NAMES)
# A direction is a pass, or a training step, which measures all three one after another.
TRAINING_STEP = "train"
DIRECTION_NAMES = {**PASS_NAMES, TRAINING_STEP: "training_step"}
LAYOUT_NAMES = {"nchw": "nchw", "nhwc": "channels_last"}
LAYOUTS = tuple(LAYOUT_NAMES)


def passes_of(direction: str) -> tuple[str, ...]:
    """The passes that a direction computes: the three of a training step, or the one it names."""
    return PASSES if direction == TRAINING_STEP else (direction,)


class _Axis(NamedTuple):
    """The numbers of different elements that take part in a convolution along one axis."""

    products: int  # pairs of an output and a tap that read an input inside the image
    inputs: int
    taps: int
    outputs: int


@cache
def _count_axis(
    extent: int, outputs: int, taps: int, stride: int, padding: int, dilation: int
) -> _Axis:
    met = [(p * stride - padding + r * dilation, r, p) for p in range(outputs) for r in range(taps)]
    met = [(h, r, p) for h, r, p in met if 0 <= h < extent]
    inputs, used_taps, used_outputs = (len({place[i] for place in met}) for i in range(3))
    return _Axis(len(met), inputs, used_taps, used_outputs)


@dataclass(frozen=True)
class Shape:
    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    name: str = ""
    dtype: str = ""  # empty where the text does not say

    @property
    def P(self) -> int:
        top, bottom = self.pad[:2]
        return output_extent(self.H, top, bottom, self.R, self.stride[0], self.dilation[0])

    @property
    def Q(self) -> int:
        left, right = self.pad[2:]
        return output_extent(self.W, left, right, self.S, self.stride[1], self.dilation[1])

    @property
    def flops(self) -> int:
        per_output = 2 * (self.C // self.groups) * self.R * self.S
        return self.N * self.K * self.P * self.Q * per_output

    @property
    def elements(self) -> int:
        """Elements of input, weight and output."""
        weight = self.K * (self.C // self.groups) * self.R * self.S
        return self.N * self.C * self.H * self.W + weight + self.N * self.K * self.P * self.Q

    @property
    def least_flops(self) -> int:
        """The flops without multiplications by padding zeros, which an engine may leave out."""
        rows, columns = self._axes
        products = rows.products * columns.products
        return 2 * self.N * self.K * (self.C // self.groups) * products

    def least_elements(self, direction: str) -> int:
        """The fewest elements that the passes of a direction read and write.

        A pass writes all of its result, and reads the elements that are multiplied: a 1x1 layer of
        stride 2 reads a quarter of its input. The passes of a training step run one after another,
        so each reads its own operands.
        """
        return sum(self._least_elements_of_pass(name) for name in passes_of(direction))

    def _least_elements_of_pass(self, name: str) -> int:
        rows, columns = self._axes
        filters = self.K * (self.C // self.groups)
        x, read_x = self.H * self.W, rows.inputs * columns.inputs
        w, read_w = self.R * self.S, rows.taps * columns.taps
        y, read_y = self.P * self.Q, rows.outputs * columns.outputs
        pixels = {"fwd": (read_x, read_w, y), "dgrad": (x, read_w, read_y)}
        x, w, y = pixels.get(name, (read_x, w, read_y))
        return self.N * self.C * x + filters * w + self.N * self.K * y

    @property
    def _axes(self) -> tuple[_Axis, _Axis]:
        return (
            _count_axis(self.H, self.P, self.R, self.stride[0], self.pad[0], self.dilation[0]),
            _count_axis(self.W, self.Q, self.S, self.stride[1], self.pad[2], self.dilation[1]),
        )

    @property
    def symmetric_padding(self) -> tuple[int, int] | None:
        """(height, width), as F.conv2d takes it, or None if the sides differ."""
        top, bottom, left, right = self.pad
        return (top, left) if top == bottom and left == right else None

    @property
    def text(self) -> str:
        words = [f"n{self.N}c{self.C}h{self.H}w{self.W}", f"k{self.K}r{self.R}s{self.S}"]
        if self.stride != (1, 1):
            words.append("stride{}x{}".format(*self.stride))
        if self.pad != (0, 0, 0, 0):
            words.append("pad{},{},{},{}".format(*self.pad))
        if self.dilation != (1, 1):
            words.append("dilation{}x{}".format(*self.dilation))
        if self.groups != 1:
            words.append(f"groups{self.groups}")
        if self.dtype:
            words.append(self.dtype)
        return " ".join(words)

    def with_batch(self, images: int) -> Shape:
        """The same layer for another number of images. A name that is the shape's text changes
        with it."""
        other = replace(self, N=images)
        return replace(other, name=other.text) if self.name == self.text else other

    @staticmethod
    def of_call(
        input: Sequence[int],
        weight: Sequence[int],
        stride: tuple[int, int],
        pad: tuple[int, int, int, int],
        dilation: tuple[int, int],
        groups: int,
    ) -> Shape:
        """The shape of a call with an input (N, C, H, W) and a weight (K, C/groups, R, S)."""
        n, c, h, w = input
        k, _, r, s = weight
        return Shape(n, c, h, w, k, r, s, stride, pad, dilation, groups)

    @staticmethod
    def parse(text: str, name: str = "") -> Shape:
        fields: dict[str, int | tuple[int, ...] | str] = {"name": name}
        for word in text.split():
            if match := _SIZES.match(word):
                fields.update(zip("NCHW", map(int, match.groups()), strict=True))
            elif match := _FILTERS.match(word):
                fields.update(zip("KRS", map(int, match.groups()), strict=True))
            elif match := _PAIR.match(word):
                fields[match[1]] = (int(match[2]), int(match[3]))
            elif match := _PAD.match(word):
                fields["pad"] = tuple(map(int, match.groups()))
            elif match := _GROUPS.match(word):
                fields["groups"] = int(match[1])
            elif word in DTYPE_NAMES:
                fields["dtype"] = word
            else:
                raise ValueError(f"cannot read {word!r} in the shape {text!r}")
        missing = [letter for letter in "NCHWKRS" if letter not in fields]
        if missing:
            raise ValueError(f"the shape {text!r} does not say {', '.join(missing)}")
        return Shape(**fields)  # type: ignore[arg-type]
