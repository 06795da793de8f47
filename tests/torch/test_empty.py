"""Tensors without channels, and empty images of empty batches: whatever F.conv2d does with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jvp, vmap
from torch.library import opcheck

import conv2d_ext

OPS = torch.ops.convx
CONVS = {"function": conv2d_ext.conv2d, "op": OPS.conv2d}
# Sizes of input and weight, and the other arguments.
EMPTY = {
    "no_channels": ((2, 0, 5, 6), (3, 0, 3, 3), {}),
    "no_channels_in_groups": ((2, 0, 5, 6), (4, 0, 3, 3), {"groups": 2}),
    "no_channels_strided": ((2, 0, 9, 8), (4, 0, 3, 2), {"stride": 2, "padding": 1, "dilation": 2}),
    "no_channels_no_images": ((0, 0, 5, 6), (3, 0, 3, 3), {}),
    "no_channels_no_rows": ((2, 0, 0, 6), (3, 0, 3, 3), {"padding": 2}),
    "no_images_no_rows": ((0, 3, 0, 6), (4, 3, 3, 3), {"padding": 2}),
    "no_images_no_pixels": ((0, 3, 0, 0), (4, 3, 3, 3), {"padding": 2}),
    "no_batch_no_channels": ((0, 5, 6), (3, 0, 3, 3), {}),
}


def draw_all(name: str, device: str = "cpu") -> tuple[list[torch.Tensor], dict]:
    x, w, arguments = EMPTY[name]
    sizes = x, w, w[:1]
    return [torch.randn(size, device=device, dtype=torch.float64) for size in sizes], arguments


@pytest.mark.parametrize("has_bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_output_and_gradients(conv, name, has_bias, device):
    tensors, arguments = draw_all(name, device)
    tensors = tensors[: 3 if has_bias else 2]
    got, want = [], []
    for result, call in ((got, conv), (want, F.conv2d)):
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = call(*leaves, **arguments)
        result += [y, *torch.autograd.grad(y.sum(), leaves)]
    for mine, other in zip(got, want, strict=True):
        assert mine.shape == other.shape
        assert mine.device == other.device
        assert torch.equal(mine, other)
    assert got[0].stride() == want[0].stride()
    with torch.inference_mode():
        assert conv(*tensors, **arguments).shape == want[0].shape
    on_meta = conv(*(t.to("meta") for t in tensors), **arguments)
    assert (on_meta.shape, on_meta.stride()) == (want[0].shape, want[0].stride())


@pytest.mark.parametrize("name", [name for name in EMPTY if "batch" not in name])
def test_backward_operator(name, device):
    (x, w, b), arguments = draw_all(name, device)
    lists = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **arguments}
    lists = [v if k == "groups" else [v, v] for k, v in lists.items()]
    g = torch.randn_like(F.conv2d(x, w, b, **arguments))
    zeros = [torch.zeros_like(t) for t in (x, w, b)]
    for mask in ([True] * 3, [False, True, False]):
        for context in (torch.inference_mode(), torch.enable_grad()):
            with context:
                grads = OPS.conv2d_backward(g, x, w, *lists, mask)
            for got, want, asked in zip(grads, zeros, mask, strict=True):
                assert torch.equal(got, want) if asked else got is None
    opcheck(OPS.conv2d_backward.default, (g, x, w, *lists, [True] * 3))


@pytest.mark.parametrize("name", ["no_channels", "no_channels_in_groups", "no_batch_no_channels"])
def test_opcheck(name, device):
    (x, w, b), arguments = draw_all(name, device)
    groups = arguments.get("groups", 1)
    tensors = [t.requires_grad_() for t in (x, w, b)]
    opcheck(OPS.conv2d.default, (*tensors, [1, 1], [0, 0], [1, 1], groups))


def test_second_derivatives():
    (x, w, b), _ = draw_all("no_channels")
    x, w, b = (t.requires_grad_() for t in (x, w, b))
    y = conv2d_ext.conv2d(x, w, b)
    grads = torch.autograd.grad(y.sum(), (x, w, b), create_graph=True)
    again = torch.autograd.grad(sum(g.sum() for g in grads), (x, w), allow_unused=True)
    assert all(g is None or not g.any() for g in again)


def test_torch_func():
    (x, w, b), _ = draw_all("no_channels")

    def call(x, w, b):
        return conv2d_ext.conv2d(x, w, b)

    y, tangent = jvp(call, (x, w, b), (x, w, b))
    assert y.shape == tangent.shape == (2, 0, 3, 4)
    y, tangent = jvp(lambda b: call(x, w, b), (b,), (b,))
    assert tangent.shape == (2, 0, 3, 4)
    many = [torch.stack([t, t, t]) for t in (x, w, b)]
    for in_dims in ((0, 0, 0), (0, None, None), (None, None, 0), (None, 0, None)):
        operands = [m if d == 0 else t for m, t, d in zip(many, (x, w, b), in_dims, strict=True)]
        assert vmap(call, in_dims)(*operands).shape == (3, 2, 0, 3, 4)
    per_sample = vmap(grad(lambda b, x: call(x, w, b).sum()), (None, 0))(b, many[0])
    assert torch.equal(per_sample, torch.zeros(3, 3))


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled():
    layer = conv2d_ext.Conv2d(0, 4, 3).requires_grad_()
    x = torch.randn(2, 0, 5, 5)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert y.shape == torch.nn.Conv2d(0, 4, 3)(x).shape
    y.sum().backward()
    assert torch.equal(layer.bias.grad, torch.zeros(4))


def test_explain_says_that_there_is_nothing_to_compute():
    with pytest.raises(RuntimeError, match="an input without channels has no engine"):
        conv2d_ext.explain((2, 0, 5, 5), (3, 0, 3, 3))
