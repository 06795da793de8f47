"""torch.func: every transform, alone, nested and compiled, agrees with F.conv2d."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import conv2d_ext

CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}
GEOMETRY = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
ALL = (0, 1, 2)
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def sized(*batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, w and bias with leading mapped axes."""
    sizes = ((2, 4, 5, 6), (6, 2, 3, 2), (6,))
    x, w, b = (draw((*batch, *size), torch.float64, seed=i) for i, size in enumerate(sizes))
    return x, w, b


def apply(conv):
    return lambda x, w, b: conv(x, w, b, **GEOMETRY)


def loss(conv):
    return lambda x, w, b: conv(x, w, b, **GEOMETRY).sin().sum()


def cosines(tensors):
    return tuple(t.cos() for t in tensors)


# name: leading axes of the operands, and the transform.
TRANSFORMS = {
    "grad": ((), lambda conv, *a: grad(loss(conv), ALL)(*a)),
    "vjp": ((), lambda conv, *a: vjp(apply(conv), *a)[1](apply(F.conv2d)(*a).cos())),
    "jvp": ((), lambda conv, *a: jvp(apply(conv), a, cosines(a))),
    "linearize": ((), lambda conv, *a: linearize(apply(conv), *a)[1](*cosines(a))),
    "jacrev": ((), lambda conv, *a: jacrev(apply(conv), ALL)(*a)),
    "jacfwd": ((), lambda conv, *a: jacfwd(apply(conv), ALL)(*a)),
    "hessian": ((), lambda conv, *a: hessian(loss(conv), ALL)(*a)),
    "jacrev_of_jacrev": ((), lambda conv, *a: jacrev(jacrev(loss(conv), 1), 1)(*a)),
    "grad_of_grad": (
        (),
        lambda conv, *a: grad(
            lambda *a: sum(g.cos().sum() for g in grad(loss(conv), ALL)(*a)), ALL
        )(*a),
    ),
    "jvp_of_grad": ((), lambda conv, *a: jvp(grad(loss(conv), ALL), a, cosines(a))),
    "vmap_of_vmap": ((2, 3), lambda conv, *a: vmap(vmap(apply(conv)))(*a)),
    "vmap_of_vmap_of_grad": ((2, 3), lambda conv, *a: vmap(vmap(grad(loss(conv), ALL)))(*a)),
    "vmap_of_jvp": ((3,), lambda conv, *a: vmap(lambda *a: jvp(apply(conv), a, a)[1])(*a)),
    "vmap_of_hessian": ((2,), lambda conv, *a: vmap(hessian(loss(conv), 2))(*a)),
    "vmap_in_chunks": ((3,), lambda conv, *a: vmap(grad(loss(conv), ALL), chunk_size=2)(*a)),
    "vmap_other_axes": (
        (3,),
        lambda conv, x, w, b: vmap(apply(conv), (1, 3, 1), 2)(
            x.movedim(0, 1), w.movedim(0, 3), b.movedim(0, 1)
        ),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_transform(conv, name):
    batch, transform = TRANSFORMS[name]
    torch.testing.assert_close(transform(conv, *sized(*batch)), transform(F.conv2d, *sized(*batch)))


IN_DIMS = [
    (0, None, None),
    (None, 0, None),
    (None, None, 0),
    (0, 0, None),
    (0, None, 0),
    (None, 0, 0),
    (0, 0, 0),
]


@pytest.mark.parametrize("in_dims", IN_DIMS, ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_vmap_over_some_operands(conv, in_dims):
    one, many = sized(), sized(3)
    arguments = [m if axis == 0 else o for o, m, axis in zip(one, many, in_dims, strict=True)]

    def results(conv):
        mapped = vmap(apply(conv), in_dims)(*arguments)
        outer = grad(lambda *a: vmap(apply(conv), in_dims)(*a).sin().sum(), ALL)(*arguments)
        inner = vmap(grad(loss(conv), ALL), in_dims)(*arguments)
        return mapped, outer, inner

    torch.testing.assert_close(results(conv), results(F.conv2d))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_vmap_without_bias(conv, batch):
    x, w, _ = sized(batch)

    def results(conv):
        return vmap(lambda x, w: conv(x, w, **GEOMETRY))(x, w)

    torch.testing.assert_close(results(conv), results(F.conv2d))


def test_vmap_of_unbatched_images():
    x, w = draw((5, 3, 6, 7), torch.float64), draw((4, 3, 3, 3), torch.float64)
    got = vmap(conv2d_ext.conv2d, (0, None))(x, w)
    torch.testing.assert_close(got, F.conv2d(x, w))


def test_vmap_with_four_sided_padding():
    x, w, b = sized(3)
    got = vmap(lambda x, w, b: conv2d_ext.conv2d(x, w, b, padding=(0, 2, 1, 3), groups=2))(x, w, b)
    want = vmap(lambda x, w, b: F.conv2d(F.pad(x, (1, 3, 0, 2)), w, b, groups=2))(x, w, b)
    torch.testing.assert_close(got, want)


class Net(torch.nn.Module):
    def __init__(self, conv):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        w = torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64)
        self.w = torch.nn.Parameter(w)
        self.b = torch.nn.Parameter(w[:, 0, 0, 0].detach().clone())
        self.conv = conv

    def forward(self, x):
        return self.conv(x, self.w, self.b, padding=1).relu().mean((-2, -1))


def per_sample_gradients(conv):
    net = Net(conv)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def sample_loss(parameters, image):
        return functional_call(net, parameters, (image[None],)).square().sum()

    return vmap(grad(sample_loss), (None, 0)), parameters, draw((5, 4, 6, 7), torch.float64)


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_per_sample_gradients(conv):
    got, want = (f(p, x) for f, p, x in map(per_sample_gradients, (conv, F.conv2d)))
    torch.testing.assert_close(got, want)
    for i, image in enumerate(draw((5, 4, 6, 7), torch.float64)):
        net = Net(conv)
        net(image[None]).square().sum().backward()
        torch.testing.assert_close(got["w"][i], net.w.grad)


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_compiled_per_sample_gradients(conv):
    f, parameters, x = per_sample_gradients(conv)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(parameters, x), f(parameters, x))


# Not jacfwd: torch 2.11 cannot compile it for F.conv2d either.
@pytest.mark.parametrize("name", ["grad", "jvp", "jacrev", "vmap_of_vmap_of_grad"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_compiled_transform(conv, name):
    batch, transform = TRANSFORMS[name]
    run = partial(transform, conv)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*sized(*batch)), run(*sized(*batch)))


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_a_tensor_that_outlived_its_transform(conv):
    x, w, b = sized()
    kept = []

    def keep(x):
        kept.append(x * 1)
        return x.sum()

    grad(keep)(x)
    w.requires_grad_()
    got, want = (f(kept[0], w, b, **GEOMETRY) for f in (conv, F.conv2d))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got.sin().sum(), w), torch.autograd.grad(want.sin().sum(), w)
    )
