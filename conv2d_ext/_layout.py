"""Memory formats, decided as PyTorch and the C++ side decide them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_channels_last(tensor: Tensor) -> bool:
    """Whether PyTorch suggests channels_last for a 4-D tensor.

    Tensors that are both (one channel, or one pixel) count as contiguous; see is_channels_last in
    csrc/core/problem.cpp for the same rule.
    """
    size = tensor.shape
    if size[1] > 1 and size[3] > 1 and tensor.is_contiguous():
        return False  # the common case, decided without looking at every stride
    return are_channels_last(size, tensor.stride())


def are_channels_last(size: Sequence[int], stride: Sequence[int]) -> bool:
    """is_channels_last() for a tensor of these sizes and strides."""
    if stride[1] == 0:
        return False
    smallest = 0
    for axis in (1, 3, 2):
        if size[axis] == 0 or stride[axis] < smallest:
            return False
        smallest = stride[axis] * size[axis] if size[axis] > 1 else stride[axis]
    if size[0] == 0 or stride[0] < smallest:
        return False
    return smallest != stride[1]


def new_dense(like: Tensor, size: list[int], channels_last: bool) -> Tensor:
    """An uninitialised tensor of `like`'s dtype and device, in the given memory format."""
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=memory_format)
