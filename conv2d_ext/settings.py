"""Settings of the process."""

from __future__ import annotations

import torch

from . import _ops
from ._values import shown


def set_cuda_workspace_limit(bytes: int) -> int:
    """Bound the scratch memory a CUDA convolution may take, and return the bound before.

    The bound is 256 MiB unless you set another. Engines work in smaller pieces to stay below it, or
    leave the problem to one that needs less.
    """
    if _ops.why_no_cuda() is not None:
        raise RuntimeError(f"convx: there is no CUDA half: {_ops.why_no_cuda()}")
    if bytes < 1 << 20:
        raise ValueError(
            f"convx: the workspace limit must be at least 1 MiB, but got {shown(bytes)}"
        )
    return torch.ops.convx._set_cuda_workspace_limit(bytes)
