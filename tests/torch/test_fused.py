"""conv2d(..., activation=, residual=): PyTorch's functions behind F.conv2d, in one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch import Tensor
from torch.library import opcheck

import conv2d_ext
from conv2d_ext._checks import ACTIVATIONS
from conv2d_ext._fused import ACTIVATIONS as FUNCTIONS

# (input, weight, keyword arguments)
CASES: dict[str, Any] = {
    "plain": ((2, 4, 7, 6), (5, 4, 3, 3), dict(padding=1)),
    "pointwise": ((2, 6, 5, 7), (9, 6, 1, 1), {}),
    "strided": ((2, 6, 9, 8), (8, 6, 3, 2), dict(stride=(2, 1), padding=(1, 0))),
    "groups": ((2, 6, 6, 5), (9, 2, 3, 3), dict(padding=1, groups=3)),
    "depthwise": ((2, 6, 6, 5), (6, 1, 3, 3), dict(padding=(1, 2), groups=6)),
    "wide": ((1, 40, 5, 9), (70, 40, 3, 3), dict(padding=1, dilation=(1, 2))),
}
LAYOUTS = [torch.contiguous_format, torch.channels_last]
SLOPE = 0.2


def operands(case: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[Tensor]:
    """Input, weight, bias and residual."""
    x, w, arguments = CASES[case]
    tensors = [draw(size, dtype, device, seed=i) for i, size in enumerate((x, w, (w[0],)))]
    output = F.conv2d(*(t.double().cpu() for t in tensors), **arguments)
    return [*tensors, draw(tuple(output.shape), dtype, device, seed=3)]


def separate(case: str, activation: str, x: Tensor, w: Tensor, b: Any, r: Any = None) -> Tensor:
    y = F.conv2d(x, w, b, **CASES[case][2])
    return FUNCTIONS[activation](y if r is None else y + r, SLOPE)


def fused(case: str, activation: str, x: Tensor, w: Tensor, b: Any, r: Any = None) -> Tensor:
    return conv2d_ext.conv2d(
        x, w, b, **CASES[case][2], activation=activation, residual=r, negative_slope=SLOPE
    )


def test_names_are_the_library_s() -> None:
    assert tuple(FUNCTIONS) == ACTIVATIONS
    with pytest.raises(RuntimeError) as caught, torch.inference_mode():
        torch.ops.convx._conv2d_fused(
            *(torch.ones(1, 1, 1, 1),) * 2, None, None, "swish", 0, *[1, 1, 0, 0, 0, 0, 1, 1, 1],
            "ieee", "auto"
        )  # fmt: skip
    for name in ACTIVATIONS:
        assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case, activation, layout, device) -> None:
    for count in (3, 4):
        tensors = operands(case)[:count]
        tensors[0] = tensors[0].contiguous(memory_format=layout)
        want_of = [t.clone().requires_grad_() for t in tensors]
        got_of = [t.to(device, copy=True).requires_grad_() for t in tensors]
        want, got = separate(case, activation, *want_of), fused(case, activation, *got_of)
        torch.testing.assert_close(got.cpu(), want)
        assert got.stride() == want.stride()
        g = torch.randn_like(want)
        torch.testing.assert_close(
            [t.cpu() for t in torch.autograd.grad(got, got_of, g.to(device))],
            list(torch.autograd.grad(want, want_of, g)),
        )
        with torch.no_grad():
            torch.testing.assert_close(fused(case, activation, *got_of).cpu(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sums_are_rounded_once(activation, dtype) -> None:
    for case in CASES:
        tensors = operands(case, dtype)
        want = separate(case, activation, *(t.double() for t in tensors))
        got = fused(case, activation, *tensors)
        assert got.dtype == dtype
        error = ((got.double() - want).abs() / want.abs().clamp_min(1)).max()
        # Half a unit in the last place, and a bit for the float32 sum in front of it.
        assert error < {torch.float32: 3e-5, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_float32_functions_are_as_exact_as_pytorch_s(activation) -> None:
    v = torch.cat([torch.linspace(-30, 30, 100_001), torch.logspace(-30, 0, 5_000)])
    special = torch.tensor([float("nan"), float("inf"), 0.0, 1e30, -1e30, 1e-40, -100.0])
    x = torch.cat([v, special]).view(1, 1, 1, -1)
    got = conv2d_ext.conv2d(x, torch.ones(1, 1, 1, 1), activation=activation).flatten()
    exact = FUNCTIONS[activation](x.double(), 0.01).flatten()
    pytorch = FUNCTIONS[activation](x, 0.01).flatten()
    ours = (got.double() - exact).abs()[: len(v)]
    theirs = (pytorch.double() - exact).abs()[: len(v)]
    assert (ours <= 2 * theirs.max() + 1e-7).all()
    # Near zero the relative error counts too.
    near = exact[: len(v)].abs() < 0.5
    near &= exact[: len(v)].abs() > 1e-3
    assert (ours[near] <= 5e-7 * exact[: len(v)][near].abs() + 1.2e-7).all()
    torch.testing.assert_close(got[len(v) :].double(), exact[len(v) :], equal_nan=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", ["plain", "groups"])
def test_gradients_of_gradients(case, activation) -> None:
    tensors = [t.requires_grad_() for t in operands(case)]

    def conv(*tensors: Tensor) -> Tensor:
        return fused(case, activation, *tensors)

    assert torch.autograd.gradcheck(conv, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(conv, tensors, fast_mode=True)


@pytest.mark.parametrize("which", range(4))
def test_one_gradient_alone(which) -> None:
    tensors = operands("plain")
    want_of = [t.clone().requires_grad_(i == which) for i, t in enumerate(tensors)]
    got_of = [t.clone().requires_grad_(i == which) for i, t in enumerate(tensors)]
    separate("plain", "relu", *want_of).square().sum().backward()
    fused("plain", "relu", *got_of).square().sum().backward()
    torch.testing.assert_close(got_of[which].grad, want_of[which].grad)
    assert all(t.grad is None for i, t in enumerate(got_of) if i != which)


def test_a_slope_of_zero_or_less() -> None:
    tensors = [t.requires_grad_() for t in operands("plain")[:3]]
    for slope in (0.0, -0.5):
        got = conv2d_ext.conv2d(*tensors, padding=1, activation="leaky_relu", negative_slope=slope)
        want = F.leaky_relu(F.conv2d(*tensors, padding=1), slope)
        torch.testing.assert_close(got, want)
        for a, b in zip(
            torch.autograd.grad(got.sum(), tensors),
            torch.autograd.grad(want.sum(), tensors),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_residual_of_any_layout(layout) -> None:
    x, w, b, r = operands("plain")
    want = separate("plain", "relu", x, w, b, r)
    wide = torch.empty(*r.shape[:3], r.shape[3] + 3, dtype=r.dtype)[..., 1:-2].copy_(r)
    for residual in (r.contiguous(memory_format=layout), wide, r.transpose(2, 3).contiguous().mT):
        torch.testing.assert_close(fused("plain", "relu", x, w, b, residual), want)
    one = r[:1, :1].expand_as(r)
    torch.testing.assert_close(
        fused("plain", "relu", x, w, b, one), separate("plain", "relu", x, w, b, one)
    )


def test_a_single_image() -> None:
    x, w, b, r = operands("plain")
    want = separate("plain", "silu", x[0], w, b, r[0])
    torch.testing.assert_close(fused("plain", "silu", x[0], w, b, r[0]), want)
    got = torch.ops.convx.conv2d_act(x[0], w, b, padding=1, residual=r[0], activation="silu")
    torch.testing.assert_close(got, want)


def test_empty() -> None:
    for size in ((0, 3, 4, 4), (2, 0, 4, 4)):
        x = torch.randn(size, requires_grad=True)
        w = torch.randn(5, size[1], 3, 3, requires_grad=True)
        y = conv2d_ext.conv2d(x, w, padding=1, activation="relu")
        assert y.shape == F.conv2d(x, w, padding=1).shape
        y.sum().backward()
        assert x.grad is not None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(activation="swish"), r"activation must be one of 'none', .*activation='swish'"),
        (dict(activation=F.relu), "activation must be one of"),
        (dict(residual=torch.ones(1, 5, 7, 6)), r"residual to have the output's size \[2, 5,"),
        (dict(residual=torch.ones(2, 5, 7, 6, dtype=torch.float64)), "residual to have the dtype"),
        (dict(activation="leaky_relu", negative_slope=float("inf")), "negative_slope must be"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("grad", [False, True])
def test_errors(changed, message, grad) -> None:
    x, w, b, _ = operands("plain", torch.float32)
    with pytest.raises(RuntimeError, match=message):
        conv2d_ext.conv2d(x.requires_grad_(grad), w, b, padding=1, **changed)


def test_wrong_types() -> None:
    x, w, b, _ = operands("plain")
    with pytest.raises(TypeError, match="residual must be a Tensor or None, but got residual=1"):
        conv2d_ext.conv2d(x, w, b, residual=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="negative_slope must be a number"):
        conv2d_ext.conv2d(x, w, b, activation="relu", negative_slope="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_func_transforms(activation) -> None:
    x, w, b, r = operands("plain")

    def ours(*t: Tensor) -> Tensor:
        return fused("plain", activation, *t)

    def theirs(*t: Tensor) -> Tensor:
        return separate("plain", activation, *t)

    def of_output(conv: Any) -> Any:
        return torch.func.grad(lambda *t: conv(*t).sin().sum(), argnums=(0, 1, 2, 3))

    torch.testing.assert_close(of_output(ours)(x, w, b, r), of_output(theirs)(x, w, b, r))
    tangents = tuple(map(torch.randn_like, (x, w, b, r)))
    torch.testing.assert_close(
        torch.func.jvp(ours, (x, w, b, r), tangents),
        torch.func.jvp(theirs, (x, w, b, r), tangents),
    )
    many = torch.stack([x, -x])
    torch.testing.assert_close(
        torch.func.vmap(ours, (0, None, None, None))(many, w, b, r),
        torch.func.vmap(theirs, (0, None, None, None))(many, w, b, r),
    )
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangents[0])
        torch.testing.assert_close(ours(dual, w, b, r), theirs(dual, w, b, r))


def test_autocast() -> None:
    x, w, b, r = operands("plain", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for conv in (
            lambda: fused("plain", "silu", x, w, b, r),
            lambda: torch.ops.convx.conv2d_act(x, w, b, padding=1, residual=r, activation="silu"),
        ):
            got = conv()
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(
                got.float(), separate("plain", "silu", x, w, b, r).float(), rtol=2e-2, atol=2e-2
            )


@pytest.mark.parametrize("activation", ["relu", "silu", "none"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(activation, dynamic) -> None:
    torch._dynamo.reset()
    tensors = [t.float().requires_grad_() for t in operands("plain")]
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def conv(*t: Tensor) -> Tensor:
        return fused("plain", activation, *t) * 2

    compiled = torch.compile(conv, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    want, got = conv(*tensors), compiled(*tensors)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), tensors), torch.autograd.grad(want.sum(), tensors)
    )
    torch.compile(conv, fullgraph=True, backend=backend)(*tensors)
    targets = [node.target for node in graphs[0].graph.nodes]
    assert torch.ops.convx.conv2d_act.default in targets


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "none"])
@pytest.mark.parametrize("case", ["plain", "groups"])
def test_opcheck(case, activation, requires_grad) -> None:
    x, w, b, r = (t.requires_grad_(requires_grad) for t in operands(case))
    arguments = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1} | CASES[case][2]
    lists = [
        value if name == "groups" else list(value) if isinstance(value, tuple) else [value, value]
        for name, value in arguments.items()
    ]
    words = dict(residual=r, activation=activation)
    opcheck(torch.ops.convx.conv2d_act.default, (x, w, b, *lists), words)


def test_a_tuned_choice_serves_fused_calls_too() -> None:
    x, w, b, r = operands("plain", torch.float32)
    want = separate("plain", "relu", x, w, b, r)
    for algorithm in ("cpu_gemm", "cpu_direct"):
        got = conv2d_ext.conv2d(
            x, w, b, padding=1, activation="relu", residual=r, algorithm=algorithm
        )
        torch.testing.assert_close(got, want)


def test_flops() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x, w, b, r = operands("plain")
    counts = []
    for conv in (separate, fused):
        with FlopCounterMode(display=False) as counter:
            conv("plain", "relu", x, w, b, r)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
