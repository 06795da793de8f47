"""The private operators, resolved once: looking them up costs more than a microsecond a call."""

from __future__ import annotations

import torch

from ._load import load

load()

conv2d = torch.ops.convx.conv2d.default
conv2d_backward = torch.ops.convx.conv2d_backward.default
forward = torch.ops.convx._conv2d.default
input_grad = torch.ops.convx._conv2d_input_grad.default
weight_grad = torch.ops.convx._conv2d_weight_grad.default
bias_grad = torch.ops.convx._conv2d_bias_grad.default
