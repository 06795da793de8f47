"""The backend of torch.compile that takes convx where it is faster, without touching the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn

import conv2d_ext
from conv2d_ext import _graph_pass
from conv2d_ext.measuring.case import Case

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

OURS = {
    "fwd": "convx._conv2d.default",
    "dgrad": "convx._conv2d_input_grad.default",
    "wgrad": "convx._conv2d_weight_grad.default",
}


# The convolutions of make_net() in a forward pass. The first one takes the ReLU with it.
FORWARD = ["convx._conv2d_fused.default", OURS["fwd"], OURS["fwd"]]


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=8),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 4, (1, 2), dilation=2, bias=False),
    ).double()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The convolutions of the graphs that Inductor gets, which run without generated code."""
    seen = []

    def compile_inner(graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Callable:
        names = [str(node.target) for node in graph.graph.nodes]
        seen.append([name for name in names if "convx" in name or "convolution" in name])
        graph.graph.lint()
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(_graph_pass, "compile_fx_inner", compile_inner)
    return seen


def faster_in(*directions: str) -> Callable[[Case, torch.device], tuple[float, float]]:
    """convx is faster in these directions, and channels_last is slower with both."""

    def times(case: Case, device: torch.device) -> tuple[float, float]:
        slow = 10.0 if case.layout == "nhwc" else 1.0
        return (1.0 if case.direction in directions else 3.0) * slow, 2.0 * slow

    return times


def check_step(net: nn.Module, x: torch.Tensor, **options: Any) -> None:
    """A training step and an inference step give the same results as without torch.compile."""
    plain = copy.deepcopy(net)
    compiled = torch.compile(net, fullgraph=True, **options)
    outcomes = []
    for model, run in ((net, compiled), (plain, plain)):
        inputs = x.clone().requires_grad_()
        y = run(inputs)
        y.square().mean().backward()
        outcomes.append([y, inputs.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*outcomes)
    assert outcomes[0][0].stride() == outcomes[1][0].stride()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "directions", [(), ("fwd",), ("wgrad",), ("dgrad", "wgrad"), ("fwd", "dgrad", "wgrad")], ids=str
)
def test_passes_are_replaced_one_by_one(graphs, directions, memory_format) -> None:
    net = make_net().to(memory_format=memory_format)
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64).to(memory_format=memory_format)
    check_step(net, x, backend=conv2d_ext.compile_backend(times=faster_in(*directions)))
    forward, backward = graphs
    assert forward == (FORWARD if "fwd" in directions else ["aten.convolution.default"] * 3)
    # Input gradients of all three layers are needed, since the input has one.
    for direction in ("dgrad", "wgrad"):
        assert backward.count(OURS[direction]) == (3 if direction in directions else 0)
    # The gradients of two biases are left to PyTorch where it computes nothing else.
    theirs = backward.count("aten.convolution_backward.default")
    assert theirs == (2 if {"dgrad", "wgrad"} <= set(directions) else 3)


def test_inference_and_autocast(graphs) -> None:
    net = make_net().float().eval()
    x = torch.randn(1, 3, 12, 12)
    compiled = torch.compile(net, fullgraph=True, backend=conv2d_ext.compile_backend("all"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        with torch.autocast("cpu", torch.bfloat16):
            got, want = compiled(x), net(x)
    assert graphs == [FORWARD] * 2
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_dynamic_sizes(graphs) -> None:
    """Forward passes are chosen for the sizes of the example; gradients stay as they are."""
    cases = []

    def times(case: Case, device: torch.device) -> tuple[float, float]:
        cases.append(case)
        return faster_in("fwd", "dgrad", "wgrad")(case, device)

    backend = conv2d_ext.compile_backend(times=times)
    x = torch.randn(2, 3, 12, 14).double()
    check_step(make_net(), x, backend=backend, dynamic=True)
    assert graphs[0] == FORWARD
    assert not any("convx" in name for name in graphs[1])
    assert (cases[0].shape.N, cases[0].shape.H, cases[0].shape.W) == (2, 12, 14)


def test_other_convolutions_stay_as_they_are(graphs) -> None:
    net = nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.Unflatten(1, (4, 1)), nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    )
    net = net.double()
    check_step(net, torch.randn(2, 3, 12).double(), backend=conv2d_ext.compile_backend("all"))
    assert graphs[0] == ["aten.convolution.default"] * 2 + [OURS["fwd"]]


def test_a_graph_that_inductor_would_rather_move_to_channels_last(graphs) -> None:
    """PyTorch is fastest there, and mixed formats would need copies."""

    def times(case: Case, device: torch.device) -> tuple[float, float]:
        return (1.0, 2.0) if case.layout == "nchw" else (0.1, 0.5)

    x = torch.randn(2, 3, 12, 12).double()
    check_step(make_net(), x, backend=conv2d_ext.compile_backend(times=times))
    assert not any("convx" in name for names in graphs for name in names)
    graphs.clear()
    stays = {"layout_optimization": False}
    torch._dynamo.reset()
    check_step(make_net(), x, backend=conv2d_ext.compile_backend(times=times), options=stays)
    assert graphs[0] == FORWARD


def test_only_graphs_with_convx_keep_their_memory_format(monkeypatch) -> None:
    formats = []

    def compile_inner(graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Callable:
        formats.append(torch._inductor.config.layout_optimization)
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(_graph_pass, "compile_fx_inner", compile_inner)
    for directions in ((), ("fwd",)):
        torch._dynamo.reset()
        backend = conv2d_ext.compile_backend(times=faster_in(*directions))
        with torch.no_grad(), torch._inductor.config.patch(layout_optimization=True):
            torch.compile(make_net(), backend=backend)(torch.randn(1, 3, 9, 9).double())
    assert formats == [True, False]


def test_a_pass_that_was_there_before_runs_first(graphs) -> None:
    seen = []
    options = {"joint_custom_pre_pass": lambda graph: seen.append("earlier")}
    backend = conv2d_ext.compile_backend("all")
    check_step(make_net(), torch.randn(1, 3, 9, 9).double(), backend=backend, options=options)
    assert seen == ["earlier"]


@pytest.mark.slow
def test_generated_code_and_real_measurements() -> None:
    """Whatever this machine finds to be faster, the results are the same."""
    x = torch.randn(2, 3, 12, 12).double()
    state = torch.get_rng_state()
    check_step(make_net(), x, backend=conv2d_ext.compile_backend("all"))
    torch._dynamo.reset()
    torch.set_rng_state(state)
    compiled = torch.compile(make_net(), backend=conv2d_ext.compile_backend(seconds=0.001))
    with torch.no_grad():
        compiled(x)


def test_measuring_leaves_random_numbers_alone(graphs) -> None:
    net = make_net()
    torch.manual_seed(1)
    with torch.no_grad():
        backend = conv2d_ext.compile_backend(seconds=0.001)
        torch.compile(net, backend=backend)(torch.ones(1, 3, 9, 9).double())
    drawn = torch.rand(())
    torch.manual_seed(1)
    assert torch.rand(()) == drawn


def test_by_name() -> None:
    if "convx" not in torch._dynamo.list_backends(None):
        pytest.skip("the package is not installed, so torch does not know its backend")
    with torch.no_grad():
        x = torch.randn(1, 3, 9, 9)
        net = nn.Conv2d(3, 4, 3)
        torch.testing.assert_close(torch.compile(net, backend="convx")(x), net(x))


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="policy must be 'all' or 'faster', but got policy='best'"):
        conv2d_ext.compile_backend("best")
