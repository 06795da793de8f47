"""How far a computed convolution may be from the exact one: one table for checks and tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Unit roundoff of the accumulators; 16-bit types accumulate in float32.
ACCUMULATION_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-24,
    torch.bfloat16: 2.0**-24,
}
# float32 operands rounded to TF32: 10 stored bits.
TF32_ROUNDOFF = 2.0**-11

# Relative errors, in the Frobenius norm, that only a wrong result exceeds.
WRONG_ABOVE = {"ieee": 2e-5, "tf32": 3e-3, "bf16": 2e-2, "fp16": 3e-3, "fp64": 1e-11}


def tolerance(
    want: Tensor, magnitude: Tensor, dtype: torch.dtype, length: int, tf32: bool
) -> Tensor:
    """How far each element may be from the float64 result.

    `magnitude` is the sum of the products' absolute values. Rounding errors of a sum of `length`
    terms walk randomly, so they grow with its square root; 4 of them is far out on the tail.
    Writing the result rounds it once more, to `dtype`.
    """
    sums = ACCUMULATION_ROUNDOFF[dtype] * (4.0 * math.sqrt(length) + 4.0)
    products = 2.0 * TF32_ROUNDOFF if tf32 and dtype is torch.float32 else 0.0
    info = torch.finfo(dtype)
    written = 0.501 * info.eps * want.abs() + info.smallest_normal * info.eps
    return written + (sums + products) * magnitude
