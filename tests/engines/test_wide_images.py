"""Large images of few channels, which cuda_lines turns on the way, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conv2d_ext

pytestmark = pytest.mark.gpu

SHAPES = {  # x, w, padding, dilation
    "no_padding": ((8, 16, 256, 512), (128, 16, 3, 3), (0, 0), (1, 1)),
    "padding": ((12, 12, 200, 320), (100, 12, 3, 3), (1, 1), (1, 1)),
    "few_filters": ((16, 5, 250, 248), (33, 5, 3, 3), (2, 1), (1, 1)),
    "dilated": ((16, 13, 128, 256), (64, 13, 3, 5), (0, 3), (2, 1)),
    "many_taps": ((8, 16, 300, 136), (128, 16, 5, 3), (2, 2), (1, 1)),
}
# The largest relative error of a result, as its norm.
ERRORS = {torch.float32: 4e-4, torch.bfloat16: 3e-3, torch.float16: 4e-4}


def make_operands(name: str, dtype: torch.dtype, offset: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """offset: elements between the source and a multiple of 16 bytes."""
    x_shape, w_shape, _, _ = SHAPES[name]
    generator = torch.Generator("cuda").manual_seed(len(name))
    numbers = [torch.Size(x_shape).numel() + offset, torch.Size(w_shape).numel(), w_shape[0]]
    x, w, b = (torch.randn(n, device="cuda", generator=generator).to(dtype) for n in numbers)
    return x[offset:].view(x_shape), w.view(w_shape) / 12, b


def run(name: str, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    _, _, padding, dilation = SHAPES[name]
    return conv2d_ext.conv2d(
        x, w, b, 1, padding, dilation, precision="tf32", algorithm="cuda_lines"
    )


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_like_float64(name: str, dtype: torch.dtype, offset: int) -> None:
    x, w, b = make_operands(name, dtype, offset)
    _, _, padding, dilation = SHAPES[name]
    want = F.conv2d(x.double(), w.double(), b.double(), 1, padding, dilation)
    got = run(name, x, w, b)
    assert (got.double() - want).norm() <= ERRORS[dtype] * want.norm()
    assert ((got.double() - want).abs() <= 20 * ERRORS[dtype] * want.std()).all()
    for _ in range(9):
        assert torch.equal(run(name, x, w, b), got)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30], ids=str)
@pytest.mark.parametrize("name", ["no_padding", "padding"])
def test_values_that_are_not_halved(name: str, value: float) -> None:
    """They are found on the way, when some of the result has been stored already."""
    x, w, b = make_operands(name, torch.float32)
    x[-1, 3, -2, 77] = value
    _, _, padding, dilation = SHAPES[name]
    want = F.conv2d(x.double(), w.double(), b.double(), 1, padding, dilation)
    got = run(name, x, w, b)
    assert torch.equal(got.isnan(), want.float().isnan())
    finite = want.abs() < 1e25
    assert torch.allclose(got[finite].double(), want[finite], atol=1e-2)
    assert torch.allclose(got[~finite].double(), want[~finite], rtol=1e-2, equal_nan=True)
