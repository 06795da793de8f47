"""Which layers convx computes faster than PyTorch, by measurements of layers of the same kind.

This is for convert() without an example input: the sizes of the images are not known then, so a
layer counts as faster only if every measured layer of its kind is. The measurements are
docs/performance/h200.json and cpu.json; on other kinds of machines nothing is predicted.
"""

from __future__ import annotations

import platform

import torch
from torch import nn

from . import _ops
from ._layout import is_channels_last
from ._precision import torch_allows_tf32

# The compute capability of the GPU that was measured.
_MEASURED_CAPABILITY = (9, 0)
_MEASURED_CPU = "aarch64"
_MEASURED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Kernels with more taps than 3x3 were faster in every row, and so were layers with so few channels.
_LARGE_KERNEL = 9
_FEW_CHANNELS = 4


def why_not_faster(layer: nn.Module, train: bool, precision: str | None) -> str | None:
    """Why a layer is not predicted to be faster with convx, or None if it is."""
    if not isinstance(layer, nn.Conv2d):
        return f"nothing is predicted for {type(layer).__name__}; measure with example="
    device = find_target_device(layer)
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) != _MEASURED_CAPABILITY:
            return "nothing is predicted for this GPU; measure with example="
        return why_not_faster_on_hopper(layer, train, precision)
    if device.type != "cpu" or platform.machine() != _MEASURED_CPU:
        return "nothing is predicted for this machine; measure with example="
    return None if train else "predicted to be no faster in inference on this CPU"


def find_target_device(layer: nn.Conv2d) -> torch.device:
    """The device that a layer will run on: from the CPU or the meta device it is expected to move
    to the machine's GPU, if there is one."""
    device = layer.weight.device
    if device.type in ("cpu", "meta"):
        has_gpu = torch.cuda.is_available() and _ops.why_no_cuda() is None
        return torch.device("cuda" if has_gpu else "cpu")
    return device


def why_not_faster_on_hopper(layer: nn.Conv2d, train: bool, precision: str | None) -> str | None:
    """why_not_faster() for GPUs of compute capability 9.0 (h200.json, h200-strict.json)."""
    dtype = layer.weight.dtype
    if dtype not in _MEASURED_DTYPES:
        return f"nothing is predicted for {dtype}; measure with example="
    strict = precision == "ieee" or (precision != "tf32" and not torch_allows_tf32())
    if strict and dtype is torch.float32:
        return None
    taps = layer.kernel_size[0] * layer.kernel_size[1]
    is_lazy = isinstance(layer.weight, nn.UninitializedParameter)
    in_channels_last = not is_lazy and is_channels_last(layer.weight)
    has_stride = max(layer.stride) > 1
    if layer.groups > 1 and in_channels_last and has_stride and not train:
        return "predicted to be no faster: groups with a stride in channels_last, in inference"
    if (
        layer.groups > 1
        or taps > _LARGE_KERNEL
        or (taps > 1 and max(layer.dilation) > 1)
        or 0 < layer.in_channels <= _FEW_CHANNELS
    ):
        return None
    if taps == 1:
        return "predicted to be no faster: a dense 1x1 layer"
    if in_channels_last:
        return "predicted to be no faster: a small dense kernel in channels_last"
    if train and has_stride:
        return "predicted to be no faster: a small dense kernel with a stride, in training"
    return None
