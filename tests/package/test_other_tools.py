"""Tools that know PyTorch's own classes and operators take models with convx's layers too."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import conv2d_ext
from conv2d_ext._checks import ACTIVATIONS

LAYERS = {
    "plain": lambda: nn.Conv2d(3, 4, 3),
    "geometry": lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, False),
    "same": lambda: nn.Conv2d(3, 4, (4, 3), padding="same"),
    "reflect": lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="reflect"),
    "native": lambda: conv2d_ext.Conv2d(3, 4, 3, padding=1, precision="ieee"),
    "four_sides": lambda: conv2d_ext.Conv2d(3, 4, 3, padding=(2, 0, 1, 3)),
    "four_sides_reflected": lambda: conv2d_ext.Conv2d(
        3, 4, 3, padding=(2, 0, 1, 3), padding_mode="reflect"
    ),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0)),
    "one_row": lambda: nn.Conv1d(3, 4, 3, padding=1, dilation=2),
    "one_row_reflected": lambda: nn.Conv1d(3, 4, 4, padding="same", padding_mode="reflect"),
}


CASES = [(name, True) for name in LAYERS]
CASES += [(name, False) for name in ("geometry", "same", "transposed", "one_row")]


@pytest.fixture(params=CASES, ids=lambda case: case[0] if case[1] else f"{case[0]}, one image")
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    name, has_batch = request.param
    model = nn.Sequential(LAYERS[name](), nn.ReLU())
    conv2d_ext.convert(model, policy="all")
    extents = (17,) if isinstance(model[0], nn.Conv1d) else (8, 9)
    x = torch.randn(2, model[0].in_channels, *extents)
    return model, x if has_batch else x[0]


@pytest.fixture
def model(case: tuple[nn.Module, torch.Tensor]) -> nn.Module:
    return case[0]


@pytest.fixture
def x(case: tuple[nn.Module, torch.Tensor]) -> torch.Tensor:
    return case[1]


def check_module(module, model: nn.Module, x: torch.Tensor) -> None:
    """Same output, same gradients, and it is convx that computes them."""
    want = model(x)
    torch.testing.assert_close(module(x), want)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(module(x).sum(), parameters),
        torch.autograd.grad(want.sum(), parameters),
    )
    assert "convx::conv" in str(module.inlined_graph)
    assert "aten::conv" not in str(module.inlined_graph)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_jit_trace(model: nn.Module, x: torch.Tensor, requires_grad: bool) -> None:
    model.requires_grad_(requires_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    model.requires_grad_()
    check_module(traced, model, x)


def test_jit_trace_of_the_function() -> None:
    w = torch.randn(4, 3, 4, 3)
    x = torch.randn(2, 3, 8, 9)
    with pytest.warns(torch.jit.TracerWarning):  # "same" becomes numbers, and PyTorch says so
        traced = torch.jit.trace(lambda x: conv2d_ext.conv2d(x, w, padding="same"), x)
    torch.testing.assert_close(traced(x), conv2d_ext.conv2d(x, w, padding="same"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_jit_script(model: nn.Module, x: torch.Tensor) -> None:
    check_module(torch.jit.script(model), model, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_onnx_by_tracing(model: nn.Module, x: torch.Tensor) -> None:
    onnx = pytest.importorskip("onnx")
    file = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False)
    check_onnx(onnx.load_from_string(file.getvalue()), model, x)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_onnx_by_export(model: nn.Module, x: torch.Tensor) -> None:
    pytest.importorskip("onnxscript")
    program = torch.onnx.export(model.eval(), (x,), dynamo=True, verbose=False)
    check_onnx(program.model_proto, model, x)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_onnx_of_an_exported_program() -> None:
    pytest.importorskip("onnxscript")
    model, x = LAYERS["four_sides"](), torch.randn(2, 3, 8, 9)
    program = torch.onnx.export(torch.export.export(model, (x,)), dynamo=True, verbose=False)
    check_onnx(program.model_proto, model, x)


def check_onnx(exported, model: nn.Module, x: torch.Tensor) -> None:
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator(exported)
    (got,) = evaluator.run(None, {evaluator.input_names[0]: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x).detach(), rtol=1e-4, atol=1e-5)
    operators = {node.op_type for node in exported.graph.node}
    assert operators & {"Conv", "ConvTranspose"}
    assert {node.domain for node in exported.graph.node} <= {"", "ai.onnx"}


class Fused(nn.Module):
    """A layer with an activation, with and without a residual."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        words = dict(activation=activation, negative_slope=0.2)
        self.first = conv2d_ext.Conv2d(3, 3, 3, padding=1, **words)
        self.second = conv2d_ext.Conv2d(3, 3, (3, 1), padding=(1, 0), **words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(3 * x), x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_onnx_of_fused_layers(activation: str, dynamo: bool) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model, x = Fused(activation), torch.randn(2, 3, 8, 9)
    for example, requires_grad in ((x, True), (x, False), (x[0], False)):
        model.requires_grad_(requires_grad)
        if dynamo:
            exported = torch.onnx.export(model, (example,), dynamo=True, verbose=False).model_proto
        else:
            file = io.BytesIO()
            torch.onnx.export(model, (example,), file, dynamo=False)
            exported = onnx.load_from_string(file.getvalue())
        check_onnx(exported, model, example)


def stack(conv: nn.Module) -> nn.Sequential:
    layers = nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU())
    with torch.no_grad():
        layers(torch.randn(4, conv.in_channels, 8, 8))  # for running statistics
    return layers


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("names", [["0", "1"], ["0", "1", "2"]], ids=str)
@pytest.mark.parametrize("native", [False, True])
def test_fuse_modules(native: bool, names: list[str]) -> None:
    plain = stack(nn.Conv2d(3, 4, 3)).eval()
    model = copy.deepcopy(plain)
    if native:
        model[0] = conv2d_ext.Conv2d(3, 4, 3).eval()
        model[0].load_state_dict(plain[0].state_dict())
    else:
        conv2d_ext.convert(model, policy="all")
    fuse = torch.ao.quantization.fuse_modules
    got, want = fuse(model, [names]), fuse(plain, [names])
    assert [*map(type, got.modules())] == [*map(type, want.modules())]
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(got(x), want(x))
    assert isinstance(model[0], conv2d_ext.Conv2d)  # the model itself was not asked for


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuse_modules_of_a_decoder() -> None:
    plain = stack(nn.ConvTranspose2d(3, 4, 3)).eval()
    model = copy.deepcopy(plain)
    conv2d_ext.convert(model, policy="all")
    fuse = torch.ao.quantization.fuse_modules
    got, want = fuse(model, [["0", "1"]]), fuse(plain, [["0", "1"]])
    assert [*map(type, got.modules())] == [*map(type, want.modules())]
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(got(x), want(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuse_modules_for_training() -> None:
    model = stack(conv2d_ext.Conv2d(3, 4, 3)).train()
    fused = torch.ao.quantization.fuse_modules_qat(model, [["0", "1", "2"]])
    plain = torch.ao.quantization.fuse_modules_qat(
        stack(nn.Conv2d(3, 4, 3)).train(), [["0", "1", "2"]]
    )
    assert [*map(type, fused.modules())] == [*map(type, plain.modules())]
