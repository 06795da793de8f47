"""Converted models agree with the originals: outputs, all gradients, batch norm's statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from model_zoo import ZOO, Entry, draw_images, run
from torch import Tensor, nn

import conv2d_ext

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "strict_float32")
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True)
class Subject:
    """A model, its converted copy, and its float64 results; all on one device."""

    entry: Entry
    device: str
    original: nn.Module
    converted: nn.Module
    exact: dict[str, Tensor]
    exact_frozen: dict[str, Tensor]  # smoothened, with batch norm's statistics as they are


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module")
def where(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=ZOO, ids=str, scope="module")
def subject(request: pytest.FixtureRequest, where: str) -> Subject:
    entry: Entry = request.param
    original = entry.make().to(where)
    converted = copy.deepcopy(original)
    report = conv2d_ext.convert(converted, policy="all")
    layers = {name for name, m in original.named_modules() if isinstance(m, nn.Conv2d)}
    assert {*report.swapped, *report.kept} >= layers
    reasons = [reason for name, reason in report.kept.items() if name in layers]
    assert all(reason.startswith(entry.kept or "-") for reason in reasons)
    assert bool(reasons) == bool(entry.kept)
    others = report.kept.keys() - layers  # transposed ones and the like, mentioned and left alone
    assert all("convx has no such layer" in report.kept[name] for name in others)
    images = draw_images(where, torch.float64)
    exact = run(copy.deepcopy(original).double(), images)
    exact_frozen = run(smoothen(original).double(), images, frozen=True)
    return Subject(entry, where, original, converted, exact, exact_frozen)


@pytest.fixture
def strict_float32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def smoothen(model: nn.Module) -> nn.Module:
    """A copy without ReLUs: a value that rounding takes across zero moves gradients by percents."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.SiLU())
    return model


def distance(got: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Per tensor, the largest error over the largest value.

    Some gradients are zero but for rounding, as that of a bias before batch norm: no tensor counts
    as smaller than a millionth of the largest gradient.
    """
    assert got.keys() == exact.keys()
    gradients = [value.abs().max().item() for name, value in exact.items() if "grad" in name]
    floor = 1e-6 * max(gradients)
    return {
        name: (got[name].double() - want).abs().max().item() / max(want.abs().max().item(), floor)
        for name, want in exact.items()
    }


def in_float64(subject: Subject, layout: str) -> tuple[nn.Module, Tensor]:
    model = copy.deepcopy(subject.converted).double().to(memory_format=LAYOUTS[layout])
    x = draw_images(subject.device, torch.float64).to(memory_format=LAYOUTS[layout])
    return model, x


def assert_same(got: dict[str, Tensor], exact: dict[str, Tensor], limit: float = 1e-7) -> None:
    errors = distance(got, exact)
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] < limit, f"{worst} is off by {errors[worst]:.1e}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float64_agrees(subject: Subject, layout: str) -> None:
    model, x = in_float64(subject, layout)
    assert_same(run(model, x), subject.exact)


@pytest.mark.slow
def test_float64_agrees_when_compiled(subject: Subject) -> None:
    """Whole graph, through AOTAutograd. Inductor's own arithmetic is tested on a GPU.

    It keeps some constants in float32, whatever the model's type: then the original, compiled, is
    what to compare with. Random numbers are eager mode's, for the sake of stochastic depth.
    """
    model, x = in_float64(subject, "nchw")
    if subject.device == "cpu":
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert_same(run(model, x, compiled), subject.exact)
        return
    original = copy.deepcopy(subject.original).double()
    with torch._inductor.config.patch(fallback_random=True):
        theirs = distance(run(original, x, torch.compile(original)), subject.exact)
        got = run(model, x, torch.compile(model, fullgraph=True))
    limit = 4 * min(max(theirs.values()), 1e-6)
    assert_same(got, subject.exact, max(1e-7, limit))


def assert_as_close(
    subject: Subject, layout: str, call: Callable[[nn.Module], Any] | None = None
) -> None:
    """The converted model's rounding errors are like the original's.

    Deep models amplify rounding errors, so the test compares both models' distances from float64,
    by quantiles over all tensors.
    """
    x = draw_images(subject.device).to(memory_format=LAYOUTS[layout])
    errors = []
    for model in (subject.original, subject.converted):
        model = smoothen(model).to(memory_format=LAYOUTS[layout])
        results = run(model, x, call and call(model), frozen=True)
        found = distance(results, subject.exact_frozen)
        errors.append(torch.tensor(list(found.values()), dtype=torch.float64))
    theirs, ours = errors
    assert torch.isfinite(ours).all()
    for share, factor in ((0.5, 2), (0.9, 4)):
        limit = factor * theirs.quantile(share).item() + 1e-6
        assert ours.quantile(share).item() <= limit, f"{share:.0%} of the tensors"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_is_as_close_as_the_original(subject: Subject, layout: str) -> None:
    assert_as_close(subject, layout)


def test_autocast_is_as_close_as_the_original(subject: Subject) -> None:
    def autocast(model: nn.Module) -> Callable[[Tensor], Any]:
        def call(x: Tensor) -> Any:
            with torch.autocast(subject.device, torch.bfloat16):
                return model(x)

        return call

    assert_as_close(subject, "nchw", autocast)


@pytest.mark.parametrize("where", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_cuda_graph_replays_the_model(subject: Subject) -> None:
    model = copy.deepcopy(subject.converted).eval()
    x = draw_images("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs = model(x)
    x.copy_(draw_images("cuda").flip(0))
    graph.replay()
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
