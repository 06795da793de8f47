"""The benchmark's names for a dtype and what its products may be rounded to."""

from __future__ import annotations

import torch

PRECISIONS = ("ieee", "tf32", "bf16", "fp16", "fp64")

# Relative errors that only a wrong result exceeds.
TOLERANCES = {"ieee": 2e-5, "tf32": 3e-3, "bf16": 2e-2, "fp16": 3e-3, "fp64": 1e-11}

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_of(name: str) -> torch.dtype:
    return _DTYPES.get(name, torch.float32)


def precision_argument(name: str) -> str:
    """What conv2d's `precision` has to be for it."""
    return "tf32" if name == "tf32" else "ieee"


def precision_name(dtype: torch.dtype, precision: str) -> str:
    """The name for a dtype and conv2d's `precision`, "ieee" or "tf32"."""
    return _NAMES.get(dtype, precision)
