"""Settings of the process."""

from __future__ import annotations

import torch

from ._load import loaded_libraries


def set_cuda_workspace_limit(bytes: int) -> int:
    """Bound the scratch memory a CUDA convolution may take, and return the bound before.

    256 MiB unless set. Engines work in smaller pieces to stay below it, or leave the problem to
    one that needs less.
    """
    if loaded_libraries().cuda is None:
        raise RuntimeError(f"convx: there is no CUDA half: {loaded_libraries().why_no_cuda}")
    if bytes < 1 << 20:
        raise ValueError(f"convx: the workspace limit must be at least 1 MiB, but got {bytes}")
    return torch.ops.convx._set_cuda_workspace_limit(bytes)
