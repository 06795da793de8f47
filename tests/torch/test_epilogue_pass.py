"""The graph pass that fuses BatchNorm, residual and activation into convolutions of convx."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._inductor import config
from torch.fx.experimental.proxy_tensor import make_fx

import conv2d_ext
from conv2d_ext import _graph_epilogue, _graph_pass

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

FUSED, PLAIN = torch.ops.convx._conv2d_fused.default, torch.ops.convx._conv2d.default

# Every spelling of an activation that the pass finds, and the name that convx has for it.
SPELLINGS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("relu", F.relu),
    ("relu", lambda y: F.relu(y, inplace=True)),
    ("relu", lambda y: y.clamp(min=0)),
    ("relu6", F.relu6),
    ("relu6", nn.Hardtanh(0, 6)),
    ("leaky_relu", F.leaky_relu),
    ("leaky_relu", lambda y: F.leaky_relu(y, 0.3)),
    ("silu", F.silu),
    ("silu", lambda y: torch.sigmoid(y) * y),
    ("gelu", F.gelu),
    ("gelu_tanh", nn.GELU("tanh")),
    ("sigmoid", torch.sigmoid),
    ("tanh", torch.tanh),
    ("hardswish", F.hardswish),
    ("hardsigmoid", F.hardsigmoid),
    ("mish", F.mish),
    ("none", lambda y: y),
]


class Call(NamedTuple):
    """What a graph has of one convolution: an activation of None stands for no fused operator."""

    activation: str | None = None
    has_residual: bool = False


Graphs = list[torch.fx.Graph]


def calls_of(graph: torch.fx.Graph) -> list[Call]:
    """The convolutions of a graph, which convx has to compute."""
    graph.lint()
    assert not any("aten.convolution.default" in str(node.target) for node in graph.nodes)
    return [
        Call(node.args[4], node.args[3] is not None) if node.target is FUSED else Call()
        for node in graph.nodes
        if node.target in (FUSED, PLAIN)
    ]


def pixelwise(graph: torch.fx.Graph, least: int) -> list[str]:
    """The operators, other than convolutions, whose results have at least so many elements."""
    graph.eliminate_dead_code()
    return [
        str(node.target)
        for node in graph.nodes
        if node.op == "call_function"
        and node.target not in (FUSED, PLAIN)
        and node.meta["val"].numel() >= least
    ]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """The graphs that Inductor gets, which run without generated code."""
    seen: Graphs = []

    def compile_inner(graph: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Callable:
        seen.append(graph.graph)
        return make_boxed_func(graph.forward)

    monkeypatch.setattr(_graph_pass, "compile_fx_inner", compile_inner)
    return seen


def compiled(f: Callable, **options: Any) -> Callable:
    return torch.compile(f, fullgraph=True, backend=conv2d_ext.compile_backend("all"), **options)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm in inference, with statistics that change something."""
    norm = nn.BatchNorm2d(channels).eval()
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.weight, norm.bias):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


def conv_norm(*sizes: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(*sizes, **options), batch_norm(sizes[1]))


def assert_as_exact(got: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> None:
    """The results are about as exact as PyTorch's."""
    for ours, theirs, want in zip(got, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.stride() == theirs.stride()
        error = (theirs.double() - want).abs().max()
        assert (ours.double() - want).abs().max() <= 2 * error + torch.finfo(ours.dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_activation(graphs, dtype) -> None:
    net = conv_norm(3, 4, 3, bias=False).to(dtype)

    def run(net: nn.Module, x: Tensor, r: Tensor) -> list[Tensor]:
        return [function(net(x + i) + r) for i, (_, function) in enumerate(SPELLINGS)]

    tensors = torch.randn(2, 3, 10, 10, dtype=dtype), torch.randn(2, 4, 8, 8, dtype=dtype)
    with torch.no_grad():
        got, eager = compiled(run)(net, *tensors), run(net, *tensors)
        exact = run(copy.deepcopy(net).double(), *(t.double() for t in tensors))
    assert_as_exact(got, eager, exact)
    (graph,) = graphs
    assert calls_of(graph) == [Call(name, True) for name, _ in SPELLINGS]
    slopes = [n.args[5] for n in graph.nodes if n.target is FUSED and n.args[4] == "leaky_relu"]
    assert slopes == [0.01, 0.3]
    # Only x + i remains of what is computed for every pixel.
    assert pixelwise(graph, 2 * 3 * 8 * 8) == ["aten.add.Tensor"] * len(SPELLINGS)


@pytest.mark.parametrize("gpu", [False, True], ids=["everything", "relu_alone"])
def test_what_is_fused_and_what_is_left_alone(graphs, device, gpu, monkeypatch) -> None:
    """gpu: what kernels of a GPU leave to another pass over memory stays Inductor's."""
    monkeypatch.setattr(_graph_epilogue, "_is_on_gpu", lambda conv: gpu)
    conv = nn.Conv2d(3, 3, 3, padding=1).double().to(device)
    norm = batch_norm(3).double().to(device)
    s, t = torch.randn(2, 3).double().to(device)
    chains: list[tuple[Call, Callable[[Tensor, Tensor], Tensor]]] = [
        (Call(), lambda y, r: y.relu() * y),
        (Call("relu"), lambda y, r: (z := y.relu()) * z.sum()),
        (Call("relu"), lambda y, r: y.relu() + r),
        (Call("none", True), lambda y, r: r + y),
        (Call("none", True), lambda y, r: y + r.relu()),
        (Call("tanh", True), lambda y, r: torch.tanh(y + r.exp())),
        (Call("none", True), lambda y, r: (y + r) * s.view(3, 1, 1)),
        (Call(), lambda y, r: y - r),
        (Call(), lambda y, r: y + y),
        (Call(), lambda y, r: torch.add(y, r, alpha=2)),
        (Call(), lambda y, r: y + r[:1]),
        (Call(), lambda y, r: y + r[:, :1].expand_as(r)),
        (Call(), lambda y, r: y + r.float()),
        (Call(), lambda y, r: y + r.to(memory_format=torch.channels_last)),
        (Call(), lambda y, r: y.clamp(-1, 1)),
        (Call(), lambda y, r: F.elu(y)),
        (Call(), lambda y, r: F.elu(norm(y))),
        (Call(), lambda y, r: F.max_pool2d(norm(y), 2)),
        (Call("silu"), lambda y, r: F.silu(y * s.view(3, 1, 1) + t.view(1, 3, 1, 1))),
        (Call("relu"), lambda y, r: (1 - (y * 3 - 2) / 4).relu()),
        (Call("relu"), lambda y, r: (s.view(3, 1, 1) - y / t.view(3, 1, 1)).relu()),
        (Call(), lambda y, r: (2 / y).relu()),
        (Call("relu"), lambda y, r: (y * 2.5).relu()),
        (Call(), lambda y, r: (y * r.mean((2, 3), keepdim=True)).relu()),
        (Call(), lambda y, r: (y + r.mean((0, 2, 3)).view(3, 1, 1)).relu()),
        (Call("leaky_relu"), lambda y, r: torch.where(y > 0, y, y * 0.5)),
        (Call(), lambda y, r: torch.where(y > 0, y, r * 0.5)),
    ]

    def run(x: Tensor, r: Tensor) -> list[Tensor]:
        return [chain(conv(x + i), r) for i, (_, chain) in enumerate(chains)]

    x, r = torch.randn(2, 2, 3, 8, 8).double().to(device)
    with torch.no_grad():
        torch.testing.assert_close(compiled(run)(x, r), run(x, r))
    calls = [call for call, _ in chains]
    if gpu:
        calls = [call if call == Call("relu") else Call() for call in calls]
        calls[2] = Call()  # an addition follows
    assert calls_of(graphs[0]) == calls


def test_two_convolutions_are_added(graphs) -> None:
    """A downsampling block: either convolution may take the other one's result."""
    a, b = conv_norm(4, 8, 3, padding=1), conv_norm(4, 8, 1)
    x = torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last)

    def run(x: Tensor) -> Tensor:
        return F.relu(a(x) + b(x))

    with torch.no_grad():
        got, want = compiled(run)(x), run(x)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    assert sorted(calls_of(graphs[0]), key=str) == sorted([Call("relu", True), Call()], key=str)
    assert not pixelwise(graphs[0], want.numel())


def test_mutated_tensors(graphs) -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)

    def run(x: Tensor, r: Tensor) -> Tensor:
        y = conv(x)
        y += r
        y.relu_()
        r.add_(1)
        return y

    x, r = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)
    ours, theirs = r.clone(), r.clone()
    with torch.no_grad():
        torch.testing.assert_close(compiled(run)(x, ours), run(x, theirs))
    torch.testing.assert_close(ours, theirs)
    assert calls_of(graphs[0]) == [Call("relu", True)]


def test_nothing_moves_past_a_mutation() -> None:
    """A graph of operators that write in place, as it is without functionalization."""

    def run(x: Tensor, w: Tensor) -> list[Tensor]:
        first = F.conv2d(x, w).relu()
        second = F.conv2d(x, w)
        w.zero_()
        return [first, second.relu()]

    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    want = run(x, w.clone())
    traced = make_fx(run, tracing_mode="fake")(x, w)
    conv2d_ext.compile_pass("all")(traced.graph)
    traced.recompile()
    torch.testing.assert_close(traced(x, w), want)
    assert calls_of(traced.graph) == [Call("relu"), Call()]


def train(net: nn.Module, run: Callable, x: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    y = run(x)
    y.square().mean().backward()
    return [y, x.grad, *(p.grad for p in net.parameters())]


def test_training(graphs) -> None:
    """Forward graphs of training are fused where gradients do not need what lies in between, and
    BatchNorm's own statistics are not folded."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 4, 3, padding=1)
            self.b = nn.Conv2d(4, 4, 3, padding=1)
            self.c = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
            self.d = conv_norm(4, 4, 3).requires_grad_(False)  # a frozen layer
            self.e = nn.Sequential(nn.Conv2d(4, 4, 1), nn.SiLU())

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x).relu()
            y = torch.sigmoid(self.b(y) + y)
            return self.e(self.d(self.c(y)).relu())

    net = Net().double()
    plain, x = copy.deepcopy(net), torch.randn(2, 3, 12, 12).double()
    torch.testing.assert_close(train(net, compiled(net), x), train(plain, plain, x))
    forward = calls_of(graphs[0])
    assert forward == [Call("relu"), Call("sigmoid", True), Call(), Call("relu"), Call()]


def test_autocast_folds_unrounded_parameters(graphs) -> None:
    net = nn.Sequential(*conv_norm(4, 8, 3), nn.Hardswish())
    x = torch.randn(2, 4, 12, 12)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, eager = compiled(net)(x), net(x)
    assert_as_exact([got], [eager], [copy.deepcopy(net).double()(x.double())])
    assert calls_of(graphs[0]) == [Call("hardswish")]
    (conv,) = (node for node in graphs[0].nodes if node.target is FUSED)
    rounded, product = conv.args[1], conv.args[1].args[0]
    assert rounded.target is torch.ops.prims.convert_element_type.default
    assert product.args[0].op == "placeholder"


def test_batch_norm_is_folded_where_the_weight_is_smaller_than_the_output(graphs) -> None:
    net = nn.Sequential(*conv_norm(16, 16, 3), nn.ReLU()).eval()
    for size, freezing, call in (
        (6, False, Call()),
        (18, False, Call("relu")),
        (6, True, Call("relu")),
    ):
        torch._dynamo.reset()
        graphs.clear()
        x = torch.randn(1, 16, size, size)
        with torch.no_grad(), config.patch(freezing=freezing):
            torch.testing.assert_close(compiled(net)(x), net(x))
        assert calls_of(graphs[0]) == [call]
    # The frozen graph has the folded weight as a constant.
    targets = [str(node.target) for node in graphs[0].nodes if node.op == "call_function"]
    assert targets == [str(FUSED)]


def test_dynamic_sizes(graphs) -> None:
    net = nn.Sequential(*conv_norm(3, 6, 3, stride=2), nn.SiLU(), *conv_norm(6, 6, 1), nn.ReLU())
    run = compiled(net, dynamic=True)
    with torch.no_grad():
        for n, h, w in ((2, 13, 18), (3, 20, 15), (5, 9, 32)):
            x = torch.randn(n, 3, h, w)
            torch.testing.assert_close(run(x), net(x))
    assert [calls_of(graph) for graph in graphs] == [[Call("silu"), Call("relu")]]


def test_layers_of_convx(graphs) -> None:
    net = nn.Sequential(conv2d_ext.Conv2d(3, 4, 3), nn.ReLU(), conv2d_ext.Conv2d(4, 4, 1))
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x), net(x))
    assert calls_of(graphs[0]) == [Call("relu"), Call()]


def make_block() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv_norm(3, 8, 3, padding=1), conv_norm(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.silu(self.a(x))
            return F.gelu(self.b(y) + y)

    return Block().eval()


def export(net: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("n", min=1, max=64)
    with torch.no_grad():
        return torch.export.export(net, (x,), dynamic_shapes={"x": {0: batch}})


def test_exported_programs(tmp_path: Path) -> None:
    net, x = make_block(), torch.randn(2, 3, 16, 16)
    program = export(net, x).run_decompositions()
    conv2d_ext.compile_pass("all")(program.graph)
    program.graph_module.recompile()
    assert calls_of(program.graph) == [Call("silu"), Call("gelu", True)]
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    for n in (1, 2, 5):
        x = torch.randn(n, 3, 16, 16)
        torch.testing.assert_close(loaded(x), net(x))


class Spy:
    """Lists the convolutions of the graphs that a pass has been through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[Call]] = []
        run_pass = _graph_pass.ConvPass.__call__

        def call(graph_pass: Any, graph: torch.fx.Graph) -> None:
            run_pass(graph_pass, graph)
            self.calls.append(calls_of(graph))

        monkeypatch.setattr(_graph_pass.ConvPass, "__call__", call)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"joint_custom_pre_pass": "ours"},
        {"post_grad_custom_post_pass": "ours", "cpp_wrapper": True},
    ],
    ids=["joint", "post_grad"],
)
def test_generated_code(options, monkeypatch) -> None:
    spy = Spy(monkeypatch)
    ours = conv2d_ext.compile_pass("all")
    options = {name: ours if value == "ours" else value for name, value in options.items()}
    net, x = make_block(), torch.randn(2, 3, 16, 18)
    with torch.no_grad(), config.patch(force_disable_caches=True):
        run = torch.compile(net, fullgraph=True, options=options)
        got, want = run(x), net(x)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    assert spy.calls == [[Call("silu"), Call("gelu", True)]]


@pytest.mark.slow
def test_aot_inductor(monkeypatch, tmp_path: Path) -> None:
    spy = Spy(monkeypatch)
    net = make_block()
    package = torch._inductor.aoti_compile_and_package(
        export(net, torch.randn(2, 3, 16, 16)),
        package_path=str(tmp_path / "net.pt2"),
        inductor_configs={"joint_custom_pre_pass": conv2d_ext.compile_pass("all")},
    )
    loaded = torch._inductor.aoti_load_package(package)
    for n in (2, 5):
        x = torch.randn(n, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), net(x))
    assert spy.calls == [[Call("silu"), Call("gelu", True)]]


def test_names_in_inductor_s_cache() -> None:
    make = conv2d_ext.compile_pass
    assert make("all").uuid() == make("all").uuid()
    assert len({make("all").uuid(), make().uuid(), make(seconds=1.0).uuid()}) == 3
    assert make(times=lambda case, device: (1.0, 2.0)).uuid() is None


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="compile_pass: policy must be 'all' or 'faster'"):
        conv2d_ext.compile_pass("best")
