"""One wheel, any torch: a short run of the installed package, for environments other than the one
that the wheel was built in. Not part of the suite (its name is no test's): name it to run it."""

import pytest
import torch
import torch.nn.functional as F

import conv2d_ext

CASES = [
    # x, w, stride, padding, dilation, groups
    ((2, 4, 9, 11), (6, 4, 3, 5), (1, 2), (2, 4), (2, 3), 1),
    ((1, 6, 8, 8), (12, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((3, 4, 7, 7), (4, 2, 1, 1), (2, 2), (0, 0), (1, 1), 2),
]


def tensors(x_shape, w_shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (x_shape, w_shape, w_shape[:1])
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [t.to(dtype).requires_grad_() for t in made]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_forward_and_backward(case, memory_format):
    x_shape, w_shape, *geometry = case
    x, w, b = tensors(x_shape, w_shape)
    y = conv2d_ext.conv2d(x.to(memory_format=memory_format), w, b, *geometry)
    y.square().sum().backward()
    want = [t.detach().double().requires_grad_() for t in (x, w, b)]
    want_y = F.conv2d(*want, *geometry)
    want_y.square().sum().backward()
    torch.testing.assert_close(y.double(), want_y, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip((x, w, b), want, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-3)


def test_compiles():
    x_shape, w_shape, *geometry = CASES[0]
    x, w, b = tensors(x_shape, w_shape)
    compiled = torch.compile(conv2d_ext.conv2d, backend="aot_eager", fullgraph=True)
    y = compiled(x, w, b, *geometry)
    y.sum().backward()
    torch.testing.assert_close(y, F.conv2d(x, w, b, *geometry), rtol=1e-4, atol=1e-4)
    assert x.grad.shape == x.shape


def test_opcheck():
    x_shape, w_shape, stride, padding, dilation, groups = CASES[0]
    x, w, b = tensors(x_shape, w_shape)
    arguments = (x, w, b, list(stride), list(padding), list(dilation), groups)
    torch.library.opcheck(torch.ops.convx.conv2d.default, arguments)


def test_what_was_loaded():
    loaded = conv2d_ext._load.loaded_libraries()
    print(f"torch {torch.__version__}: {loaded}")
    assert (loaded.cuda is None) == (loaded.why_no_cuda is not None)
