"""scan: every convolution of a model, its engine, and the time that convert() would save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ._arguments import parse_lists, parse_padding, parse_pair
from ._checks import DTYPES
from ._layout import is_channels_last
from ._precision import default_precision, precision_name
from ._progress import Progress
from ._shape import PASS_NAMES, SHORT_NAMES, Shape
from ._swap import ConvLayer, why_keep
from ._text import format_table, html_table
from ._transposed import output_hw as transposed_hw
from .explain import explain_case
from .functional import as_one_row, conv1d, conv2d, conv_transpose2d
from .measuring.case import Case, time_case
from .measuring.model import find_device

_HEADER = ["module", "shape", "engine", "ms", "{} ms", "saves ms", ""]
_WHOLE_MODEL = "(the model)"

# Passes of a transposed convolution, as passes of the convolution that it transposes.
_TRANSPOSED_PASSES = {"fwd": "dgrad", "dgrad": "fwd"}


@dataclass(frozen=True)
class Call:
    """One convolution that a model computes. `kept` says why convert() would leave it alone."""

    module: str
    shape: Shape
    precision: str
    layout: str
    bias: bool
    kept: str = ""
    unused: tuple[str, ...] = ()  # gradients that a training step does not need, such as "dgrad"
    # The call is a transposed convolution: forward, it computes the input gradient of `shape`.
    is_transposed: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """The module's path in the model, which is empty for the model itself."""
        return () if self.module == _WHOLE_MODEL else (self.module,)

    def cases(self, directions: Sequence[str]) -> list[Case]:
        computed = _TRANSPOSED_PASSES if self.is_transposed else {}
        return [
            Case(
                self.shape,
                computed.get(direction, direction),
                self.precision,
                self.layout,
                bias=self.bias and not self.is_transposed,
            )
            for direction in directions
            if direction not in self.unused
        ]


@dataclass(frozen=True)
class Layer:
    """A call and its times, summed over the directions that were asked for."""

    call: Call
    engine: str
    ours_ms: float
    theirs_ms: float

    @property
    def saved_ms(self) -> float:
        """The time that convert() saves, which is zero if it would not swap the module."""
        return 0.0 if self.call.kept else self.theirs_ms - self.ours_ms


@dataclass(frozen=True)
class ScanReport:
    """The convolutions of a model in the order of their calls. Prints as a table."""

    layers: tuple[Layer, ...]
    peer: str
    directions: tuple[str, ...] = field(default=("fwd",))

    @property
    def saved_ms(self) -> float:
        return sum(layer.saved_ms for layer in self.layers)

    @property
    def faster(self) -> list[str]:
        """Modules that gain; convert(model, lambda name, _: name in faster) swaps them alone."""
        saved: dict[str, float] = {}
        for layer in self.layers:
            saved[layer.call.module] = saved.get(layer.call.module, 0.0) + layer.saved_ms
        return [name for name, milliseconds in saved.items() if milliseconds > 0]

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> list[str]:
        """The table and the line below it."""
        if not self.layers:
            return ["the model computed no 2-D convolution"]
        return [format_table(self._header(), self._rows(), left=3), "", self._summary()]

    def to_dict(self) -> dict[str, Any]:
        """Milliseconds of every convolution, ours and PyTorch's."""
        layers = [
            {
                "module": layer.call.module,
                "text": layer.call.shape.text,
                "precision": layer.call.precision,
                "layout": layer.call.layout,
                "engine": layer.engine,
                "ours_ms": layer.ours_ms,
                "torch_ms": layer.theirs_ms,
                "kept": layer.call.kept,
            }
            for layer in self.layers
        ]
        return {"directions": list(self.directions), "layers": layers}

    def _repr_html_(self) -> str:
        return html_table(self._header(), self._rows()) + f"<p>{self._summary()}</p>"

    def _header(self) -> list[str]:
        return [cell.format(self.peer) for cell in _HEADER]

    def _rows(self) -> list[list[str]]:
        rows = [
            [
                layer.call.module,
                layer.call.shape.text,
                layer.engine,
                f"{layer.ours_ms:.3f}",
                f"{layer.theirs_ms:.3f}",
                f"{layer.saved_ms:+.3f}",
                f"kept: {layer.call.kept}" if layer.call.kept else "",
            ]
            for layer in self.layers
        ]
        ours = sum(layer.ours_ms for layer in self.layers)
        theirs = sum(layer.theirs_ms for layer in self.layers)
        total = [f"{ours:.3f}", f"{theirs:.3f}", f"{self.saved_ms:+.3f}", ""]
        return [*rows, ["total", f"{len(self.layers)} convolutions", "", *total]]

    def _summary(self) -> str:
        before = sum(layer.theirs_ms for layer in self.layers)
        gain = set(self.faster)
        best = sum(layer.saved_ms for layer in self.layers if layer.call.module in gain)
        modules = {layer.call.module for layer in self.layers if not layer.call.kept}

        def change(saved: float) -> str:
            return f"{before:.3f} -> {before - saved:.3f} ms ({-saved / before:+.0%})"

        return (
            f"convert(model), {' + '.join(PASS_NAMES[d] for d in self.directions)}: "
            f"{change(self.saved_ms)}; "
            f"only the {len(gain)} of {len(modules)} modules that gain: {change(best)}"
        )


class _Recorder(TorchFunctionMode):
    """Notes every convolution that convx has a layer for, with the module that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.running: list[tuple[str, nn.Module]] = []
        self._notes: dict[Any, Callable[..., None]] = {
            F.conv2d: self._note_conv2d,
            conv2d: self._note_conv2d,
            F.conv1d: self._note_conv1d,
            conv1d: self._note_conv1d,
            F.conv_transpose2d: self._note_transposed,
            conv_transpose2d: self._note_transposed,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        note = self._notes.get(func)
        if note is not None:
            note(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note_conv2d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        precision: str | None = None,
        **others: Any,
    ) -> None:
        """A fused epilogue, which is among the other keywords, is left out of the times."""
        stride_hw, dilation_hw = parse_pair("stride", stride), parse_pair("dilation", dilation)
        kernel = (weight.shape[-2], weight.shape[-1])
        pad = parse_padding(padding, kernel, stride_hw, dilation_hw)
        size = input.shape if input.dim() == 4 else (1, *input.shape)
        shape = Shape.of_call(size, weight.shape, stride_hw, pad, dilation_hw, groups)
        self._note(input, weight, bias, shape, precision)

    def _note_conv1d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        *others: Any,
        **keywords: Any,
    ) -> None:
        operands, numbers = as_one_row(input, weight, stride, padding, dilation)
        self._note_conv2d(*operands, bias, *numbers, *others, **keywords)

    def _note_transposed(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        """The convolution whose input gradient the call is."""
        p = parse_lists(
            parse_pair("stride", stride),
            parse_padding(padding, (), (1, 1), (1, 1)),
            parse_pair("dilation", dilation),
            groups,
        )
        batch = input if input.dim() == 4 else input.unsqueeze(0)
        extents = transposed_hw(batch, weight, parse_pair("output_padding", output_padding), p)
        size = (batch.shape[0], weight.shape[1] * groups, *extents)
        stride_hw, dilation_hw = (p.stride_h, p.stride_w), (p.dilation_h, p.dilation_w)
        pad = p.pad_top, p.pad_bottom, p.pad_left, p.pad_right
        shape = Shape.of_call(size, weight.shape, stride_hw, pad, dilation_hw, groups)
        # Where the output padding is not below the stride, that convolution has another output.
        fits = tuple(batch.shape[2:]) == (shape.P, shape.Q)
        kept = "" if fits else "output padding above the stride is not measured"
        self._note(input, weight, bias, shape, precision, kept, is_transposed=True)

    def _note(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        shape: Shape,
        precision: str | None,
        kept: str = "",
        is_transposed: bool = False,
    ) -> None:
        if precision is None:
            precision = default_precision(input.device)
        dtype = _computed_dtype(input)
        last = input.dim() == 4 and (is_channels_last(input) or is_channels_last(weight))
        name, module = self.running[-1]
        if not kept:
            kept = (
                (why_keep(module) or "")
                if isinstance(module, ConvLayer)
                else "no layer that convx has"
            )
        if not kept and dtype not in DTYPES:
            kept = f"convx does not compute {dtype}"
        unused = []
        if torch.is_grad_enabled():
            needs = {"dgrad": input.requires_grad, "wgrad": weight.requires_grad}
            unused = [name for name, needed in needs.items() if not needed]
        self.calls.append(
            Call(
                name or _WHOLE_MODEL,
                shape,
                precision_name(dtype, precision),
                "nhwc" if last else "nchw",
                bias is not None,
                kept,
                tuple(unused),
                is_transposed,
            )
        )


def _computed_dtype(input: Tensor) -> torch.dtype:
    """The dtype after autocast, which casts below the function that is noted."""
    kind = input.device.type
    if not input.is_floating_point() or input.dtype is torch.float64:
        return input.dtype
    is_cast = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast else input.dtype


@contextmanager
def _recording(model: nn.Module) -> Iterator[_Recorder]:
    recorder = _Recorder()
    hooks = []
    for name, module in model.named_modules():

        def enter(module: nn.Module, _: Any, name: str = name) -> None:
            recorder.running.append((name, module))

        def leave(*_: Any) -> None:
            recorder.running.pop()

        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with recorder:
            yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def find_convolutions(
    model: nn.Module, *inputs: Any, train: bool = False, keywords: Mapping[str, Any] | None = None
) -> list[Call]:
    """Runs a model forward once and lists its convolutions in the order of calls. `train` records
    gradients, so that the calls say which of them a training step needs."""
    with torch.set_grad_enabled(train), _recording(model) as recorder:
        model(*inputs, **(keywords or {}))
    return recorder.calls


Times = dict[Case, tuple[float, float]]


def scan(
    model: nn.Module,
    *inputs: Any,
    directions: Sequence[str] = ("forward",),
    seconds: float = 0.1,
    progress: bool = False,
) -> ScanReport:
    """Say for every convolution of a model which engine takes it, and how long that and PyTorch's
    own take, each on its own and on random numbers.

    Args:
        model: any module; it runs once on the inputs, in the mode it is in.
        inputs: the model's positional arguments.
        directions: "forward" for inference; add "input_grad" and "weight_grad" for the times of a
            training step. The benchmark's short names "fwd", "dgrad" and "wgrad" work too.
        seconds: time spent on each measurement.
        progress: show on standard error how far it is.
    """
    calls = find_convolutions(model, *inputs)
    device = find_device(model, *inputs)
    directions = [SHORT_NAMES.get(direction, direction) for direction in directions]
    times: Times = {}
    time_calls(calls, directions, device, seconds, times, progress)
    return make_report(calls, directions, device, times)


def time_calls(
    calls: Sequence[Call],
    directions: Sequence[str],
    device: torch.device,
    seconds: float,
    times: Times,
    progress: bool = False,
) -> None:
    """Adds the milliseconds of every case to `times`, ours and PyTorch's, as they are measured, so
    that an interrupted caller has them. Layers that a model repeats are measured once."""
    cases = list(dict.fromkeys(case for call in calls for case in call.cases(directions)))
    with Progress(len(cases), shown=progress) as bar:
        for case in cases:
            with bar.step(str(case)):
                times[case] = time_case(case, device, seconds)


def make_report(
    calls: Sequence[Call], directions: Sequence[str], device: torch.device, times: Times
) -> ScanReport:
    """The report of all calls whose cases have been measured in every direction."""
    layers = []
    for call in calls:
        wanted = call.cases(directions)
        if any(case not in times for case in wanted):
            continue
        engines = dict.fromkeys(explain_case(case, device).engine for case in wanted)
        ours = sum(times[case][0] for case in wanted)
        theirs = sum(times[case][1] for case in wanted)
        layers.append(Layer(call, ", ".join(engines), ours, theirs))
    peer = "cuDNN" if device.type == "cuda" else "PyTorch"
    return ScanReport(tuple(layers), peer, tuple(directions))
