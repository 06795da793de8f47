"""convert() swaps engines under a model and nothing else; restore() leaves no trace."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import conv2d_ext


class Scaled(nn.Conv2d):
    """Adds to nn.Conv2d without touching how it computes."""

    scale = 2.0

    def describe(self) -> str:
        return f"scaled by {self.scale}"


class Doubling(nn.Conv2d):
    """Computes in its own way."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Conv2d(8, 8, 3, padding=1)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.ModuleDict(
            {"first": nn.Sequential(shared, nn.ReLU()), "second": nn.Sequential(shared)}
        )
        self.depthwise = nn.Conv2d(8, 8, (3, 1), groups=8)
        self.subclassed = Scaled(8, 8, 1)
        self.own = Doubling(8, 8, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body["second"](self.body["first"](self.stem(x)))
        x = self.own(self.subclassed(self.depthwise(x)))
        return self.head(x.mean((2, 3)))


def classes(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules()}


def test_swaps_in_place_and_reports() -> None:
    torch.manual_seed(0)
    model = Net()
    before = classes(model)
    parameters = list(model.parameters())
    modules = list(model.modules())
    x = torch.randn(2, 3, 9, 9)
    expected = model(x)

    report = conv2d_ext.convert(model, policy="all")

    assert report.swapped == ["stem", "body.first.0", "depthwise", "subclassed"]
    assert list(report.kept) == ["own"]
    assert "overrides forward" in report.kept["own"]
    assert "4 convolutions swapped, 1 kept" in str(report)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert isinstance(model.stem, conv2d_ext.Conv2d)
    assert isinstance(model.subclassed, Scaled)
    assert model.subclassed.describe() == "scaled by 2.0"
    assert model.body["first"][0] is model.body["second"][0]
    torch.testing.assert_close(model(x), expected)

    assert conv2d_ext.restore(model) == report.swapped
    assert classes(model) == before
    assert not any("convx" in key for module in model.modules() for key in vars(module))
    assert torch.equal(model(x), expected)


def test_converted_modules_really_use_convx() -> None:
    model = Net()
    conv2d_ext.convert(model, algorithm="cpu_direct:no such variant")
    for name in ("stem", "subclassed"):
        layer = model.get_submodule(name)
        with pytest.raises(RuntimeError, match="no such variant"):
            layer(torch.randn(1, layer.in_channels, 4, 4))


def test_gradients_and_training_match() -> None:
    torch.manual_seed(0)
    model = Net()
    reference = copy.deepcopy(model)
    conv2d_ext.convert(model, policy="all")
    x, target = torch.randn(4, 3, 8, 8), torch.randn(4, 2)
    losses = []
    for net in (model, reference):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        history = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), target)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses.append(history)
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))


def test_filter_and_settings() -> None:
    model = Net()
    report = conv2d_ext.convert(
        model,
        filter=lambda name, module: module.groups > 1,
        precision="tf32",
        algorithm="cpu_direct",
    )
    assert report.swapped == ["depthwise"]
    assert report.kept["stem"] == "the filter said no"
    assert model.depthwise.precision == "tf32"
    assert model.depthwise.algorithm == "cpu_direct"
    conv2d_ext.restore(model)
    assert not hasattr(model.depthwise, "precision")


def test_converting_twice_changes_nothing_more() -> None:
    model = Net()
    conv2d_ext.convert(model, policy="all")
    again = conv2d_ext.convert(model, policy="all")
    assert again.swapped == []
    assert again.kept["stem"] == "already computes with convx"
    conv2d_ext.restore(model)
    assert type(model.stem) is nn.Conv2d


def test_restore_leaves_modules_that_were_ours_from_the_start() -> None:
    model = nn.Sequential(conv2d_ext.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    conv2d_ext.convert(model, policy="all")
    assert conv2d_ext.restore(model) == ["1"]
    assert type(model[0]) is conv2d_ext.Conv2d


def test_other_convolutions_are_mentioned() -> None:
    others = {
        "video": nn.Conv3d(4, 4, 2),
        "wave": nn.ConvTranspose1d(4, 4, 2),
        "lazy": nn.LazyConvTranspose2d(4, 2),
        "lazy row": nn.LazyConv1d(4, 2),
        "linear": nn.Linear(4, 4),
    }
    model = nn.ModuleDict({"conv": nn.Conv2d(4, 4, 2), **others})
    report = conv2d_ext.convert(model, policy="all")
    assert report.swapped == ["conv"]
    assert report.kept == {
        "video": "Conv3d: convx has no such layer",
        "wave": "ConvTranspose1d: convx has no such layer",
        "lazy": "LazyConvTranspose2d: convert the model when it is initialised",
        "lazy row": "LazyConv1d: convert the model when it is initialised",
    }
    assert "1 convolutions swapped, 4 kept" in str(report)


class Upsampling(nn.ConvTranspose2d):
    """Adds to nn.ConvTranspose2d without touching how it computes."""


class OwnRow(nn.Conv1d):
    def _conv_forward(self, *args):
        return 2 * super()._conv_forward(*args)


def decoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 6, 3, padding=1),
        OwnRow(6, 8, 1),
        nn.Unflatten(2, (5, 6)),
        nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
        Upsampling(6, 4, 2, 2, bias=False),
    )


def test_transposed_and_one_row_layers() -> None:
    model = decoder()
    reference, before = copy.deepcopy(model), classes(model)
    x = torch.randn(2, 4, 30)
    report = conv2d_ext.convert(model, policy="all")
    assert report.swapped == ["0", "3", "4"]
    assert report.kept == {"1": "OwnRow overrides _conv_forward"}
    assert isinstance(model[0], conv2d_ext.Conv1d)
    assert isinstance(model[4], Upsampling)
    assert isinstance(model[4], conv2d_ext.ConvTranspose2d)
    outcomes = []
    for net in (model, reference, pickle.loads(pickle.dumps(model))):
        y = net(x)
        gradients = torch.autograd.grad(y.square().sum(), list(net.parameters()))
        outcomes.append([y, *gradients])
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-4, atol=1e-4)
    assert torch.equal(outcomes[0][0], outcomes[2][0])
    assert conv2d_ext.restore(model) == report.swapped
    assert classes(model) == before


def test_faster_asks_for_an_example_of_transposed_layers() -> None:
    model = decoder()
    report = conv2d_ext.convert(model)
    assert "nothing is predicted for" in report.kept["3"]
    report = conv2d_ext.convert(model, example=torch.randn(2, 4, 30), train=True, seconds=1e-4)
    assert {"0", "3", "4"} <= report.times.keys()


class Native(conv2d_ext.Conv2d):
    """Somebody's own layer on top of ours."""


def test_restore_of_native_layers() -> None:
    model = nn.Sequential(
        conv2d_ext.Conv2d(3, 4, 3, padding=(1, 1, 2, 2), precision="ieee", algorithm="cpu_direct"),
        nn.Conv2d(4, 4, 1),
        weight_norm(conv2d_ext.Conv2d(4, 4, 3, padding="same")),
        conv2d_ext.Conv2d(4, 4, 3, padding=(1, 0, 2, 0), padding_mode="reflect"),
        conv2d_ext.LazyConv2d(4, 3),
        Native(4, 4, 1),
        Scaled(4, 4, 1),
    )
    conv2d_ext.convert(model, policy="all")
    x = torch.randn(1, 3, 9, 9)
    expected = copy.deepcopy(model)(x)
    state = [*model.state_dict()]

    assert conv2d_ext.restore(model, native=True) == ["0", "1", "2", "3", "4", "6"]

    assert [type(model[i]) for i in (0, 1, 3, 4, 5, 6)] == [
        nn.Conv2d,
        nn.Conv2d,
        nn.Conv2d,
        nn.LazyConv2d,
        Native,
        Scaled,
    ]
    assert not isinstance(model[2], conv2d_ext.Conv2d)
    assert parametrize.is_parametrized(model[2], "weight")
    assert model[0].padding == (1, 2)
    assert not {"precision", "algorithm"} & vars(model[0]).keys()
    assert [*model.state_dict()] == state
    model[4] = nn.Identity()  # its weights are not there yet
    kept = copy.deepcopy(model)
    conv2d_ext.convert(kept, policy="all")
    torch.testing.assert_close(model(x), kept(x))
    assert expected.shape[1] == 4


def test_restore_refuses_padding_that_nn_conv2d_has_not() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        conv2d_ext.Conv2d(4, 4, 3),
        conv2d_ext.Conv2d(4, 4, 3, padding=(2, 0, 1, 1)),
    )
    conv2d_ext.convert(model, policy="all")
    before = classes(model)
    with pytest.raises(ValueError, match=r"layer '2' pads \(top 2, bottom 0.*nn.ZeroPad2d"):
        conv2d_ext.restore(model, native=True)
    assert classes(model) == before
    assert conv2d_ext.restore(model) == ["0"]


def test_restore_refuses_activations_that_nn_conv2d_has_not() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), conv2d_ext.Conv2d(4, 4, 3, activation="silu"))
    conv2d_ext.convert(model, policy="all")
    before = classes(model)
    with pytest.raises(ValueError, match=r"layer '1' has activation='silu', which nn.Conv2d"):
        conv2d_ext.restore(model, native=True)
    assert classes(model) == before
    assert conv2d_ext.restore(model) == ["0"]


class WithActivation(nn.Conv2d):
    """Somebody's layer that keeps a module by the name of convx's attribute."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.activation = nn.ReLU()


def test_layers_with_attributes_of_our_names_are_kept() -> None:
    model = nn.Sequential(WithActivation(3, 4, 3))
    report = conv2d_ext.convert(model, policy="all")
    assert report.kept == {"0": "WithActivation has an attribute activation of its own"}


def test_a_single_convolution_is_a_model_too() -> None:
    layer = nn.Conv2d(3, 4, 1)
    assert conv2d_ext.convert(layer, policy="all").swapped == [""]
    assert type(layer) is conv2d_ext.Conv2d


def test_lazy_modules() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyConv2d(5, 3))
    conv2d_ext.convert(model, policy="all")
    model[0](torch.randn(1, 2, 5, 5))
    assert type(model[0]) is conv2d_ext.Conv2d
    conv2d_ext.restore(model)
    assert type(model[0]) is nn.Conv2d
    assert type(model[1]) is nn.LazyConv2d
    model[1](torch.randn(1, 4, 5, 5))
    assert type(model[1]) is nn.Conv2d


def test_parametrized_modules_keep_their_parametrization() -> None:
    model = nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)))
    untouched = copy.deepcopy(model)  # shares its parametrized class with the model
    x = torch.randn(1, 3, 5, 5)
    expected = model(x)
    conv2d_ext.convert(model, policy="all")
    assert isinstance(model[0], conv2d_ext.Conv2d)
    assert not isinstance(untouched[0], conv2d_ext.Conv2d)
    assert parametrize.is_parametrized(model[0], "weight")
    torch.testing.assert_close(model(x), expected)
    parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is conv2d_ext.Conv2d
    conv2d_ext.restore(model)
    assert type(model[0]) is nn.Conv2d
    torch.testing.assert_close(model(x), expected)


def test_hooks_survive() -> None:
    model = Net()
    seen = []
    model.stem.register_forward_hook(lambda *_: seen.append("stem"))
    conv2d_ext.convert(model, policy="all")
    model(torch.randn(1, 3, 8, 8))
    assert seen == ["stem"]


def test_converted_models_copy_and_pickle() -> None:
    model = Net()
    conv2d_ext.convert(model, policy="all")
    x = torch.randn(1, 3, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert isinstance(other.subclassed, Scaled)
        assert isinstance(other.subclassed, conv2d_ext.Conv2d)
        conv2d_ext.restore(other)
        assert type(other.subclassed) is Scaled
    assert isinstance(model.subclassed, conv2d_ext.Conv2d)


def test_converting_recompiles_a_compiled_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(1, 3, 6, 6)
    expected = compiled(x)
    conv2d_ext.convert(model, algorithm="cpu_direct:no such variant")
    with pytest.raises(RuntimeError, match="no such variant"):
        compiled(x)
    conv2d_ext.restore(model)
    torch.testing.assert_close(compiled(x), expected)
