"""Float64 values of single elements, from the definition: a check that fits beside any problem."""

from __future__ import annotations

import torch
from torch import Tensor

from .._shape import Shape, passes_of

_SAMPLES = 24


def worst_sampled_error(
    direction: str,
    shape: Shape,
    results: Tensor | tuple[Tensor, ...],
    x: Tensor,
    w: Tensor,
    g: Tensor,
    bias: Tensor | None = None,
) -> float:
    """The largest sampled_error of a direction's results; NaN if one of them is NaN.

    The results of a training step are output, input gradient and weight gradient, and behind them
    the bias gradient if the layer has a bias.
    """
    every = results if isinstance(results, tuple) else (results,)
    names = passes_of(direction)
    errors = [
        sampled_error(name, shape, result, x, w, g, bias if name == "fwd" else None)
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
) -> float:
    """Relative error (Frobenius norm) of a result on randomly chosen elements.

    x, w and g are input, weight and output gradient; the direction says which two made the result,
    the forward pass with a bias or without.
    """
    sample = {"fwd": _sample_output, "dgrad": _sample_input_grad, "wgrad": _sample_weight_grad}
    got, expected = sample[direction](shape, result, x, w, g)
    if bias is not None:
        expected = expected + bias.double()
    return _relative_error(got, expected)


def _relative_error(got: Tensor, expected: Tensor) -> float:
    difference = torch.linalg.vector_norm(got.double() - expected)
    return (difference / torch.linalg.vector_norm(expected).clamp_min(1e-300)).item()


def _pick(*extents: int) -> list[tuple[int, ...]]:
    columns = [torch.randint(extent, (_SAMPLES,)).tolist() for extent in extents]
    return list(zip(*columns, strict=True))


def _row(shape: Shape, p: int, r: int) -> int:
    return p * shape.stride[0] - shape.pad[0] + r * shape.dilation[0]


def _column(shape: Shape, q: int, s: int) -> int:
    return q * shape.stride[1] - shape.pad[2] + s * shape.dilation[1]


def _sample_output(
    shape: Shape, y: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """All filters at sampled pixels."""
    got, expected = [], []
    c = shape.C // shape.groups
    for n, p, q in _pick(shape.N, shape.P, shape.Q):
        patch = torch.zeros(shape.C, shape.R, shape.S, dtype=torch.float64, device=x.device)
        for r in range(shape.R):
            for s in range(shape.S):
                h, v = _row(shape, p, r), _column(shape, q, s)
                if 0 <= h < shape.H and 0 <= v < shape.W:
                    patch[:, r, s] = x[n, :, h, v].double()
        groups = patch.view(shape.groups, c * shape.R * shape.S)
        filters = w.double().reshape(shape.groups, -1, c * shape.R * shape.S)
        expected.append(torch.einsum("gkc,gc->gk", filters, groups).flatten())
        got.append(y[n, :, p, q])
    return torch.stack(got), torch.stack(expected)


def _sample_input_grad(
    shape: Shape, gx: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """All channels at sampled pixels."""
    got, expected = [], []
    filters = w.double().reshape(shape.groups, -1, shape.C // shape.groups, shape.R, shape.S)
    for n, h, v in _pick(shape.N, shape.H, shape.W):
        total = torch.zeros(shape.groups, shape.C // shape.groups, dtype=torch.float64)
        total = total.to(g.device)
        for r in range(shape.R):
            for s in range(shape.S):
                up = h + shape.pad[0] - r * shape.dilation[0]
                left = v + shape.pad[2] - s * shape.dilation[1]
                p, q = up // shape.stride[0], left // shape.stride[1]
                exact = up % shape.stride[0] == 0 and left % shape.stride[1] == 0
                if exact and 0 <= p < shape.P and 0 <= q < shape.Q:
                    pixel = g[n, :, p, q].double().reshape(shape.groups, -1)
                    total += torch.einsum("gk,gkc->gc", pixel, filters[..., r, s])
        expected.append(total.flatten())
        got.append(gx[n, :, h, v])
    return torch.stack(got), torch.stack(expected)


def _sample_weight_grad(
    shape: Shape, gw: Tensor, x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """Sampled weights, each a sum over every pixel of every image."""
    got, expected = [], []
    c = shape.C // shape.groups
    for k, channel, r, s in _pick(shape.K, c, shape.R, shape.S):
        source = k // (shape.K // shape.groups) * c + channel
        rows = [p for p in range(shape.P) if 0 <= _row(shape, p, r) < shape.H]
        columns = [q for q in range(shape.Q) if 0 <= _column(shape, q, s) < shape.W]
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        if rows and columns:
            h, v = _row(shape, rows[0], r), _column(shape, columns[0], s)
            sh, sw = shape.stride
            image = x[:, source, h : h + sh * len(rows) : sh, v : v + sw * len(columns) : sw]
            image = image[:, : len(rows), : len(columns)]
            gradient = g[:, k, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            total = (image.double() * gradient.double()).sum()
        expected.append(total)
        got.append(gw[k, channel, r, s])
    return torch.stack(got), torch.stack(expected)


def _sample_bias_grad(gb: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Sampled channels, each a sum over every pixel of every image."""
    channels = [k for (k,) in _pick(g.shape[1])]
    return gb[channels], torch.stack([g[:, k].double().sum() for k in channels])
