"""Gradients of layers as large as models have them, by each engine that takes them.

Against float64. The grid of test_cuda_engines.py has small problems, which are never split, banded
or halved.
"""

from __future__ import annotations

import pytest
import torch
from cases import Case
from torch import Tensor

import conv2d_ext
from conv2d_ext import _ops
from conv2d_ext._arguments import ConvParams, parse_lists

pytestmark = pytest.mark.gpu
DEVICE = "cuda"

CASES = [
    Case("residual", (16, 64, 56, 56), (64, 64, 3, 3), padding=(1, 1)),
    Case("small_images", (16, 256, 14, 14), (256, 256, 3, 3), padding=(1, 1)),
    Case("wide", (2, 32, 256, 256), (64, 32, 5, 9)),
    Case("few_channels", (2, 16, 256, 512), (128, 16, 3, 3)),
    Case("in_bands", (1, 64, 512, 1024), (160, 64, 3, 3), padding=(1, 1)),  # of 160 channels
    Case("strided", (16, 128, 56, 56), (128, 128, 3, 3), (2, 2), (1, 1)),
    Case("stem", (16, 3, 112, 112), (64, 3, 7, 7), (2, 2), (3, 3)),
    Case("dilated", (2, 256, 64, 64), (64, 256, 3, 3), (1, 1), (12, 12), (12, 12)),
    Case("one_by_one", (16, 64, 56, 56), (256, 64, 1, 1)),
    Case("groups", (8, 128, 28, 28), (192, 64, 3, 3), padding=(1, 1), groups=2),
    Case("depthwise_3x3", (16, 144, 56, 56), (144, 1, 3, 3), (2, 2), (1, 1), groups=144),
    Case("depthwise_5x5", (16, 120, 28, 28), (120, 1, 5, 5), padding=(2, 2), groups=120),
    Case("depthwise_7x7", (16, 96, 56, 56), (96, 1, 7, 7), padding=(3, 3), groups=96),
]
KINDS = [
    (torch.float32, "ieee", 4e-6),
    (torch.float32, "tf32", 1e-3),
    (torch.bfloat16, "ieee", 5e-3),
    (torch.float16, "ieee", 1e-3),
]


def operands(case: Case, dtype: torch.dtype, last: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weights and the output's gradient."""
    torch.manual_seed(len(case.name))
    memory = torch.channels_last if last else torch.contiguous_format
    x, w, y = (torch.randn(s, device=DEVICE).to(dtype) for s in (case.x, case.w, case.y))
    return x.contiguous(memory_format=memory), w, y.contiguous(memory_format=memory)


def run(direction: str, x: Tensor, w: Tensor, y: Tensor, last: bool, p: ConvParams) -> Tensor:
    if direction == "input_grad":
        return _ops.input_grad(y, w, x.shape[2], x.shape[3], last, *p)
    return _ops.weight_grad(y, x, w.shape[2], w.shape[3], False, *p)


def want(direction: str, case: Case, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    x, w = x.double().requires_grad_(), w.double().requires_grad_()
    out = torch.nn.functional.conv2d(x, w, None, **case.geometry)
    return torch.autograd.grad(out, x if direction == "input_grad" else w, y.double())[0]


@pytest.mark.parametrize("last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("direction", ["input_grad", "weight_grad"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_float64(
    case: Case, direction: str, kind: tuple[torch.dtype, str, float], last: bool
) -> None:
    dtype, precision, error = kind
    x, w, y = operands(case, dtype, last)
    expected = want(direction, case, x, w, y)
    said = conv2d_ext.explain(x, w, **case.geometry, precision=precision, direction=direction)
    engines = [candidate.name for candidate in said.candidates if not candidate.refusal]
    assert engines
    for engine in engines:
        p = parse_lists(**case.geometry, precision=precision, algorithm=engine)
        got = run(direction, x, w, y, last, p)
        distance = (got.double() - expected).norm() / expected.norm()
        assert distance <= error, f"{engine}: {distance:.2e}"
        assert torch.equal(run(direction, x, w, y, last, p), got), engine
        if engine == said.engine:
            for _ in range(8):
                assert torch.equal(run(direction, x, w, y, last, p), got)
