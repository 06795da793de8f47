"""torch.compile, torch.export, AOTInductor and FX."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import SAMPLER, named
from cases import draw as draw_dtype
from reference import run_and_check
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import conv2d_ext

CONVS = {"function": conv2d_ext.conv2d, "op": torch.ops.convx.conv2d}
SIZES = (2, 3, 5, 7)
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def draw(size: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """float64, so that results are compared closely with F.conv2d's."""
    return draw_dtype(size, torch.float64, seed=seed)


class Net(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.w = nn.Parameter(draw((6, 2, 3, 2)))
        self.b = nn.Parameter(draw((6,)))
        self.conv = conv

    def forward(self, x):
        y = self.conv(x.sin(), self.w, self.b, (2, 1), (1, 2), (1, 2), 2)
        return y.relu().mean((2, 3))


def images(n: int) -> torch.Tensor:
    return draw((n, 4, 7, 8), seed=n)


def check_step(compiled, eager, n: int) -> None:
    """Forward and backward of a batch of n: the compiled module agrees with F.conv2d."""
    outcomes = []
    for net in (compiled, eager):
        net.zero_grad()
        x = images(n).requires_grad_()
        y = net(x)
        y.square().sum().backward()
        outcomes.append([y, x.grad, *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*outcomes)


@pytest.mark.parametrize(
    ("backend", "dynamic", "frames"),
    [("aot_eager", None, 2), ("aot_eager", True, 1), ("inductor", True, 1)],
)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_batch_sizes_do_not_recompile(conv, backend, dynamic, frames):
    """dynamic=None compiles for the first size, then once for every size."""
    net = Net(conv)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in SIZES:
        check_step(compiled, Net(F.conv2d), n)
    assert counter.frame_count == frames


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_dynamic_image_sizes(conv):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend=counter)
    w = draw((5, 3, 3, 3))
    for size in ((2, 3, 8, 9), (3, 3, 12, 11), (4, 3, 20, 7)):
        x = draw(size)
        got = compiled(x, w, None, (2, 1), (1, 0), (1, 2), 1)
        torch.testing.assert_close(got, F.conv2d(x, w, None, (2, 1), (1, 0), (1, 2), 1))
    assert counter.frame_count == 1


@pytest.mark.parametrize("case", [*SAMPLER, *named("empty_batch", "single_everything")], ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_every_kind_of_convolution(conv, case):
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    x, w, b = case.tensors()
    run_and_check(compiled, case, x, w, b)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_inductor_keeps_the_memory_format(conv, memory_format):
    net = Net(conv)
    x = images(3).to(memory_format=memory_format)

    def run(x):
        return net.conv(x + 1, net.w, net.b, groups=2)

    with torch.no_grad():
        got, want = torch.compile(run, fullgraph=True)(x), run(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def captured(f, *args):
    """The graph that Dynamo hands to a backend."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compile(f, fullgraph=True, backend=backend)(*args)
    (graph,) = graphs
    return graph


def conv_nodes(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if "convx" in str(node.target)]


@pytest.mark.parametrize("precision", [None, "ieee", "tf32"])
def test_graph_has_one_node_that_follows_pytorchs_precision(precision):
    """Unless told otherwise, the setting is looked up when the graph runs."""

    def run(x, w):
        return conv2d_ext.conv2d(x, w, precision=precision)

    (node,) = conv_nodes(captured(run, draw((1, 2, 5, 5)), draw((3, 2, 3, 3))))
    assert node.target is torch.ops.convx.conv2d.default
    assert node.kwargs["precision"] == (precision or "torch")


def test_algorithm_reaches_the_graph():
    def run(x, w):
        return conv2d_ext.conv2d(x, w, algorithm="cpu_direct")

    (node,) = conv_nodes(captured(run, draw((1, 2, 5, 5)), draw((3, 2, 3, 3))))
    assert node.kwargs["algorithm"] == "cpu_direct"


@pytest.mark.parametrize("padding", ["same", "valid", 1, (1, 2), (0, 1, 2, 3)], ids=str)
def test_every_spelling_of_padding(padding):
    x, w = draw((2, 3, 8, 9)), draw((4, 3, 3, 2))

    def run(x, w):
        return conv2d_ext.conv2d(x, w, padding=padding)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), run(x, w), rtol=0, atol=0)


def test_unbatched():
    x, w = draw((3, 8, 9)), draw((4, 3, 3, 2))
    compiled = torch.compile(conv2d_ext.conv2d, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), F.conv2d(x, w))


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_double_backward_runs_outside_the_graph(conv):
    """AOTAutograd does not compile second derivatives; the error must be its own, not a crash."""
    x, w = draw((1, 2, 5, 5)).requires_grad_(), draw((3, 2, 3, 3)).requires_grad_()
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    (first,) = torch.autograd.grad(compiled(x, w).square().sum(), x, create_graph=True)
    (want,) = torch.autograd.grad(F.conv2d(x, w).square().sum(), x, create_graph=True)
    got2, want2 = (torch.autograd.grad(g.square().sum(), w)[0] for g in (first, want))
    torch.testing.assert_close(got2, want2)


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_export_save_and_load(conv, strict, tmp_path):
    batch = torch.export.Dim("n", min=1)
    program = torch.export.export(
        Net(conv), (images(2),), dynamic_shapes={"x": {0: batch}}, strict=strict
    )
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2")
    for exported in (loaded, loaded.run_decompositions()):
        assert len(conv_nodes(exported.graph_module)) == 1
        for n in SIZES:
            torch.testing.assert_close(exported.module()(images(n)), Net(F.conv2d)(images(n)))


@pytest.mark.slow
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_aot_inductor(conv, tmp_path):
    batch = torch.export.Dim("n", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(Net(conv), (images(2),), dynamic_shapes={"x": {0: batch}})
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "net.pt2")
    )
    loaded = torch._inductor.aoti_load_package(package)
    for n in SIZES:
        torch.testing.assert_close(loaded(images(n)), Net(F.conv2d)(images(n)))


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_symbolic_trace(conv):
    traced = torch.fx.symbolic_trace(Net(conv))
    torch.testing.assert_close(traced(images(3)), Net(F.conv2d)(images(3)))


@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS.keys())
def test_make_fx_with_symbolic_sizes(conv):
    def run(x, w):
        return torch.func.grad(lambda x, w: conv(x, w, None, 2, 1).square().sum(), (0, 1))(x, w)

    args = draw((2, 3, 8, 9)), draw((4, 3, 3, 3))
    graph = torch.fx.experimental.proxy_tensor.make_fx(run, tracing_mode="symbolic")(*args)
    others = draw((5, 3, 10, 7)), draw((6, 3, 3, 3))
    torch.testing.assert_close(graph(*others), run(*others))
