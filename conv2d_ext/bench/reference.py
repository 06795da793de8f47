"""Float64 values of sampled elements, from the definition: a check that fits beside any problem.

The positions follow from the shape alone, so errors of several libraries are errors of the same
elements and can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._shape import Shape, passes_of

# An activation, and the residual that is added before it.
Epilogue = tuple[Callable[[Tensor], Tensor], Tensor | None]

_PIXELS = 128  # of an output or an input gradient, each with all its channels
_FILTERS = 16  # of a weight gradient, each with at most so many channels
_TAPS = 12  # of those filters
_CHUNK = 1 << 25  # float64 elements at a time


def worst_sampled_error(
    direction: str,
    shape: Shape,
    results: Tensor | tuple[Tensor, ...],
    x: Tensor,
    w: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    epilogue: Epilogue | None = None,
) -> float:
    """The largest sampled_error of a direction's results; NaN if one of them is NaN.

    The results of a training step are output, input gradient and weight gradient, and behind them
    the bias gradient if the layer has a bias.
    """
    every = results if isinstance(results, tuple) else (results,)
    names = passes_of(direction)
    errors = [
        sampled_error(name, shape, result, x, w, g, bias if name == "fwd" else None, epilogue)
        for name, result in zip(names, every[: len(names)], strict=True)
    ]
    errors += [_relative_error(*_sample_bias_grad(each, g)) for each in every[len(names) :]]
    return float(torch.tensor(errors, dtype=torch.float64).max())


def sampled_error(
    direction: str,
    shape: Shape,
    result: Tensor,
    x: Tensor,
    w: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
    epilogue: Epilogue | None = None,
) -> float:
    """Relative error (Frobenius norm) of a result on sampled elements.

    x, w and g are input, weight and output gradient; the direction says which two made the result,
    the forward pass with a bias or without, and with an epilogue or without.
    """
    sample = {"fwd": _sample_output, "dgrad": _sample_input_grad, "wgrad": _sample_weight_grad}
    got, expected = sample[direction](shape, result, x, w, g)
    if bias is not None:
        expected = expected + bias.double()
    if epilogue is not None:
        activate, residual = epilogue
        if residual is not None:
            images, rows, columns = _pick_pixels(result)
            expected = expected + residual[images, :, rows, columns].double()
        expected = activate(expected)
    return _relative_error(got, expected)


def _relative_error(got: Tensor, expected: Tensor) -> float:
    difference = torch.linalg.vector_norm(got.double() - expected)
    return (difference / torch.linalg.vector_norm(expected).clamp_min(1e-300)).item()


def _pick_pixels(result: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Image, row and column of sampled pixels of an NCHW tensor."""
    generator = torch.Generator().manual_seed(0)
    images, _, rows, columns = (
        torch.randint(extent, (_PIXELS,), generator=generator).to(result.device)
        for extent in result.shape
    )
    return images, rows, columns


def _spread(extent: int, most: int) -> list[int]:
    """At most `most` different indices below extent, evenly spread over it."""
    count = min(extent, most)
    return [i * extent // count for i in range(count)]


def _gather(source: Tensor, images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """source[images[i], :, rows[i, r], columns[i, s]] in float64, as [i, r, s, channel]; zeros
    outside the image."""
    height, width = source.shape[2:]
    inside_rows = (rows >= 0) & (rows < height)
    inside_columns = (columns >= 0) & (columns < width)
    found = source[
        images[:, None, None],
        :,
        rows.clamp(0, height - 1)[:, :, None],
        columns.clamp(0, width - 1)[:, None, :],
    ]
    inside = inside_rows[:, :, None] & inside_columns[:, None, :]
    return torch.where(inside[..., None], found, found.new_zeros(())).double()


def _sample_output(
    shape: Shape, y: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """All filters at sampled pixels."""
    images, rows, columns = _pick_pixels(y)
    taps_r = torch.arange(shape.R, device=x.device) * shape.dilation[0] - shape.pad[0]
    taps_s = torch.arange(shape.S, device=x.device) * shape.dilation[1] - shape.pad[2]
    patches = _gather(
        x,
        images,
        rows[:, None] * shape.stride[0] + taps_r,
        columns[:, None] * shape.stride[1] + taps_s,
    ).unflatten(3, (shape.groups, -1))
    filters = w.double().unflatten(0, (shape.groups, -1))
    expected = torch.einsum("irsgc,gkcrs->igk", patches, filters).flatten(1)
    return y[images, :, rows, columns], expected


def _sample_input_grad(
    shape: Shape, gx: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """All channels at sampled pixels."""
    images, rows, columns = _pick_pixels(gx)
    taps_r = torch.arange(shape.R, device=g.device) * shape.dilation[0] - shape.pad[0]
    taps_s = torch.arange(shape.S, device=g.device) * shape.dilation[1] - shape.pad[2]
    patches = _gather(
        g,
        images,
        _exact_quotient(rows[:, None] - taps_r, shape.stride[0]),
        _exact_quotient(columns[:, None] - taps_s, shape.stride[1]),
    ).unflatten(3, (shape.groups, -1))
    filters = w.double().unflatten(0, (shape.groups, -1))
    expected = torch.einsum("irsgk,gkcrs->igc", patches, filters).flatten(1)
    return gx[images, :, rows, columns], expected


def _exact_quotient(value: Tensor, divisor: int) -> Tensor:
    """value / divisor, or -1 where that is not an integer."""
    exact = value % divisor == 0
    return torch.where(exact, value.div(divisor, rounding_mode="floor"), -1)


def _sample_weight_grad(
    shape: Shape, gw: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """Sampled taps of sampled filters and channels, each a sum over every pixel of every image."""
    groups = _spread(shape.groups, _FILTERS)
    each = -(-_FILTERS // len(groups))
    per_group = shape.K // shape.groups
    filters = [[i * per_group + k for k in _spread(per_group, each)] for i in groups]
    channels = _spread(shape.C // shape.groups, each)
    sources = [[i * (shape.C // shape.groups) + c for c in channels] for i in groups]
    got, expected = [], []
    for tap in _spread(shape.R * shape.S, _TAPS):
        r, s = divmod(tap, shape.S)
        expected.append(_weight_grad_of_tap(shape, x, g, sources, filters, r, s))
        got.append(gw[torch.tensor(filters)[:, :, None], torch.tensor(channels), r, s])
    return torch.stack(got), torch.stack(expected)


def _weight_grad_of_tap(
    shape: Shape,
    x: Tensor,
    g: Tensor,
    sources: list[list[int]],
    filters: list[list[int]],
    r: int,
    s: int,
) -> Tensor:
    """The weight gradient's tap (r, s) as [group, filter, channel]."""
    (x_rows, g_rows), (x_columns, g_columns) = (
        _meeting(*axis)
        for axis in (
            (shape.H, shape.P, shape.stride[0], r * shape.dilation[0] - shape.pad[0]),
            (shape.W, shape.Q, shape.stride[1], s * shape.dilation[1] - shape.pad[2]),
        )
    )
    windows = x[:, :, x_rows, x_columns]
    gradients = g[:, :, g_rows, g_columns]
    size = len(filters) * len(filters[0])
    total = torch.zeros(
        len(filters), len(filters[0]), len(sources[0]), dtype=torch.float64, device=x.device
    )
    images = max(1, _CHUNK // max(1, size * windows.shape[2] * windows.shape[3]))
    rows = max(1, _CHUNK // max(1, size * windows.shape[3]))
    for some_x, some_g in zip(windows.split(images), gradients.split(images), strict=True):
        for band_x, band_g in zip(some_x.split(rows, 2), some_g.split(rows, 2), strict=True):
            inputs = band_x[:, torch.tensor(sources)].double()
            outputs = band_g[:, torch.tensor(filters)].double()
            total += torch.einsum("ngkpq,ngcpq->gkc", outputs, inputs)
    return total


def _meeting(extent: int, outputs: int, stride: int, offset: int) -> tuple[slice, slice]:
    """The inputs i * stride + offset inside the image, and their outputs i."""
    first = max(0, -(offset // stride))
    last = min(outputs, (extent - 1 - offset) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset
    return slice(start, start + (last - first - 1) * stride + 1, stride), slice(first, last)


def _sample_bias_grad(gb: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Sampled channels, each a sum over every pixel of every image."""
    channels = _spread(g.shape[1], _PIXELS)
    return gb[channels], torch.stack([g[:, k].double().sum() for k in channels])
