"""Memory layouts: the same sizes, other strides. None of them may be misread."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def contiguous(t: Tensor) -> Tensor:
    return t.contiguous()


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def transposed(t: Tensor) -> Tensor:
    """Columns outermost."""
    return t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


def sliced(t: Tensor) -> Tensor:
    """A view into a larger tensor whose other elements are NaN."""
    n, c, h, w = t.shape
    host = t.new_full((n + 1, c + 2, 2 * h, 3 * w), torch.nan)
    view = host[1:, 1:-1, ::2, ::3]
    view.copy_(t)
    return view


def sliced_channels(t: Tensor) -> Tensor:
    """channels_last with NaN channels between the pixels."""
    n, c, h, w = t.shape
    host = channels_last(t.new_full((n, c + 3, h, w), torch.nan))
    view = host[:, 2:-1]
    view.copy_(t)
    return view


def expanded_images(t: Tensor) -> Tensor:
    """The first image again and again: stride 0."""
    return t[:1].expand(t.shape)


def expanded_channels(t: Tensor) -> Tensor:
    return t[:, :1].expand(t.shape)


def expanded_value(t: Tensor) -> Tensor:
    """One number everywhere, as the gradient of a sum is."""
    return t.flatten()[0].expand(t.shape) if t.numel() else t


def overlapping(t: Tensor) -> Tensor:
    """Element (h, w) shares memory with (h + 1, w - 1), as in a window's unfolding."""
    n, c, h, w = t.shape
    values = t.flatten()
    storage = values.repeat(2)[: n * c * (h + w)].clone() if t.numel() else t.new_empty(0)
    return storage.as_strided(t.shape, (c * (h + w), h + w, 1, 1))


class Layout(NamedTuple):
    """How the tensors of a call lie in memory; the result is asked for in channels_last or not."""

    name: str
    x: Callable[[Tensor], Tensor]
    w: Callable[[Tensor], Tensor]
    y: Callable[[Tensor], Tensor]
    result_channels_last: bool = False

    def __str__(self) -> str:
        return self.name


COMMON = [
    Layout("contiguous", contiguous, contiguous, contiguous),
    Layout("channels_last", channels_last, channels_last, channels_last, True),
]
UNCOMMON = [
    Layout("x_channels_last", channels_last, contiguous, contiguous, True),
    Layout("w_channels_last", contiguous, channels_last, channels_last),
    Layout("y_channels_last", contiguous, contiguous, channels_last),
    Layout("transposed", transposed, transposed, transposed),
    Layout("sliced", sliced, sliced, sliced),
    Layout("sliced_channels", sliced_channels, sliced_channels, sliced_channels, True),
    Layout("expanded_images", expanded_images, expanded_images, expanded_images),
    Layout("expanded_channels", expanded_channels, expanded_channels, expanded_channels, True),
    Layout("expanded_value", contiguous, expanded_value, expanded_value),
    Layout("overlapping", overlapping, overlapping, overlapping),
]
LAYOUTS = COMMON + UNCOMMON
