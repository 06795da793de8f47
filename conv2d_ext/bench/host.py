"""The host's time of a call, before an engine starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._shape import Shape
from .._text import format_table
from ..functional import conv2d
from ..measuring.timing import host_us
from ..modules import Conv2d

FORMS = ("function", "module")
# Whether a graph is recorded, and which pass is timed.
WORK = {
    "forward, no_grad": (False, "forward"),
    "forward, autograd": (True, "forward"),
    "backward": (True, "backward"),
}


def host_times(device: torch.device) -> dict[str, float]:
    """Microseconds per call, ours and F.conv2d's, of a convolution so small that the host's time is
    all of it: under no_grad, and where a gradient will be asked for."""
    x = torch.randn(1, 4, 8, 8, device=device)
    w = torch.randn(4, 4, 3, 3, device=device)

    def time(call: Callable[..., Tensor], grad: bool) -> float:
        weight = w.clone().requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            return host_us(lambda: call(x, weight, padding=1))

    return {
        "ours_us": time(conv2d, False),
        "torch_us": time(F.conv2d, False),
        "ours_grad_us": time(conv2d, True),
        "torch_grad_us": time(F.conv2d, True),
    }


@dataclass
class HostRow:
    """Host microseconds per layer, the mean over a network's layers; ratio is PyTorch's over
    ours."""

    form: str  # one of FORMS
    work: str  # one of WORK
    autocast: bool  # float32 layers under autocast to bfloat16, their inputs in bfloat16
    layers: int
    ours_us: float
    torch_us: float
    ratio: float


class _Layers:
    """Layers one after another, each with its own input, for both libraries."""

    def __init__(
        self, shapes: Sequence[Shape], device: torch.device, bias: bool, row: tuple[str, str, bool]
    ) -> None:
        form, work, self.autocast = row
        self.records, self.timed = WORK[work]
        self.device = device
        self.inputs: list[Tensor] = []
        self.calls: dict[str, list[Callable[[Tensor], Tensor]]] = {"ours": [], "torch": []}
        self.parameters: list[Tensor] = []
        dtype = torch.bfloat16 if self.autocast else torch.float32
        for s in shapes:
            x = torch.randn(s.N, s.C, s.H, s.W, device=device, dtype=dtype)
            self.inputs.append(x.requires_grad_(self.records))
            padding = s.symmetric_padding
            assert padding is not None
            keywords: dict[str, Any] = dict(
                stride=s.stride, padding=padding, dilation=s.dilation, groups=s.groups
            )
            for library, make, function in (
                ("ours", Conv2d, conv2d),
                ("torch", nn.Conv2d, F.conv2d),
            ):
                layer = make(s.C, s.K, (s.R, s.S), bias=bias, device=device, **keywords)
                self.parameters += layer.parameters()
                call: Callable[[Tensor], Tensor] = layer
                if form == "function":
                    call = _bind(function, layer.weight, layer.bias, keywords)
                self.calls[library].append(call)

    def seconds(self, library: str) -> float:
        """The host's time of one pass over all layers. An autocast region holds one pass, as in
        a training loop."""
        pairs = list(zip(self.calls[library], self.inputs, strict=True))
        for tensor in (*self.parameters, *self.inputs):
            tensor.grad = None
        outputs: list[Tensor] = []
        with torch.set_grad_enabled(self.records):
            _wait(self.device)
            begin = time.perf_counter()
            with self._region():
                if self.timed == "forward":
                    for call, x in pairs:
                        call(x)
                else:
                    outputs += [call(x) for call, x in pairs]
            forward = time.perf_counter() - begin
        if self.timed == "forward":
            return forward
        gradients = [torch.ones_like(y) for y in outputs]
        _wait(self.device)
        begin = time.perf_counter()
        torch.autograd.backward(outputs, gradients)
        return time.perf_counter() - begin

    def _region(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()


def _bind(
    function: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, keywords: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    stride, padding, dilation, groups = keywords.values()
    return lambda x: function(x, weight, bias, stride, padding, dilation, groups)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_host(
    shapes: Sequence[Shape], device: torch.device, bias: bool, budget_s: float
) -> list[HostRow]:
    """Host time of every form and kind of work, over layers that F.conv2d can express too.

    Each time is the least of several passes, and ours and PyTorch's alternate. The device is idle
    before each pass, whose end on a GPU is not part of the time; on the CPU it is.
    """
    layers = [shape for shape in shapes if shape.symmetric_padding is not None]
    rows = []
    for autocast in (False, True) if layers else ():
        for form in FORMS:
            for work in WORK:
                each = _Layers(layers, device, bias, (form, work, autocast))
                least = {"ours": float("inf"), "torch": float("inf")}
                end = time.perf_counter() + budget_s
                passes = 0
                while passes < 5 or time.perf_counter() < end:  # the first two warm up
                    for library in least:
                        taken = each.seconds(library)
                        if passes > 1:
                            least[library] = min(least[library], taken)
                    passes += 1
                ours, theirs = (least[name] / len(layers) * 1e6 for name in least)
                rows.append(HostRow(form, work, autocast, len(layers), ours, theirs, theirs / ours))
    return rows


def format_host(rows: Sequence[HostRow]) -> str:
    """A table of host times."""
    cells = [
        [
            row.form,
            row.work + (", autocast" if row.autocast else ""),
            str(row.layers),
            f"{row.ours_us:.1f}",
            f"{row.torch_us:.1f}",
            f"{row.ratio:.2f}x",
        ]
        for row in rows
    ]
    header = ["host time of", "work", "layers", "us per layer", "PyTorch us", "ratio"]
    return format_table(header, cells, left=2)
