"""Conv2d: torch.nn.Conv2d on convx's engines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .functional import conv2d


class Conv2d(nn.Conv2d):
    """A torch.nn.Conv2d that computes with `conv2d_ext.conv2d`.

    Constructor, initialisation, state_dict and padding modes are nn.Conv2d's. In addition,
    `padding` may have four values (top, bottom, left, right), and two keywords choose how the
    layer computes; see `conv2d_ext.conv2d`.
    """

    # Class attributes, so that modules converted or unpickled from nn.Conv2d have them too.
    precision: str | None = None
    algorithm: str = "auto"

    def __init__(
        self, *args: Any, precision: str | None = None, algorithm: str = "auto", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if precision is not None:
            self.precision = precision
        if algorithm != "auto":
            self.algorithm = algorithm
        if not isinstance(self.padding, str) and len(self.padding) == 4:
            top, bottom, left, right = self.padding
            # F.pad counts from the last axis; nn.Conv2d's own value assumes two-sided padding.
            self._reversed_padding_repeated_twice = [left, right, top, bottom]

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            sides = self._reversed_padding_repeated_twice
            input = nn.functional.pad(input, sides, mode=self.padding_mode)
            padding = 0
        return conv2d(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            precision=self.precision,
            algorithm=self.algorithm,
        )

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.precision is not None:
            text += f", precision={self.precision}"
        if self.algorithm != "auto":
            text += f", algorithm={self.algorithm}"
        return text


class LazyConv2d(torch.nn.LazyConv2d):
    """A torch.nn.LazyConv2d that becomes a `Conv2d` when it first sees an input."""

    cls_to_become = Conv2d
