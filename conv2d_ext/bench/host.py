"""What a call costs on the host, on its way to an engine."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import conv2d
from .timing import host_us


def host_times(device: torch.device) -> dict[str, float]:
    """Microseconds per call, ours and F.conv2d's, of a convolution so small that only the way to
    it takes time: under no_grad, and where a gradient will be asked for."""
    x = torch.randn(1, 4, 8, 8, device=device)
    w = torch.randn(4, 4, 3, 3, device=device)

    def time(call: Callable[..., Tensor], grad: bool) -> float:
        weight = w.clone().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            return host_us(lambda: call(x, weight, padding=1))

    return {
        "ours_us": time(conv2d, False),
        "torch_us": time(F.conv2d, False),
        "ours_grad_us": time(conv2d, True),
        "torch_grad_us": time(F.conv2d, True),
    }
