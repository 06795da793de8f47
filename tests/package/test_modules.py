"""Conv2d is an nn.Conv2d in everything but the engine."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import conv2d_ext
from conv2d_ext._choices import engine_names
from conv2d_ext._load import loaded_libraries

CONSTRUCTORS = {
    "plain": dict(in_channels=4, out_channels=6, kernel_size=3),
    "all numbers": dict(
        in_channels=4,
        out_channels=8,
        kernel_size=(3, 2),
        stride=(2, 1),
        padding=(1, 2),
        dilation=(1, 2),
        groups=2,
        bias=False,
    ),
    "same": dict(in_channels=4, out_channels=6, kernel_size=(2, 5), padding="same"),
    "same, dilated": dict(
        in_channels=4, out_channels=6, kernel_size=(4, 3), padding="same", dilation=(1, 2)
    ),
    "valid": dict(in_channels=4, out_channels=6, kernel_size=3, padding="valid"),
    "reflect": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=(2, 1), padding_mode="reflect"
    ),
    "replicate": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=2, padding_mode="replicate"
    ),
    "circular": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=(0, 2), padding_mode="circular"
    ),
    "circular, same": dict(
        in_channels=4, out_channels=6, kernel_size=(4, 3), padding="same", padding_mode="circular"
    ),
    "float64": dict(in_channels=4, out_channels=6, kernel_size=3, dtype=torch.float64),
}


# Both are float32, so neither is right to the last bit.
TOLERANCE = dict(rtol=1e-4, atol=1e-4)


def make_pair(arguments: dict) -> tuple[nn.Conv2d, conv2d_ext.Conv2d]:
    torch.manual_seed(0)
    theirs = nn.Conv2d(**arguments)
    torch.manual_seed(0)
    return theirs, conv2d_ext.Conv2d(**arguments)


@pytest.mark.parametrize("arguments", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_is_an_nn_conv2d(arguments: dict) -> None:
    theirs, ours = make_pair(arguments)
    assert isinstance(ours, nn.Conv2d)
    assert repr(ours) == repr(theirs)
    for (name, value), (our_name, our_value) in zip(
        theirs.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        assert name == our_name
        assert torch.equal(value, our_value)  # the same initialisation from the same seed

    x = torch.randn(2, 4, 9, 10, dtype=theirs.weight.dtype)
    x_ours = x.clone().requires_grad_()
    x_theirs = x.clone().requires_grad_()
    y_ours, y_theirs = ours(x_ours), theirs(x_theirs)
    torch.testing.assert_close(y_ours, y_theirs, **TOLERANCE)
    g = torch.randn_like(y_theirs)
    y_ours.backward(g)
    y_theirs.backward(g)
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, **TOLERANCE)
    for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours_p.grad, theirs_p.grad, **TOLERANCE)


BAD_ARGUMENTS = {
    "in_channels must be divisible by groups": dict(groups=3),
    "Invalid padding string": dict(padding="nowhere"),
    "padding='same' is not supported for strided": dict(stride=2, padding="same"),
    "padding_mode must be one of": dict(padding_mode="mirror"),
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_bad_constructor_arguments_raise_what_nn_conv2d_raises(message: str) -> None:
    for layer in (nn.Conv2d, conv2d_ext.Conv2d):
        with pytest.raises(ValueError, match=message):
            layer(4, 6, 3, **BAD_ARGUMENTS[message])


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_four_sided_padding(mode: str) -> None:
    layer = conv2d_ext.Conv2d(2, 3, 3, padding=(1, 2, 0, 3), padding_mode=mode)
    x = torch.randn(1, 2, 6, 7)
    pad_mode = "constant" if mode == "zeros" else mode
    padded = nn.functional.pad(x, (0, 3, 1, 2), mode=pad_mode)
    expected = nn.functional.conv2d(padded, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)


def test_unbatched_input() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(4, 8, 9)
    torch.testing.assert_close(ours(x), theirs(x))


def test_state_dict_loads_both_ways() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["all numbers"])
    nn.init.zeros_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    assert not ours.weight.any()
    nn.init.ones_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.weight.all()


def test_deepcopy_and_pickle_keep_settings() -> None:
    layer = conv2d_ext.Conv2d(4, 6, 3, precision="tf32", algorithm="cpu_direct")
    x = torch.randn(1, 4, 5, 5)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert (other.precision, other.algorithm) == ("tf32", "cpu_direct")
        assert torch.equal(other(x), layer(x))
    assert "precision=tf32" in repr(layer)
    assert "algorithm=cpu_direct" in repr(layer)


def test_algorithm_reaches_the_operator() -> None:
    layer = conv2d_ext.Conv2d(4, 6, 3, algorithm="cpu_direct:no such variant")
    with pytest.raises(RuntimeError, match="no such variant"):
        layer(torch.randn(1, 4, 5, 5))


@pytest.mark.parametrize("ours", [conv2d_ext.Conv2d, conv2d_ext.LazyConv2d])
def test_the_signature_is_pytorchs_and_four_keywords(ours: type) -> None:
    theirs = getattr(nn, ours.__name__)
    mine, other = (inspect.signature(cls.__init__).parameters for cls in (ours, theirs))
    keywords = ["activation", "negative_slope", "precision", "algorithm"]
    assert [*mine] == [*other, *keywords]
    for name, parameter in other.items():
        assert mine[name].default == parameter.default
        assert mine[name].kind == parameter.kind
    for name in keywords:
        assert mine[name].kind is inspect.Parameter.KEYWORD_ONLY


SNIPPET = """
import conv2d_ext
conv2d_ext.Conv2d(3, 8, 3, padding=(1, 2, 3, 4), precision="ieee", algorithm="auto")
conv2d_ext.Conv2d(3, 8, (3, 5), 1, "same", dilation=(2, 1), groups=1, bias=False)
conv2d_ext.Conv2d(3, 8, "3")
conv2d_ext.Conv2d(3, 8, 3, stride=1.5)
conv2d_ext.Conv2d(3, 8, 3, kernal=3)
conv2d_ext.LazyConv2d(8, 3, padding=(1, 2, 3, 4), algorithm=3)
conv2d_ext.Conv2d(3, 8, 3, activation="leaky_relu", negative_slope=0.2)
conv2d_ext.Conv2d(3, 8, 3, activation=True)
"""


def test_mypy_sees_the_signature(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    # The package's own types matter here; checking torch's would take half a minute.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nfollow_imports = silent\n[mypy-torch.*]\nfollow_imports = skip\n")
    options = ["--config-file", str(config), "--cache-dir", str(tmp_path), "--no-error-summary"]
    said, errors, _ = api.run([*options, str(file)])
    assert errors == ""
    lines = [line.split(":", 2)[1] for line in said.splitlines() if ": error:" in line]
    assert lines == ["5", "6", "7", "8", "10"], said


MISSPELT = {
    "precision": ("fp16", "precision must be None, 'ieee', 'tf32' or 'torch', .* precision='fp16'"),
    "algorithm": ("magic", "algorithm must be one of 'auto', 'cpu_.*got algorithm='magic'"),
}
MISSPELT_EPILOGUES = {
    "activation": ("swish", "activation must be None or one of 'none', .* activation='swish'"),
    "negative_slope": (float("inf"), "negative_slope must be a finite number, .*=inf"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_unknown_words_are_refused_at_once(name: str) -> None:
    word, message = MISSPELT[name]
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    with pytest.raises(ValueError, match=f"convx.Conv2d: {message}"):
        conv2d_ext.Conv2d(4, 6, 3, **{name: word})
    with pytest.raises(ValueError, match=f"convx.LazyConv2d: {message}"):
        conv2d_ext.LazyConv2d(6, 3, **{name: word})
    with pytest.raises(ValueError, match=f"convx.convert: {message}"):
        conv2d_ext.convert(model, **{name: word})
    assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize("name", MISSPELT_EPILOGUES)
def test_unknown_epilogues_are_refused_at_once(name: str) -> None:
    word, message = MISSPELT_EPILOGUES[name]
    with pytest.raises(ValueError, match=f"convx.Conv2d: {message}"):
        conv2d_ext.Conv2d(4, 6, 3, **{name: word})
    with pytest.raises(ValueError, match=f"convx.LazyConv2d: {message}"):
        conv2d_ext.LazyConv2d(6, 3, **{name: word})


def test_every_engine_can_be_asked_for() -> None:
    for name in ("auto", *engine_names(), *(f"{engine}:variant" for engine in engine_names())):
        assert conv2d_ext.Conv2d(4, 6, 3, algorithm=name).algorithm == name


def test_engine_names_are_those_of_the_sources() -> None:
    """The check includes engines of devices that this machine lacks."""
    sources = Path(__file__).resolve().parents[2] / "csrc" / "engines"
    text = " ".join(path.read_text() for path in sources.rglob("*.cpp"))
    names = {*re.findall(r'(?:EngineId::\w+,|\.name =)\s*"(\w+)"', text)}
    if loaded_libraries().cuda is None:
        names = {name for name in names if name.startswith("cpu_")}
    assert {*engine_names()} == names


def test_lazy_becomes_ours() -> None:
    choices = dict(precision="tf32", algorithm="cpu_direct")
    layer = conv2d_ext.LazyConv2d(6, 3, padding=(2, 0, 1, 0), **choices)
    y = layer(torch.randn(1, 4, 5, 5))
    assert y.shape == (1, 6, 5, 4)
    assert type(layer) is conv2d_ext.Conv2d
    assert layer.weight.shape == (6, 4, 3, 3)
    assert (layer.precision, layer.algorithm) == ("tf32", "cpu_direct")


def make_fused(activation: str | None = "leaky_relu", **arguments) -> conv2d_ext.Conv2d:
    torch.manual_seed(0)
    return conv2d_ext.Conv2d(4, 6, 3, activation=activation, negative_slope=0.2, **arguments)


def separate(layer: conv2d_ext.Conv2d, x: torch.Tensor, residual: torch.Tensor | None = None):
    y = nn.Conv2d._conv_forward(layer, x, layer.weight, layer.bias)
    y = y if residual is None else y + residual
    return y if layer.activation is None else nn.functional.leaky_relu(y, 0.2)


@pytest.mark.parametrize("activation", [None, "leaky_relu"])
@pytest.mark.parametrize(
    "arguments",
    [dict(), dict(padding="same"), dict(padding=(1, 2), padding_mode="reflect")],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_fused_layers(activation: str | None, arguments: dict) -> None:
    layer = make_fused(activation, **arguments)
    x = torch.randn(2, 4, 9, 10)
    torch.testing.assert_close(layer(x), separate(layer, x), **TOLERANCE)
    residual = torch.randn_like(layer(x))
    want = separate(layer, x, residual)
    for net in (
        layer,
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.compile(layer, fullgraph=True, backend="aot_eager"),
        torch.jit.script(layer),
        torch.jit.trace(layer, (x, residual)),
        torch.export.export(layer, (x, residual)).module(),
    ):
        torch.testing.assert_close(net(x, residual), want, **TOLERANCE)
    torch.testing.assert_close(layer(x[0], residual[0]), want[0], **TOLERANCE)


def test_fused_layers_show_and_keep_their_words() -> None:
    layer = make_fused(precision="ieee")
    assert repr(layer).endswith(", activation=leaky_relu, negative_slope=0.2, precision=ieee)")
    assert "negative_slope" not in repr(conv2d_ext.Conv2d(4, 6, 3, activation="relu"))
    assert [*layer.state_dict()] == ["weight", "bias"]
    plain = nn.Conv2d(4, 6, 3)
    plain.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (other.activation, other.negative_slope) == ("leaky_relu", 0.2)
    lazy = conv2d_ext.LazyConv2d(6, 3, activation="leaky_relu", negative_slope=0.2)
    lazy(torch.randn(1, 4, 5, 5))
    assert type(lazy) is conv2d_ext.Conv2d
    assert repr(lazy).endswith("activation=leaky_relu, negative_slope=0.2)")


def test_a_subclass_of_three_arguments_keeps_its_activation() -> None:
    layer = make_fused()
    x = torch.randn(2, 4, 9, 10)
    layer.__class__ = Doubled
    with torch.no_grad():
        want = nn.functional.conv2d(x, 2 * layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), nn.functional.leaky_relu(want, 0.2), **TOLERANCE)


def test_torch_compile_of_a_module() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["reflect"])
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 9, 10)
    torch.testing.assert_close(compiled(x), theirs(x))


OTHER_LAYERS = {
    "row": (nn.Conv1d, conv2d_ext.Conv1d, (4, 6, 3), dict(stride=2, padding=1)),
    "row, same": (nn.Conv1d, conv2d_ext.Conv1d, (4, 6, 4), dict(padding="same", dilation=2)),
    "row, circular": (
        nn.Conv1d,
        conv2d_ext.Conv1d,
        (4, 6, 3),
        dict(padding=2, padding_mode="circular", groups=2),
    ),
    "transposed": (
        nn.ConvTranspose2d,
        conv2d_ext.ConvTranspose2d,
        (4, 6, 3),
        dict(stride=2, padding=1, output_padding=1),
    ),
    "transposed groups": (
        nn.ConvTranspose2d,
        conv2d_ext.ConvTranspose2d,
        (4, 6, (3, 2)),
        dict(stride=(2, 1), groups=2, bias=False, dilation=2),
    ),
}


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_other_layers_are_pytorchs(name: str) -> None:
    theirs_class, ours_class, sizes, numbers = OTHER_LAYERS[name]
    torch.manual_seed(0)
    theirs = theirs_class(*sizes, **numbers)
    torch.manual_seed(0)
    ours = ours_class(*sizes, **numbers)
    assert isinstance(ours, theirs_class)
    assert repr(ours) == repr(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn((2, 4, 11) if theirs_class is nn.Conv1d else (2, 4, 5, 6))
    for argument in (x, x[0]):
        torch.testing.assert_close(ours(argument), theirs(argument), **TOLERANCE)
    layer = ours_class(*sizes, **numbers, precision="ieee")
    assert repr(layer).endswith(", precision=ieee)")
    with pytest.raises(ValueError, match="algorithm must be one of"):
        ours_class(*sizes, algorithm="fastest")


def test_output_size_of_transposed_layers() -> None:
    theirs = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    ours = conv2d_ext.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 5, 6)
    want = theirs(x, output_size=[10, 11])
    torch.testing.assert_close(ours(x, output_size=[10, 11]), want, **TOLERANCE)


def test_attributes_that_change_after_a_call() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(2, 4, 9, 10)
    for changes in (
        dict(),
        dict(stride=(2, 1)),
        dict(stride=[1, 2]),
        dict(padding=(1, 2), dilation=(1, 2)),
        dict(stride=(1, 1), padding="valid"),
        dict(bias=None, weight=nn.Parameter(torch.randn(6, 4, 2, 2))),
        dict(groups=2, weight=nn.Parameter(torch.randn(6, 2, 2, 2))),
    ):
        for layer in (theirs, ours):
            for name, value in changes.items():
                setattr(layer, name, value)
        torch.testing.assert_close(ours(x), theirs(x), **TOLERANCE)
    ours.algorithm = "cpu_direct:no such variant"
    with pytest.raises(RuntimeError, match="no such variant"):
        ours(x)


class Doubled(conv2d_ext.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, 2 * weight, bias)


class WithProperty(conv2d_ext.Conv2d):
    """A subclass whose weight is computed where it is read."""

    @property
    def weight(self):
        return 2 * self._parameters["weight"]

    @weight.deleter
    def weight(self):
        raise AttributeError


def test_subclasses_that_change_the_weight() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(2, 4, 9, 10)
    with torch.no_grad():
        want = nn.functional.conv2d(x, 2 * theirs.weight, theirs.bias)
    for cls in (Doubled, WithProperty):
        layer = copy.deepcopy(ours)
        layer.__class__ = cls
        torch.testing.assert_close(layer(x), want, **TOLERANCE)


def test_an_instance_that_changes_how_it_computes() -> None:
    """Programs replace _conv_forward to pad each axis in another way."""
    theirs, ours = make_pair(CONSTRUCTORS["plain"])

    def wrapped(self, input, weight, bias):
        return nn.Conv2d._conv_forward(
            self, nn.functional.pad(input, (1, 1, 0, 0), "circular"), weight, bias
        )

    for layer in (theirs, ours):
        layer._conv_forward = wrapped.__get__(layer)
    x = torch.randn(2, 4, 9, 10)
    torch.testing.assert_close(ours(x), theirs(x))


def test_parameters_that_tools_replace() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(2, 4, 9, 10)
    values = {name: torch.randn_like(value) for name, value in ours.named_parameters()}
    pair = [torch.func.functional_call(layer, values, (x,)) for layer in (ours, theirs)]
    torch.testing.assert_close(*pair, **TOLERANCE)
    for change in (
        nn.utils.parametrizations.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        nn.utils.spectral_norm,
    ):
        layers = copy.deepcopy(ours).eval(), copy.deepcopy(theirs).eval()
        for layer in layers:
            torch.manual_seed(0)
            change(layer)
        mine, other = (layer(x) for layer in layers)
        torch.testing.assert_close(mine, other, **TOLERANCE)


def test_hooks_of_a_module() -> None:
    _, layer = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(2, 4, 9, 10)
    want = layer(2 * x) + 1
    called = []
    layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    layer.register_full_backward_hook(lambda *arguments: called.append(len(arguments)))
    y = layer(x)
    torch.testing.assert_close(y, want)
    y.sum().backward()
    assert called == [3]


@pytest.mark.parametrize("arguments", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_tracing_and_scripting(arguments: dict) -> None:
    theirs, ours = make_pair(arguments)
    x = torch.randn(2, 4, 9, 10, dtype=theirs.weight.dtype)
    for compiled in (torch.jit.trace(ours, x), torch.jit.script(ours)):
        torch.testing.assert_close(compiled(x), theirs(x), **TOLERANCE)


def test_symbolic_tracing() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(2, 4, 9, 10)
    graph = torch.fx.symbolic_trace(nn.Sequential(ours))
    torch.testing.assert_close(graph(x), theirs(x), **TOLERANCE)
