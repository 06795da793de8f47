"""float32 means float32: the errors of 'ieee' against float64, beside those of cuDNN's own float32.

Each engine that multiplies float32 in parts is forced by name over operands that are random, badly
scaled, sparse, or cancel each other, in problems large enough for what an engine does with large
ones only.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conv2d_ext

pytestmark = pytest.mark.gpu
Operands = tuple[Tensor, Tensor]

PARTS = ("cuda_lines", "cuda_pixels", "cuda_mma", "cuda_pointwise")
SHAPES = {  # x, w
    "dense": ((8, 64, 56, 56), (64, 64, 3, 3)),
    "few terms": ((4, 16, 120, 130), (128, 16, 3, 3)),
    "deep": ((8, 256, 14, 14), (256, 256, 3, 3)),
    "wide kernel": ((2, 32, 96, 97), (64, 32, 5, 9)),
    "stem": ((16, 3, 112, 112), (64, 3, 7, 7)),
    "pointwise": ((16, 64, 56, 56), (128, 64, 1, 1)),
}


def spread(like: Tensor, decades: float) -> Tensor:
    """Factors from 10 ** -decades to 10 ** decades."""
    return 10 ** (2 * decades * torch.rand_like(like) - decades)


def shift_channels(x: Tensor, w: Tensor, factor: float) -> Operands:
    x, w = x.clone(), w.clone()
    x[:, ::3] *= factor
    w[:, ::3] /= factor
    return x, w


def cancel(x: Tensor, w: Tensor) -> Operands:
    """Every other tap of x nearly undoes the one before."""
    x = x.clone()
    pairs = x.shape[3] // 2 * 2
    x[..., 1:pairs:2] = -x[..., 0:pairs:2] * (1 + 1e-5)
    return x, torch.ones_like(w) * w[:, :, :, :1]


def darken(x: Tensor, w: Tensor) -> Operands:
    x = x.clone()
    x[..., x.shape[3] // 2 :] *= 1e-12
    return x, w


KINDS: dict[str, Callable[[Tensor, Tensor], Operands]] = {
    "random": lambda x, w: (x, w),
    "positive": lambda x, w: (x.abs(), w.abs()),
    "rectified": lambda x, w: (x.relu(), w),
    "one in ten": lambda x, w: (x * (torch.rand_like(x) < 0.1), w),
    "one in a hundred": lambda x, w: (x * (torch.rand_like(x) < 0.01), w),
    "tails": lambda x, w: (F.gelu(3 * x), w),
    "long tails": lambda x, w: (x * torch.exp(3 * torch.randn_like(x)), w),
    "small": lambda x, w: (1e-12 * x, 1e-9 * w),
    "large": lambda x, w: (1e12 * x, 1e9 * w),
    "apart": lambda x, w: (x * spread(x, 20), w),
    "both apart": lambda x, w: (x * spread(x, 10), w * spread(w, 10)),
    "channels apart": lambda x, w: shift_channels(x, w, 1e15),
    "channels somewhat apart": lambda x, w: shift_channels(x, w, 1e3),
    "cancelling": cancel,
    "half dark": darken,
    "subnormal": lambda x, w: (1e-41 * x, w),
}


def engines(x: Tensor, w: Tensor) -> list[str]:
    said = conv2d_ext.explain(x, w, precision="ieee")
    return [c.name for c in said.candidates if not c.refusal and c.name in PARTS]


def measure(got: Tensor, exact: Tensor, terms: Tensor) -> tuple[float, float]:
    """(the norm of all errors, the largest one over the sum of its terms)"""
    error = (got.double() - exact).abs()
    norm = error.norm() / exact.norm().clamp_min(1e-300)
    # What float32 cannot tell from zero does not count.
    return norm.item(), ((error - 2e-45).clamp_min(0) / terms.clamp_min(1e-300)).max().item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_like_those_of_cudnn(shape: str, kind: str) -> None:
    torch.manual_seed(5)
    x, w = (torch.randn(extents, device="cuda") for extents in SHAPES[shape])
    x, w = KINDS[kind](x, w)
    exact = F.conv2d(x.double(), w.double())
    terms = F.conv2d(x.double().abs(), w.double().abs())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, benchmark=True):
        theirs = measure(F.conv2d(x, w), exact, terms)
    # Rounding the result alone is half of the first limit, and all that short sums have.
    limits = max(2 * theirs[0], 1.2e-7), max(2 * theirs[1], 3e-7)
    for engine in engines(x, w):
        y = conv2d_ext.conv2d(x, w, precision="ieee", algorithm=engine)
        ours = measure(y, exact, terms)
        assert ours[0] <= limits[0], f"{engine}: {ours[0]:.1e}, cuDNN {theirs[0]:.1e}"
        assert ours[1] <= limits[1], f"{engine}: {ours[1]:.1e} at most, cuDNN {theirs[1]:.1e}"


def test_some_of_these_are_halved() -> None:
    """Or the test above would not say what it seems to."""
    halved = set()
    for x_shape, w_shape in SHAPES.values():
        said = conv2d_ext.explain(x_shape, w_shape, precision="ieee", device="cuda")
        halved |= {candidate.name for candidate in said.candidates if candidate.halves}
    assert "cuda_lines" in halved
