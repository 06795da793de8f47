"""Measures which layers of a model are faster with convx, and whether the whole model then is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ._fusion import fuse_model, unfuse_model
from ._precision import torch_allows_tf32
from ._shape import PASSES
from ._swap import ConvLayer, restore_layers, swap_layers
from ._text import times_text
from ._user_error import UserError
from .measuring.model import find_device, run_step, unchanged
from .measuring.timing import WORTH_IT, Timer, autotuned
from .scan import Call, Times, find_convolutions, time_calls

# Both models are measured so many times, alternately.
_ROUNDS = 3


@dataclass
class Choice:
    """The layers to swap, the reasons to keep others, and the times, as ConvertReport has them."""

    layers: dict[str, ConvLayer] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    step: tuple[float, float] | None = None


def choose_by_measuring(
    model: nn.Module,
    layers: dict[str, ConvLayer],
    example: Any,
    train: bool,
    precision: str | None,
    seconds: float,
    fuse: bool,
) -> Choice:
    """The layers that are faster with convx, or none if the whole model does not gain from them,
    which is measured with fused calls if `fuse`. Nothing is left swapped or fused."""
    prefix, inner = _unwrap(model)
    args, kwargs = _as_arguments(example)
    device = find_device(inner, *pytree.tree_leaves((args, kwargs)))
    passes = PASSES[: 3 if train else 1]
    choice = Choice()
    with unchanged(inner, train, device):
        calls = find_convolutions(inner, *args, train=train, keywords=kwargs)
        calls = [
            replace(call, module=".".join((*prefix, *call.path))) for call in calls if not call.kept
        ]
        calls = [_in_precision(call, precision) for call in calls if call.module in layers]
        times: Times = {}
        time_calls(calls, passes, device, seconds, times)
        choice.times = _sum_by_module(calls, times, passes)
        for name, layer in layers.items():
            reason = _why_not(choice.times.get(name))
            if reason is None:
                choice.layers[name] = layer
            else:
                choice.kept[name] = reason
        if choice.layers and not _is_distributed():
            run = partial(run_step, inner, args, kwargs, train)
            fused = inner if fuse else None
            choice.step = _time_both(
                run, choice.layers, fused, precision, device, max(0.1, 5 * seconds)
            )
    if choice.step is not None and choice.step[1] >= WORTH_IT * choice.step[0]:
        reason = f"faster alone, but the whole model is not: {times_text(choice.step)}"
        choice.kept |= dict.fromkeys(choice.layers, reason)
        choice.layers = {}
    return choice


def _unwrap(model: nn.Module) -> tuple[tuple[str, ...], nn.Module]:
    """The path to the module below wrappers that spread work over devices or compile it, and that
    module. Measuring through a wrapper would wait for other processes, or compile."""
    path: tuple[str, ...] = ()
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            path, model = (*path, "module"), model.module
        elif isinstance(inner := model.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            path, model = (*path, "_orig_mod"), inner
        else:
            return path, model


def _as_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return (example, {}) if isinstance(example, tuple) else ((example,), {})


def _in_precision(call: Call, precision: str | None) -> Call:
    """The call in the precision that convert() asks for, in which both libraries are measured."""
    if precision in ("ieee", "tf32") and call.precision in ("ieee", "tf32"):
        return replace(call, precision=precision)
    return call


def _sum_by_module(
    calls: list[Call], times: Times, passes: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Milliseconds of each module in a step, with PyTorch and with convx."""
    sums: dict[str, tuple[float, float]] = {}
    for call in calls:
        before, after = sums.get(call.module, (0.0, 0.0))
        for case in call.cases(passes):
            ours, theirs = times[case]
            before, after = before + theirs, after + ours
        sums[call.module] = before, after
    return sums


def _why_not(times: tuple[float, float] | None) -> str | None:
    if times is None:
        return "the example does not reach it"
    if times[1] < WORTH_IT * times[0]:
        return None
    return f"no faster: {times_text(times)}"


def _is_distributed() -> bool:
    """Whether there are other processes, for which a step of this one alone could wait forever."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _time_both(
    run: Any,
    chosen: dict[str, ConvLayer],
    fused: nn.Module | None,
    precision: str | None,
    device: torch.device,
    seconds: float,
) -> tuple[float, float] | None:
    """Milliseconds of a step without and with the chosen layers; None if there is no such step.
    `fused` is the model whose calls are fused for the second one."""
    timer = Timer(device, budget_s=seconds / _ROUNDS)
    before, after = [], []
    # PyTorch also computes in the precision that convert() asks for, or by its own settings.
    allow_tf32 = {"ieee": False, "tf32": True}.get(precision or "", torch_allows_tf32())
    with autotuned(allow_tf32):
        try:
            run()
        except UserError:  # the model has no training step, so its layers decide
            return None
        for _ in range(_ROUNDS):
            before.append(timer.median_ms(run))
            swap_layers(chosen.values(), precision, "auto")
            try:
                if fused is not None:
                    fuse_model(fused)
                after.append(timer.median_ms(run))
            finally:
                for layer in chosen.values():
                    restore_layers(layer, native=False)
                if fused is not None:
                    unfuse_model(fused)
    return min(before), min(after)
