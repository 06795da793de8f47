"""convert(model, fuse=True): the same results in fewer calls, and restore() leaves no trace."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conv2d_ext
from conv2d_ext import _fusion
from conv2d_ext._checks import ACTIVATIONS
from conv2d_ext._fused import ACTIVATIONS as FUNCTIONS

TOLERANCE = dict(rtol=1e-4, atol=1e-4)


def conv_norm(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1):
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class Residual(nn.Module):
    """A block of ResNet: one module is both ReLUs, and sums are written in place."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_norm(inputs, outputs, stride=stride)
        self.conv2, self.bn2 = conv_norm(outputs, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride > 1 or inputs != outputs:
            self.down = nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Inverted(nn.Module):
    """A block of MobileNetV2: the addition is outside of the nn.Sequential, without activation."""

    def __init__(self, channels: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        wide = 2 * channels
        self.conv = nn.Sequential(
            nn.Sequential(*conv_norm(channels, wide, 1), act()),
            nn.Sequential(*conv_norm(wide, wide, 3, groups=wide), act()),
            *conv_norm(wide, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class Untraceable(nn.Module):
    """Data steer its forward, so only what it calls can be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = conv_norm(3, 8)
        self.body = nn.Sequential(*conv_norm(8, 8), nn.SiLU())
        self.blocks = nn.ModuleList([Residual(8, 8), Residual(8, 12, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(F.relu(self.bn(self.stem(x))))
        for block in self.blocks:
            if x.mean() > -100:
                x = block(x)
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    # a model, the number of its convolutions, and of those that are fused
    "plain": (lambda: nn.Sequential(*conv_norm(3, 8), nn.ReLU()), 1, 1),
    "no norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(), nn.Conv2d(8, 4, 1)),
        2,
        1,
    ),
    "resnet": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Residual(8, 8), Residual(8, 12, 2)),
        6,
        5,
    ),
    "mobilenet": (lambda: nn.Sequential(Inverted(3, nn.ReLU6), Inverted(3, nn.Hardswish)), 6, 6),
    "efficientnet": (lambda: nn.Sequential(Inverted(3, lambda: nn.SiLU(inplace=True))), 3, 3),
    "untraceable": (Untraceable, 7, 6),
    "reflected": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8), nn.GELU()
        ),
        1,
        1,
    ),
}


def trained(model: nn.Module) -> nn.Module:
    """The model in eval mode, with statistics and weights as after a training."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            with torch.no_grad():
                part.weight.uniform_(0.5, 2)
                part.bias.normal_()
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
    return model.eval()


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return trained(MODELS[name][0]())


def fuse(model: nn.Module) -> Any:
    return conv2d_ext.convert(model, policy="all", fuse=True)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 9, 10)


class Calls:
    """Counts chains that run in one call and those that run as separate modules."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fused = self.separate = 0
        conv2d, separately = _fusion.conv2d, _fusion._run_separately

        def count_fused(*args: Any, **kwargs: Any) -> Tensor:
            self.fused += 1
            return conv2d(*args, **kwargs)

        def count_separate(*args: Any) -> Tensor:
            self.separate += 1
            return separately(*args)

        monkeypatch.setattr(_fusion, "conv2d", count_fused)
        monkeypatch.setattr(_fusion, "_run_separately", count_separate)

    def of(self, model: nn.Module, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self.fused = self.separate = 0
        model(*args, **kwargs)
        return self.fused, self.separate


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def traces(model: nn.Module) -> Any:
    """All that restore() has to bring back."""
    return (
        [(name, id(part), type(part), sorted(vars(part))) for name, part in model.named_modules()],
        {name: value.clone() for name, value in model.state_dict().items()},
        [id(value) for value in model.state_dict(keep_vars=True).values()],
    )


@pytest.mark.parametrize("name", MODELS)
def test_same_results_and_no_trace_left(name: str, x: Tensor, calls: Calls) -> None:
    model = make(name)
    before = traces(model)
    want = model(x)
    report = fuse(model)
    _, convolutions, fused = MODELS[name]
    assert len(report.swapped) == convolutions
    assert len(report.fused) == fused
    assert len(report.unfused) == convolutions - fused
    assert f"{fused} fused" in str(report)
    for records in (True, False):
        with torch.set_grad_enabled(records):
            torch.testing.assert_close(model(x), want, **TOLERANCE)
            assert calls.of(model, x) == (fused, 0)
    state = model.state_dict()
    assert [*state] == [*before[1]]
    assert all(torch.equal(value, before[1][key]) for key, value in state.items())

    assert conv2d_ext.restore(model) == report.swapped
    parts, state, tensors = traces(model)
    assert parts == before[0]
    assert tensors == before[2]
    assert all(torch.equal(value, before[1][key]) for key, value in state.items())
    assert torch.equal(model(x), want)


def test_the_report_names_the_parts() -> None:
    model = nn.Sequential(make("untraceable"), Inverted(12, nn.ReLU)).eval()
    report = fuse(model)
    assert report.fused == {
        "0.body.0": "0.body.1 + 0.body.2",
        "0.blocks.0.conv1": "0.blocks.0.bn1 + 0.blocks.0.relu",
        "0.blocks.0.conv2": "0.blocks.0.bn2 + residual + 0.blocks.0.relu",
        "0.blocks.1.conv1": "0.blocks.1.bn1 + 0.blocks.1.relu",
        "0.blocks.1.down.0": "0.blocks.1.down.1",
        "0.blocks.1.conv2": "0.blocks.1.bn2 + residual + 0.blocks.1.relu",
        "1.conv.0.0": "1.conv.0.1 + 1.conv.0.2",
        "1.conv.1.0": "1.conv.1.1 + 1.conv.1.2",
        "1.conv.2": "1.conv.3 + residual",
    }
    assert [*report.unfused] == ["0.stem"]
    assert "torch.fx cannot trace the forward of Untraceable" in report.unfused["0.stem"]
    assert "  fused   1.conv.2 + 1.conv.3 + residual" in str(report)
    assert "  unfused 0.stem: torch.fx" in str(report)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, x: Tensor) -> None:
    model = make(name)
    outcomes = []
    for net in (model, copy.deepcopy(model)):
        if net is not model:
            fuse(net)
        inputs = [x.clone().requires_grad_(), *net.parameters()]
        y = net(inputs[0])
        outcomes.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    torch.testing.assert_close(*outcomes, rtol=1e-3, atol=1e-3)


ACTIVATION_MODULES = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(inplace=True),
    "leaky_relu": nn.LeakyReLU(0.2),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(),
    "mish": nn.Mish(inplace=True),
}


def test_every_activation_has_a_module() -> None:
    assert {"none", *ACTIVATION_MODULES} == {*ACTIVATIONS}


@pytest.mark.parametrize("activation", ACTIVATION_MODULES)
def test_modules_of_activations(activation: str, x: Tensor, calls: Calls) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), ACTIVATION_MODULES[activation]).eval()
    want = FUNCTIONS[activation](model[0](x), 0.2)
    assert fuse(model).fused == {"0": "1"}
    torch.testing.assert_close(model(x), want, **TOLERANCE)
    assert calls.of(model, x) == (1, 0)


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class Function(nn.Module):
    """A convolution, and a function of its output and the input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.randn(3, 1, 1))
        self.other = Doubling()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.conv(x), x)


def add_in_place(self: Any, y: Tensor, x: Tensor) -> Tensor:
    y += x
    return y.relu_()


FUSED_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "F.relu": lambda self, y, x: F.relu(y),
    "F.relu in place": lambda self, y, x: F.relu(y, True),
    "F.relu_": lambda self, y, x: F.relu_(y),
    "torch.relu": lambda self, y, x: torch.relu(y),
    "torch.relu_": lambda self, y, x: torch.relu_(y),
    "Tensor.relu": lambda self, y, x: y.relu(),
    "Tensor.relu_": lambda self, y, x: y.relu_(),
    "F.relu6": lambda self, y, x: F.relu6(input=y),
    "F.leaky_relu": lambda self, y, x: F.leaky_relu(y),
    "F.leaky_relu, slope": lambda self, y, x: F.leaky_relu(y, 0.3, inplace=True),
    "F.silu": lambda self, y, x: F.silu(y, inplace=True),
    "F.gelu": lambda self, y, x: F.gelu(y),
    "F.gelu, tanh": lambda self, y, x: F.gelu(y, approximate="tanh"),
    "torch.sigmoid": lambda self, y, x: torch.sigmoid(y),
    "F.sigmoid": lambda self, y, x: F.sigmoid(y),
    "Tensor.sigmoid": lambda self, y, x: y.sigmoid(),
    "torch.tanh": lambda self, y, x: torch.tanh(y),
    "Tensor.tanh": lambda self, y, x: y.tanh(),
    "F.hardswish": lambda self, y, x: F.hardswish(y),
    "F.hardsigmoid": lambda self, y, x: F.hardsigmoid(y),
    "F.mish": lambda self, y, x: F.mish(y),
    "norm": lambda self, y, x: self.norm(y),
    "norm and function": lambda self, y, x: torch.relu(self.norm(y)),
    "+": lambda self, y, x: y + x,
    "+ behind": lambda self, y, x: x + self.norm(y),
    "torch.add": lambda self, y, x: self.relu(torch.add(y, x)),
    "torch.add, other": lambda self, y, x: torch.add(x, other=y),
    "Tensor.add": lambda self, y, x: y.add(x).tanh(),
    "Tensor.add_": lambda self, y, x: self.norm(y).add_(x).relu(),
    "+=": add_in_place,
    "a computed residual": lambda self, y, x: F.silu(self.norm(y) + self.scale * x.exp()),
    "two convolutions": lambda self, y, x: F.relu(self.norm(y) + self.conv(x)),
    "itself afterwards": lambda self, y, x: self.relu(y) * 2,
    "a tuple": lambda self, y, x: (self.relu(y), x.shape[2]),
}


@pytest.mark.parametrize("name", FUSED_FUNCTIONS)
def test_functions(name: str, x: Tensor, calls: Calls) -> None:
    model = trained(Function(FUSED_FUNCTIONS[name]))
    first, second = x.clone(), x.clone()
    want = model(first)
    assert fuse(model).fused
    torch.testing.assert_close(model(second), want, **TOLERANCE)
    assert torch.equal(first, second)  # an input that is written, is still written
    fused, separate = calls.of(model, x)
    assert fused >= 1
    assert separate == 0


def call_between(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return self.norm(y) + self.other(x)


def two_outputs(self: Any, y: Tensor, x: Tensor) -> Any:
    return F.relu(y), y


def write_input(self: Any, y: Tensor, x: Tensor) -> Tensor:
    x = x.relu_()  # moving the convolution behind this would change it
    return self.norm(y) + x


def write_residual(self: Any, y: Tensor, x: Tensor) -> Tensor:
    r = x * 1
    z = r + y
    r += 1
    return F.relu(z) + r


def add_behind(self: Any, y: Tensor, x: Tensor) -> Tensor:
    x = x * 1
    x += self.norm(y)
    return F.relu(x)


def add_double_in_place(self: Any, y: Tensor, x: Tensor) -> Tensor:
    y += x.double()
    return F.relu(y)


def write_input_by_sum(self: Any, y: Tensor, x: Tensor) -> Tensor:
    x += y
    return F.relu(x)


def count_in_place(self: Any, y: Tensor, x: Tensor) -> Tensor:
    height = x.shape[2]
    twice = height
    twice += height
    return F.relu(y) * height + twice


# What the calls may be is not asked: the results, and what is written to the input, must stay.
OTHER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "a module that writes its input": call_between,
    "two outputs": two_outputs,
    "alpha": lambda self, y, x: torch.add(y, x, alpha=2),
    "broadcast": lambda self, y, x: F.relu(y + self.scale),
    "a larger sum": lambda self, y, x: self.norm(y) + torch.stack([x, 2 * x]),
    "a number": lambda self, y, x: F.relu(y + 1),
    "doubled": lambda self, y, x: F.relu(y + y),
    "a sum that writes elsewhere": add_behind,
    "another dtype in place": add_double_in_place,
    "another dtype": lambda self, y, x: F.relu(y + x.double()),
    "the input is written": write_input,
    "the residual is written": write_residual,
    "the sum is written to the input": write_input_by_sum,
    "numbers in place": count_in_place,
    "norm of something else": lambda self, y, x: self.norm(x) + y,
    "softplus": lambda self, y, x: F.softplus(y),
    "threshold": lambda self, y, x: F.hardtanh(y, -1, 1),
}


@pytest.mark.parametrize("name", OTHER_FUNCTIONS)
def test_functions_that_do_not_fit(name: str, x: Tensor) -> None:
    model = trained(Function(OTHER_FUNCTIONS[name]))
    first, second = x.clone(), x.clone()
    want = model(first)
    fuse(model)
    for _ in range(2):
        second = x.clone()
        torch.testing.assert_close(model(second), want, **TOLERANCE)
    torch.testing.assert_close(first, second, **TOLERANCE)


def use_class(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y) if isinstance(x, Tensor) else y


def use_is_tensor(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y) if torch.is_tensor(x) else y


def use_autocast(self: Any, y: Tensor, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.relu(self.conv(x)).float()


@torch.no_grad()
def use_no_grad(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(self.norm(y))


def use_random_numbers(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y) * torch.rand(1)


def use_attribute(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.last = y
    return F.relu(y)


def use_list(self: Any, y: Tensor, x: Tensor) -> Tensor:
    self.seen.append(y)
    return F.relu(y)


def use_values(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(y) if y.sum() > 0 else y


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (use_class, "class of a value"),
        (use_is_tensor, "class of a value"),
        (use_autocast, "switches a mode"),
        (use_no_grad, "switches a mode"),
        (use_random_numbers, "do not depend on its input"),
        (use_attribute, "changes attributes"),
        (use_list, "changes attributes"),
        (use_values, "traced variables"),
    ],
)
def test_forwards_that_a_trace_would_change(function: Any, reason: str, x: Tensor) -> None:
    model = trained(Function(function))
    model.seen = []
    before = {**vars(model)}
    report = fuse(model)
    assert report.fused == {}
    assert "torch.fx cannot trace the forward of Function" in report.unfused["conv"]
    assert reason in report.unfused["conv"]
    assert vars(model) == before
    assert model.seen == []
    torch.manual_seed(0)
    got = model(x)
    conv2d_ext.restore(model)
    torch.manual_seed(0)
    want = model(x)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)
    assert got.requires_grad == want.requires_grad


def test_training_mode_is_refused(x: Tensor) -> None:
    model = make("resnet").train()
    types = [*map(type, model.modules())]
    with pytest.raises(ValueError, match=r"training mode; call model.eval\(\) first"):
        fuse(model)
    with pytest.raises(ValueError, match="fuse=True is for inference, so it takes no train=True"):
        conv2d_ext.convert(model.eval(), fuse=True, example=x, train=True)
    assert [*map(type, model.modules())] == types


def test_training_after_fusion(x: Tensor, calls: Calls) -> None:
    model, plain = make("resnet"), make("resnet")
    fuse(model)
    for _ in range(2):
        for net in (model, plain):
            net.train()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            net(x).square().mean().backward()
            optimizer.step()
            net.eval()
        torch.testing.assert_close(model(x), plain(x), rtol=1e-3, atol=1e-3)
        assert calls.of(model, x) == (5, 0)
    assert calls.of(model.train(), x) == (0, 0)


def test_a_norm_in_training_mode(x: Tensor, calls: Calls) -> None:
    model = make("plain")
    model[1].train()
    report = fuse(model)
    assert report.unfused == {"0": "the BatchNorm that follows it is in training mode"}
    model.eval()
    fuse(model)
    assert calls.of(model, x) == (1, 0)
    model[1].train()
    reference = copy.deepcopy(model)
    conv2d_ext.restore(reference)
    torch.testing.assert_close(model(x), reference(x), **TOLERANCE)
    torch.testing.assert_close(model[1].running_mean, reference[1].running_mean)
    assert calls.of(model, x) == (0, 1)


@pytest.mark.parametrize("keeps", [dict(affine=False), dict(track_running_stats=False)], ids=str)
def test_norms_without_parameters_or_statistics(keeps: dict, x: Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **keeps), nn.ReLU()).eval()
    want = model(x)
    assert len(fuse(model).fused) == ("affine" in keeps)
    torch.testing.assert_close(model(x), want, **TOLERANCE)


def test_hooks(x: Tensor, calls: Calls) -> None:
    for index, reason in enumerate(("it has hooks", "the BatchNorm that follows it has hooks")):
        model = make("plain")
        seen = []
        handle = model[index].register_forward_hook(lambda *_, seen=seen: seen.append(1))
        report = fuse(model)
        assert report.unfused == {"0": reason}
        model(x)
        assert seen == [1]
        handle.remove()
        fuse(model)
        assert calls.of(model, x) == (1, 0)
    for index in range(3):  # hooks that come later
        handle = model[index].register_forward_pre_hook(lambda *_: seen.append(2))
        seen.clear()
        assert calls.of(model, x) == (0, 1)
        assert seen == [2]
        handle.remove()
    assert calls.of(model, x) == (1, 0)
    nested = make("mobilenet")
    fuse(nested)
    assert calls.of(nested, x) == (6, 0)
    nested[0].conv.register_forward_hook(lambda *_: seen.append(3))
    nested(x)
    assert seen[-1] == 3
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append(4)):
        assert calls.of(model, x) == (0, 0)
    assert seen[-1] == 4


def test_weights_that_are_written(x: Tensor, calls: Calls) -> None:
    model, plain = make("plain"), make("plain")
    fuse(model)
    state = trained(MODELS["plain"][0]()).state_dict()
    vector = torch.randn(sum(value.numel() for value in model.parameters()))
    changes: list[Callable[[nn.Module], Any]] = [
        lambda net: net.load_state_dict(state),
        lambda net: net.load_state_dict({k: 2 * v for k, v in state.items()}, assign=True),
        lambda net: net[0].weight.mul_(2),
        lambda net: net[1].running_mean.add_(1),
        lambda net: setattr(net[1], "eps", 0.5),
        lambda net: setattr(net[0], "weight", nn.Parameter(torch.ones(8, 3, 3, 3))),
        lambda net: net.double(),
        lambda net: net.float(),
        lambda net: net.bfloat16().float(),
        lambda net: net.to(memory_format=torch.channels_last),
        lambda net: nn.utils.vector_to_parameters(vector, net.parameters()),
    ]
    for change in changes:
        for net in (model, plain):
            with torch.no_grad():
                net(x.to(net[0].weight.dtype))
                change(net)
        value = x.to(model[0].weight.dtype)
        for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
            with mode:
                torch.testing.assert_close(model(value), plain(value), **TOLERANCE)
        assert calls.of(model, value) == (1, 0)


def test_folded_weights_are_kept(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from conv2d_ext import _fold

    model = make("plain")
    fuse(model)
    with torch.inference_mode():
        model(x)
    monkeypatch.setattr(_fold, "_fold", None)
    with torch.no_grad():
        model(x)
    model.requires_grad_(False)
    y = model(x.requires_grad_())
    y.sum().backward()  # what inference mode kept serves autograd too
    copied = copy.deepcopy(model)
    monkeypatch.undo()
    assert torch.equal(copied(x), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits(dtype: torch.dtype, x: Tensor) -> None:
    model = make("resnet").to(dtype)
    want = copy.deepcopy(model).float()(x.to(dtype).float())
    fuse(model)
    got = model(x.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)


def test_autocast(x: Tensor, calls: Calls) -> None:
    model, plain = make("resnet"), make("resnet")
    fuse(model)
    conv2d_ext.convert(plain, policy="all")
    with torch.autocast("cpu", torch.bfloat16):
        got, want = model(x), plain(x)
        assert calls.of(model, x) == (5, 0)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want.float(), rtol=0.1, atol=0.1)
    promoted = trained(Function(lambda self, y, x: F.relu(y + x)))
    fuse(promoted)
    with torch.autocast("cpu", torch.bfloat16):
        assert promoted(x).dtype == torch.float32  # as without fusion


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = conv_norm(3, 3)
        self.negates = False

    def forward(
        self, x: Tensor, residual: Tensor | None = None, scale: float = 1.0, **others: Any
    ) -> Tensor:
        assert not others
        y = self.bn(self.conv(x))
        if residual is not None:
            y = y + residual
        y = F.relu(y)
        return -y if self.negates else y * scale


def test_arguments_with_defaults(x: Tensor, calls: Calls) -> None:
    model = trained(Optional())
    plain = copy.deepcopy(model)
    fuse(model)
    assert calls.of(model, x) == (1, 0)
    assert calls.of(model, x=x) == (1, 0)
    for args, kwargs in (((x, x), {}), ((x,), dict(residual=x, scale=2.0)), ((x, None, 3.0), {})):
        torch.testing.assert_close(model(*args, **kwargs), plain(*args, **kwargs), **TOLERANCE)
        assert calls.of(model, *args, **kwargs) == (0, 0)
    with pytest.raises(TypeError):
        model(residual=x)
    for net in (model, plain):
        net.negates = True
    torch.testing.assert_close(model(x), plain(x), **TOLERANCE)
    assert calls.of(model, x) == (0, 0)


def test_modules_that_are_replaced(x: Tensor, calls: Calls) -> None:
    model = make("plain")
    fuse(model)
    model[2] = nn.SiLU()
    assert calls.of(model, x) == (1, 0)
    torch.testing.assert_close(model(x), F.silu(model[1](model[0](x))), **TOLERANCE)
    model[2] = nn.Softplus()
    assert calls.of(model, x) == (0, 1)
    model[1] = nn.Identity()
    torch.testing.assert_close(model(x), F.softplus(model[0](x)), **TOLERANCE)
    model.append(nn.Tanh())
    torch.testing.assert_close(model(x), F.softplus(model[0](x)).tanh(), **TOLERANCE)
    assert calls.of(model, x) == (0, 0)


def test_modules_that_return_their_input(x: Tensor, calls: Calls) -> None:
    conv, norm = conv_norm(3, 3)
    model = nn.Sequential(conv, norm, nn.Identity(), nn.Dropout(0.5), nn.ReLU(), nn.Dropout2d())
    want = trained(model)(x)
    assert fuse(model).fused == {"0": "1 + 4"}
    torch.testing.assert_close(model(x), want, **TOLERANCE)
    assert calls.of(model, x) == (1, 0)
    seen = []
    with model[2].register_forward_hook(lambda *_: seen.append(1)):
        torch.testing.assert_close(model(x), want, **TOLERANCE)
    assert seen == [1]
    model[3].train()
    assert (model(x) == 0).any()
    model[3] = nn.Tanh()
    torch.testing.assert_close(model(x), F.relu(norm(conv(x)).tanh()), **TOLERANCE)


def test_shared_modules(x: Tensor, calls: Calls) -> None:
    conv, norm = conv_norm(3, 3)
    model = nn.Sequential(conv, norm, nn.ReLU(), conv, nn.SiLU(), nn.Sequential(conv, norm))
    trained(model)
    want = model(x)
    fuse(model)
    torch.testing.assert_close(model(x), want, **TOLERANCE)
    assert calls.of(model, x) == (3, 0)
    torch.testing.assert_close(model[0](x), F.conv2d(x, conv.weight, padding=1), **TOLERANCE)


def test_layers_that_are_ours_from_the_start(x: Tensor, calls: Calls) -> None:
    model = nn.Sequential(
        conv2d_ext.Conv2d(3, 4, 3, precision="ieee"),
        nn.BatchNorm2d(4),
        conv2d_ext.Conv2d(4, 4, 3, activation="relu"),
        nn.ReLU(),
    )
    trained(model)
    want = model(x)
    report = fuse(model)
    assert report.fused == {"0": "1"}
    assert report.unfused == {"2": "it has an activation of its own"}
    torch.testing.assert_close(model(x), want, **TOLERANCE)
    assert conv2d_ext.restore(model) == []
    assert type(model) is nn.Sequential


def test_layers_that_convx_does_not_compute(x: Tensor) -> None:
    model = make("plain")
    report = conv2d_ext.convert(model, filter=lambda *_: False, fuse=True)
    assert (report.fused, report.unfused) == ({}, {})
    assert type(model) is nn.Sequential


def test_fusing_twice_is_fusing_once(x: Tensor, calls: Calls) -> None:
    model = make("mobilenet")
    first = fuse(model)
    types = [*map(type, model.modules())]
    again = fuse(model)
    assert again.fused == first.fused
    assert [*map(type, model.modules())] == types
    assert calls.of(model, x) == (6, 0)
    conv2d_ext.restore(model)
    assert type(model) is nn.Sequential


def test_an_example_measures_the_fused_model(x: Tensor) -> None:
    model = make("resnet")
    want = model(x)
    report = conv2d_ext.convert(model, fuse=True, example=x, seconds=1e-4)
    assert {*report.fused} <= {*report.swapped}
    torch.testing.assert_close(model(x), want, **TOLERANCE)


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "untraceable"])
def test_copies_and_files(name: str, x: Tensor, calls: Calls) -> None:
    model = make(name)
    fuse(model)
    want = model(x)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), want)
    assert calls.of(copied, x) == (MODELS[name][2], 0)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(model(x), want)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for loaded in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        torch.testing.assert_close(loaded(x), want, **TOLERANCE)  # computes without fusion
        assert conv2d_ext.restore(copy.deepcopy(loaded))
        assert len(fuse(loaded).fused) == MODELS[name][2]
        assert torch.equal(loaded(x), want)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_other_tools(name: str, x: Tensor) -> None:
    onnx = pytest.importorskip("onnx.reference")
    model = make(name)
    want = model(x)
    fuse(model)
    with torch.no_grad():
        model(x)
    for tool in (
        lambda: torch.compile(model, fullgraph=True, backend="aot_eager"),
        lambda: torch.export.export(model, (x,)).module(),
        lambda: torch.jit.trace(model, x),
        lambda: torch.jit.script(model),
        lambda: torch.fx.symbolic_trace(model),
    ):
        torch._dynamo.reset()
        torch.testing.assert_close(tool()(x), want, **TOLERANCE)
    exported = torch.export.export(model, (x,))
    assert "conv2d_act" in str(exported.graph)
    assert "batch_norm" not in str(exported.graph)
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto
    (got,) = onnx.ReferenceEvaluator(program).run(None, {program.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), want, **TOLERANCE)


def test_graphs_after_restore_are_the_old_ones(x: Tensor) -> None:
    model = make("resnet")
    code = torch.fx.symbolic_trace(model).code
    conv2d_ext.convert(model, policy="all")
    converted = torch.fx.symbolic_trace(model).code
    fuse(model)
    assert torch.fx.symbolic_trace(model).code == converted  # a trace sees the modules
    conv2d_ext.restore(model)
    assert torch.fx.symbolic_trace(model).code == code


def test_function_transforms(x: Tensor) -> None:
    model, plain = make("plain"), make("plain")
    fuse(model)
    with torch.no_grad():
        model(x)
    values = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    torch.testing.assert_close(
        torch.func.functional_call(model, values, (x,)),
        torch.func.functional_call(plain, values, (x,)),
        **TOLERANCE,
    )

    def loss(net: nn.Module) -> Any:
        return lambda v: torch.func.functional_call(net, v, (x,)).square().mean()

    torch.testing.assert_close(
        torch.func.grad(loss(model))(values), torch.func.grad(loss(plain))(values), **TOLERANCE
    )
    torch.testing.assert_close(
        torch.func.jvp(loss(model), (values,), (values,)),
        torch.func.jvp(loss(plain), (values,), (values,)),
        **TOLERANCE,
    )


def test_scan_sees_the_layers_of_a_fused_model(x: Tensor) -> None:
    from conv2d_ext.scan import find_convolutions

    model = make("resnet")
    before = [call.module for call in find_convolutions(model, x)]
    fuse(model)
    assert [call.module for call in find_convolutions(model, x)] == before


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0"]
)
def test_models_of_torchvision(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    model = trained(getattr(models, name)())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        want = model.double()(x.double())
        report = fuse(model)
        assert report.fused
        torch.testing.assert_close(model(x.double()), want)
