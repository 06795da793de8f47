"""convert(policy=...): layers are swapped where that is faster; no model is slowed down."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import conv2d_ext
from conv2d_ext import _prediction, scan
from conv2d_ext._prediction import why_not_faster_on_hopper
from conv2d_ext._shape import Shape
from conv2d_ext.measuring.case import Operands
from conv2d_ext.measuring.timing import Timer

H200 = Path(__file__).parents[2] / "docs" / "performance" / "h200.json"


class Net(nn.Module):
    """A 3x3 layer that is used twice, a 1x1 layer, normalization, and a layer without a use."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout()
        self.point = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.twice(self.twice(self.stem(x)))))
        return self.point(x)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Ours takes 1 ms; PyTorch's 2 ms, and half a millisecond for 1x1 layers. A whole model takes
    a millisecond for each module that is PyTorch's."""
    cases = []

    def medians_ms(self: Timer, calls) -> list[float]:
        times = []
        for call in calls:
            operands: Operands = call.__self__
            if call.__name__ == "ours":
                cases.append((operands.case.shape.text, operands.case.direction))
            ours = call.__name__ == "ours"
            times.append(1.0 if ours else 0.5 if operands.case.shape.R == 1 else 2.0)
        return times

    def median_ms(self: Timer, call) -> float:
        call()
        model = call.args[0]
        return 1.0 + sum(not isinstance(m, conv2d_ext.Conv2d) for m in model.modules())

    monkeypatch.setattr(Timer, "medians_ms", medians_ms)
    monkeypatch.setattr(Timer, "median_ms", median_ms)
    return cases


def state(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def test_swaps_what_is_faster_with_the_example(timed) -> None:
    model = Net()
    report = conv2d_ext.convert(model, example=torch.randn(2, 3, 8, 8), train=False)
    assert report.swapped == ["stem", "twice"]
    assert report.times == {"stem": (2.0, 1.0), "twice": (4.0, 2.0), "point": (0.5, 1.0)}
    assert report.kept == {
        "point": "no faster: 0.500 -> 1.000 ms (0.50x)",
        "unused": "the example does not reach it",
    }
    assert {direction for _, direction in timed} == {"fwd"}
    assert report.step is not None
    assert report.step[0] == report.step[1] + 2
    text = str(report)
    assert "swapped twice: 4.000 -> 2.000 ms (2.00x)" in text
    assert "whole model: " in text
    assert isinstance(model.twice, conv2d_ext.Conv2d)
    assert conv2d_ext.restore(model) == ["stem", "twice"]
    assert type(model.twice) is nn.Conv2d


def test_a_training_step_counts_the_gradients_that_it_needs(timed) -> None:
    model = Net()
    model.twice.weight.requires_grad_(False)
    conv2d_ext.convert(model, example=(torch.randn(2, 3, 8, 8),), train=True)
    assert timed == [
        ("n2c3h8w8 k4r3s3 pad1,1,1,1", "fwd"),
        ("n2c3h8w8 k4r3s3 pad1,1,1,1", "wgrad"),
        ("n2c4h8w8 k4r3s3 pad1,1,1,1", "fwd"),
        ("n2c4h8w8 k4r3s3 pad1,1,1,1", "dgrad"),
        ("n2c4h8w8 k4r1s1", "fwd"),
        ("n2c4h8w8 k4r1s1", "dgrad"),
        ("n2c4h8w8 k4r1s1", "wgrad"),
    ]


@pytest.mark.parametrize("train", [None, False, True])
def test_the_model_is_as_before_but_for_its_layers(timed, train) -> None:
    model = Net()
    model.drop.eval()
    model.stem.weight.grad = torch.ones_like(model.stem.weight)
    before, modes = state(model), [m.training for m in model.modules()]
    torch.manual_seed(3)
    report = conv2d_ext.convert(model, example={"x": torch.randn(2, 3, 8, 8)}, train=train)
    drawn = torch.rand(())
    torch.manual_seed(3)
    torch.randn(2, 3, 8, 8)
    assert torch.rand(()) == drawn
    assert report.swapped
    assert all(torch.equal(a, b) for a, b in zip(state(model), before, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(model.stem.weight.grad, torch.ones_like(model.stem.weight))
    assert model.twice.weight.grad is None


def test_a_model_that_does_not_gain_as_a_whole_is_left_alone(timed, monkeypatch) -> None:
    monkeypatch.setattr(Timer, "median_ms", lambda self, call: 5.0)
    model = Net()
    report = conv2d_ext.convert(model, example=torch.randn(2, 3, 8, 8))
    assert report.swapped == []
    assert report.step == (5.0, 5.0)
    assert "whole model is not: 5.000 -> 5.000 ms (1.00x)" in report.kept["stem"]
    assert all(type(m) is nn.Conv2d for m in (model.stem, model.twice))


def test_layers_of_every_kind(timed) -> None:
    """Lazy, parametrized, subclassed, and below wrappers."""

    class Sub(nn.Conv2d):
        pass

    def make() -> nn.Module:
        body = nn.Sequential(
            nn.LazyConv2d(4, 3), weight_norm(nn.Conv2d(4, 4, 3)), Sub(4, 4, 3), nn.Conv2d(4, 4, 3)
        )
        body[1:].to(memory_format=torch.channels_last)
        return body

    x = torch.randn(1, 3, 12, 12)
    wrappers = {"": lambda m: m, "module.": nn.DataParallel, "_orig_mod.": torch.compile}
    for prefix, wrap in wrappers.items():
        model = wrap(make())
        assert conv2d_ext.convert(model, example=x).swapped == [f"{prefix}{i}" for i in range(4)]
        converted = model(x) if prefix != "_orig_mod." else None
        assert len(conv2d_ext.restore(model)) == 4
        if converted is not None:
            torch.testing.assert_close(model(x), converted)
    layer = nn.Conv2d(3, 4, 3)
    assert conv2d_ext.convert(nn.DataParallel(layer), example=x).swapped == ["module"]
    assert conv2d_ext.convert(nn.Conv2d(3, 4, 3), example=x).swapped == [""]


def test_inputs_of_every_kind(timed) -> None:
    class Listed(nn.Module):
        """Takes a list of images, as detection models do, and a keyword of a name of ours."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.utils.weight_norm(nn.Conv2d(3, 4, 3))  # by a hook, as it was once done

        def forward(self, images: list[torch.Tensor], train: bool = True) -> torch.Tensor:
            return self.conv(torch.stack(images))

    images = [torch.randn(3, 8, 8), torch.randn(3, 8, 8)]
    for example in (images, (images, False), {"images": images, "train": False}):
        assert conv2d_ext.convert(Listed(), example=example).swapped == ["conv"]


def test_processes_do_not_wait_for_each_other(timed, monkeypatch) -> None:
    """Whole steps are not measured in a distributed program; layers are, below the wrapper."""
    monkeypatch.setattr(Timer, "median_ms", lambda *_: pytest.fail("a step was measured"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.randn(1, 3, 8, 8)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3)))
        report = conv2d_ext.convert(model, example=x)
        assert (report.swapped, report.step) == (["module.0"], None)
        model(x).sum().backward()
        assert conv2d_ext.restore(model) == ["module.0"]
    finally:
        dist.destroy_process_group()


def test_a_layer_with_attributes_of_ours_names_is_kept() -> None:
    layer = nn.Conv2d(3, 4, 3)
    layer.precision = 8
    report = conv2d_ext.convert(layer, policy="all")
    assert report.kept == {"": "Conv2d has an attribute precision of its own"}


def test_autocast_decides_what_is_measured() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        (call,) = scan.find_convolutions(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    assert call.precision == "bf16"


def test_measuring_for_real() -> None:
    """Whatever this machine says, both outcomes compute the same."""
    model = Net().eval()
    x = torch.randn(2, 3, 16, 16)
    want = model(x)
    report = conv2d_ext.convert(model, example=x, seconds=0.001)
    assert set(report.swapped) | set(report.kept) == {"stem", "twice", "point", "unused"}
    torch.testing.assert_close(model(x), want)


def test_the_default_is_faster_unless_the_caller_chooses(monkeypatch) -> None:
    monkeypatch.setattr(
        _prediction,
        "find_target_device",
        lambda layer: torch.device("cpu"),
    )
    monkeypatch.setattr(_prediction.platform, "machine", lambda: "aarch64")
    assert len(conv2d_ext.convert(Net()).swapped) == 4
    report = conv2d_ext.convert(Net(), train=False)
    assert report.swapped == []
    assert "predicted to be no faster" in report.kept["stem"]
    monkeypatch.setattr(_prediction.platform, "machine", lambda: "x86_64")
    assert "measure with example=" in conv2d_ext.convert(Net()).kept["stem"]
    assert conv2d_ext.convert(Net(), lambda name, _: name == "stem").swapped == ["stem"]
    assert len(conv2d_ext.convert(Net(), algorithm="cpu_direct").swapped) == 4
    assert len(conv2d_ext.convert(Net(), policy="all").swapped) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"policy": "best"}, "policy must be 'all' or 'faster', but got policy='best'"),
        ({"policy": "all", "example": 1}, "takes no example"),
        ({"policy": "faster", "algorithm": "cpu_gemm"}, "pass policy='all'"),
        ({"example": 1, "algorithm": "cpu_gemm"}, "pass policy='all'"),
    ],
)
def test_arguments_that_contradict_each_other(arguments, complaint) -> None:
    model = Net()
    with pytest.raises(ValueError, match=complaint):
        conv2d_ext.convert(model, **arguments)
    assert type(model.stem) is nn.Conv2d


def make_layer(shape: Shape, precision: str, layout: str) -> nn.Conv2d:
    s = shape
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with torch.device("meta"):
        layer = nn.Conv2d(s.C, s.K, (s.R, s.S), s.stride, 0, s.dilation, s.groups, dtype=dtype)
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    return layer.to(memory_format=memory_format)


@pytest.mark.parametrize("train", [False, True])
def test_layers_predicted_to_be_faster_were(train) -> None:
    """The rules of prediction summarise the committed measurements."""
    times: dict[tuple[str, ...], list[float]] = {}
    for row in json.loads(H200.read_text())["rows"]:
        if train or row["direction"] == "fwd":
            key = row["text"], row["precision"], row["layout"]
            ours, theirs = times.get(key, [0.0, 0.0])
            times[key] = [ours + row["ours_ms"], theirs + row["cudnn_ms"]]
    found = 0
    for (text, precision, layout), (ours, theirs) in times.items():
        layer = make_layer(Shape.parse(text), precision, layout)
        if why_not_faster_on_hopper(layer, train, "tf32") is None:
            found += 1
            assert ours <= 1.05 * theirs, (text, precision, layout)
    assert found > len(times) / 2


def test_strict_float32_is_predicted_for_every_layer() -> None:
    layer = nn.Conv2d(64, 64, 1)
    assert why_not_faster_on_hopper(layer, True, "tf32") is not None
    assert why_not_faster_on_hopper(layer, True, "ieee") is None
    assert "float64" in str(why_not_faster_on_hopper(copy.deepcopy(layer).double(), True, "ieee"))
