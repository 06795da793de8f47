"""PyTorch's layers of the same names on convx's engines."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ._choices import check_choices, check_fusion
from .functional import conv1d, conv2d, conv_transpose2d

_is_scripting = torch.jit.is_scripting  # type: ignore[attr-defined]
_IntOrPair = int | tuple[int, int]
_FourSides = tuple[int, int, int, int]
_PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class Conv2d(nn.Conv2d):
    """A torch.nn.Conv2d that computes with `conv2d_ext.conv2d`.

    Constructor, initialisation, state_dict and padding modes are nn.Conv2d's. In addition,
    `padding` may have four values (top, bottom, left, right). `activation` names a function that is
    applied to the output in the same call, and a call may add a tensor in front of it:
    `layer(input, residual)`. `precision` and `algorithm` choose how the layer computes. All are
    described at `conv2d_ext.conv2d`. With `precision=None`, the default, float32 layers use TF32
    on CUDA wherever PyTorch's settings allow it, and PyTorch's default does.

    Raises:
        ValueError: for arguments that nn.Conv2d refuses, and an unknown activation, precision or
            algorithm.
    """

    # Class attributes, so that modules converted or unpickled from nn.Conv2d have them too.
    activation: str | None = None
    negative_slope: float = 0.01
    precision: str | None = None
    algorithm: str = "auto"
    __constants__ = [  # noqa: RUF012
        *nn.Conv2d.__constants__,
        "activation",
        "negative_slope",
        "precision",
        "algorithm",
    ]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _IntOrPair,
        stride: _IntOrPair = 1,
        padding: str | _IntOrPair | _FourSides = 0,
        dilation: _IntOrPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: _PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        negative_slope: float = 0.01,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        check_choices("convx.Conv2d", precision, algorithm)
        check_fusion("convx.Conv2d", activation, negative_slope)
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,  # type: ignore[arg-type]
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )
        _finish(self, activation, negative_slope, precision, algorithm)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        if _is_scripting():
            return self._conv_forward(input, self.weight, self.bias, residual)
        # nn.Module.__getattr__ runs after a search that fails, which costs a microsecond for each
        # parameter. Subclasses may define properties of these names, and some tools keep parameters
        # elsewhere (parametrizations, pruning, weight norm).
        parameters = self._parameters
        if type(self) is Conv2d and "weight" in parameters and "bias" in parameters:
            weight, bias = parameters["weight"], parameters["bias"]
        else:
            weight, bias = self.weight, self.bias  # type: ignore[assignment]
        if residual is None:  # subclasses may override a _conv_forward of three arguments
            return self._conv_forward(input, weight, bias)  # type: ignore[arg-type]
        return self._conv_forward(input, weight, bias, residual)  # type: ignore[arg-type]

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None
    ) -> Tensor:
        if not _is_scripting():
            input, padding = self.pad_input(input)
            return conv2d(
                input,
                weight,
                bias,
                self.stride,
                padding,
                self.dilation,
                self.groups,
                activation=self.activation,
                residual=residual,
                negative_slope=self.negative_slope,
                precision=self.precision,
                algorithm=self.algorithm,
            )
        # F.pad counts from the last axis: left, right, top, bottom.
        sides = self._reversed_padding_repeated_twice
        pads_first = self.padding_mode != "zeros"
        if pads_first:
            input = nn.functional.pad(input, sides, mode=self.padding_mode)
        padding = [0] if pads_first else [sides[2], sides[3], sides[0], sides[1]]
        precision = "torch" if self.precision is None else self.precision
        if self.activation is None and residual is None:
            return torch.ops.convx.conv2d(
                input,
                weight,
                bias,
                self.stride,
                padding,
                self.dilation,
                self.groups,
                precision=precision,
                algorithm=self.algorithm,
            )
        return torch.ops.convx.conv2d_act(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            residual=residual,
            activation="none" if self.activation is None else self.activation,
            negative_slope=self.negative_slope,
            precision=precision,
            algorithm=self.algorithm,
        )

    @torch.jit.unused
    def pad_input(self, input: Tensor) -> tuple[Tensor, Any]:
        """The input, padded if conv2d cannot pad it in the layer's mode, and conv2d's `padding`."""
        if self.padding_mode != "zeros":
            sides = self._reversed_padding_repeated_twice
            return nn.functional.pad(input, sides, mode=self.padding_mode), 0
        if self.padding == "same":
            # conv2d would read the weight's size, which is a tensor in a trace.
            left, right, top, bottom = self._reversed_padding_repeated_twice
            return input, (top, bottom, left, right)
        return input, self.padding

    def extra_repr(self) -> str:
        return super().extra_repr() + _extra_repr(self)


class Conv1d(nn.Conv1d):
    """A torch.nn.Conv1d that computes with `conv2d_ext.conv1d`.

    Constructor, initialisation, state_dict and padding modes are nn.Conv1d's; the keywords
    `precision` and `algorithm` are `Conv2d`'s.

    Raises:
        ValueError: for arguments that nn.Conv1d refuses, and an unknown precision or algorithm.
    """

    precision: str | None = None
    algorithm: str = "auto"
    __constants__ = [*nn.Conv1d.__constants__, "precision", "algorithm"]  # noqa: RUF012

    def __init__(
        self, *args: Any, precision: str | None = None, algorithm: str = "auto", **kwargs: Any
    ) -> None:
        check_choices("convx.Conv1d", precision, algorithm)
        super().__init__(*args, **kwargs)
        _set_words(self, precision, algorithm)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        sides = self._reversed_padding_repeated_twice
        pads_first = self.padding_mode != "zeros" or sides[0] != sides[1]
        if pads_first:
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = nn.functional.pad(input, sides, mode=mode)
        padding = 0 if pads_first else sides[0]
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.ops.convx.conv2d(
                input.contiguous().unsqueeze(-2),
                weight.contiguous().unsqueeze(-2),
                bias,
                [1, self.stride[0]],
                [0, padding],
                [1, self.dilation[0]],
                self.groups,
                precision="torch" if self.precision is None else self.precision,
                algorithm=self.algorithm,
            ).squeeze(-2)
        return conv1d(
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
        return super().extra_repr() + _extra_repr(self)


class ConvTranspose2d(nn.ConvTranspose2d):
    """A torch.nn.ConvTranspose2d that computes with `conv2d_ext.conv_transpose2d`.

    Constructor, initialisation and state_dict are nn.ConvTranspose2d's, and so is the argument
    `output_size` of a call; the keywords `precision` and `algorithm` are `Conv2d`'s.

    Raises:
        ValueError: for arguments that nn.ConvTranspose2d refuses, and an unknown precision or
            algorithm.
    """

    precision: str | None = None
    algorithm: str = "auto"
    __constants__ = [*nn.ConvTranspose2d.__constants__, "precision", "algorithm"]  # noqa: RUF012

    def __init__(
        self, *args: Any, precision: str | None = None, algorithm: str = "auto", **kwargs: Any
    ) -> None:
        check_choices("convx.ConvTranspose2d", precision, algorithm)
        super().__init__(*args, **kwargs)
        _set_words(self, precision, algorithm)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            2,
            self.dilation,  # type: ignore[arg-type]
        )
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.ops.convx.conv_transpose2d(
                input,
                self.weight,
                self.bias,
                self.stride,
                self.padding,
                output_padding,
                self.groups,
                self.dilation,
                precision="torch" if self.precision is None else self.precision,
                algorithm=self.algorithm,
            )
        return conv_transpose2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            output_padding,
            self.groups,
            self.dilation,
            precision=self.precision,
            algorithm=self.algorithm,
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + _extra_repr(self)


class LazyConv2d(torch.nn.LazyConv2d):
    """A torch.nn.LazyConv2d that becomes a `Conv2d` when it first sees an input.

    It takes nn.LazyConv2d's arguments, and the ones that `Conv2d` adds.
    """

    cls_to_become = Conv2d

    def __init__(
        self,
        out_channels: int,
        kernel_size: _IntOrPair,
        stride: _IntOrPair = 1,
        padding: _IntOrPair | _FourSides = 0,
        dilation: _IntOrPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: _PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        negative_slope: float = 0.01,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        check_choices("convx.LazyConv2d", precision, algorithm)
        check_fusion("convx.LazyConv2d", activation, negative_slope)
        super().__init__(
            out_channels,
            kernel_size,
            stride,
            padding,  # type: ignore[arg-type]
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )
        _finish(self, activation, negative_slope, precision, algorithm)


def _finish(
    layer: Any,
    activation: str | None,
    negative_slope: float,
    precision: str | None,
    algorithm: str,
) -> None:
    """Sets the attributes that nn.Conv2d does not know. It takes four values of padding for four
    axes, so F.pad's list of sides is corrected here."""
    _set_words(layer, precision, algorithm)
    if activation is not None:
        layer.activation = activation
    if negative_slope != Conv2d.negative_slope:
        layer.negative_slope = float(negative_slope)
    if not isinstance(layer.padding, str) and len(layer.padding) == 4:
        top, bottom, left, right = layer.padding
        layer._reversed_padding_repeated_twice = [left, right, top, bottom]


def _set_words(layer: Any, precision: str | None, algorithm: str) -> None:
    if precision is not None:
        layer.precision = precision
    if algorithm != "auto":
        layer.algorithm = algorithm


def _extra_repr(layer: Any) -> str:
    text = ""
    activation = getattr(layer, "activation", None)
    if activation is not None:
        text += f", activation={activation}"
    if activation == "leaky_relu":
        text += f", negative_slope={layer.negative_slope}"
    if layer.precision is not None:
        text += f", precision={layer.precision}"
    if layer.algorithm != "auto":
        text += f", algorithm={layer.algorithm}"
    return text
