"""Measures which layers of a model are faster with convx, and whether the whole model then is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from ._precision import torch_allows_tf32
from ._user_error import UserError
from .bench.shapes import DIRECTIONS
from .bench.timing import Timer, autotuned
from .convert import ConvertReport, restore, swap_layers, times_text
from .scan import Call, Times, find_convolutions, find_device, time_calls
from .step import run_backward

# A layer, and the whole model, is swapped if it is faster by more than noise.
WORTH_IT = 0.98
# Times that both models are measured, alternately.
_ROUNDS = 3


def choose_by_measuring(
    model: nn.Module,
    layers: dict[str, nn.Conv2d],
    example: Any,
    train: bool,
    precision: str | None,
    seconds: float,
    report: ConvertReport,
) -> dict[str, nn.Conv2d]:
    """The layers that are faster with convx, or none if the model does not gain from them.

    Reasons to keep the others, and all times, are added to the report; no layer is left swapped.
    """
    prefix, inner = _unwrap(model)
    args, kwargs = _as_arguments(example)
    device = find_device(inner, *pytree.tree_leaves((args, kwargs)))
    with _unchanged(inner, train, device):
        calls = find_convolutions(inner, *args, train=train, keywords=kwargs)
        calls = [
            replace(call, module=".".join((*prefix, *call.path))) for call in calls if not call.kept
        ]
        calls = [_in_precision(call, precision) for call in calls if call.module in layers]
        times: Times = {}
        time_calls(calls, DIRECTIONS[: 3 if train else 1], device, seconds, times)
        report.times = _sum_by_module(calls, times, train)
        chosen = {}
        for name, layer in layers.items():
            reason = _why_not(report.times.get(name))
            if reason is None:
                chosen[name] = layer
            else:
                report.kept[name] = reason
        if chosen and not _is_distributed():
            run = partial(_run_step, inner, args, kwargs, train)
            report.step = _time_both(run, chosen, precision, device, max(0.1, 5 * seconds))
    if report.step is not None and report.step[1] >= WORTH_IT * report.step[0]:
        reason = f"faster alone, but the whole model is not: {times_text(report.step)}"
        report.kept |= dict.fromkeys(chosen, reason)
        return {}
    return chosen


def _unwrap(model: nn.Module) -> tuple[tuple[str, ...], nn.Module]:
    """The module that computes, below wrappers that spread work over devices or compile it, and its
    path from the wrapper. Measuring through a wrapper would wait for other processes, or compile.
    """
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
    """Compares strict with strict, and TF32 with TF32, if the caller asks for a precision."""
    if precision in ("ieee", "tf32") and call.precision in ("ieee", "tf32"):
        return replace(call, precision=precision)
    return call


def _sum_by_module(calls: list[Call], times: Times, train: bool) -> dict[str, tuple[float, float]]:
    """Milliseconds with PyTorch and with convx of everything that a module computes in a step."""
    sums: dict[str, tuple[float, float]] = {}
    for call in calls:
        before, after = sums.get(call.module, (0.0, 0.0))
        for case in call.cases(DIRECTIONS[: 3 if train else 1]):
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
    """Processes that measure steps by themselves could wait for each other's forever."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _time_both(
    run: Any,
    chosen: dict[str, nn.Conv2d],
    precision: str | None,
    device: torch.device,
    seconds: float,
) -> tuple[float, float] | None:
    """Milliseconds of a step without and with the chosen layers; None if there is no such step."""
    timer = Timer(device, budget_s=seconds / _ROUNDS)
    before, after = [], []
    # PyTorch in the precision that is asked for, or by its own settings.
    allow_tf32 = {"ieee": False, "tf32": True}.get(precision or "", torch_allows_tf32())
    with autotuned(allow_tf32):
        try:
            run()
        except UserError:  # a model without a training step: its layers decide
            return None
        for _ in range(_ROUNDS):
            before.append(timer.median_ms(run))
            swap_layers(chosen.values(), precision, "auto")
            try:
                after.append(timer.median_ms(run))
            finally:
                for layer in chosen.values():
                    restore(layer)
    return min(before), min(after)


def _run_step(model: nn.Module, args: Any, kwargs: Any, train: bool) -> None:
    with torch.set_grad_enabled(train):
        outputs = model(*args, **kwargs)
        if train:
            model.zero_grad(set_to_none=True)
            run_backward(outputs)


@contextmanager
def _unchanged(model: nn.Module, train: bool, device: torch.device) -> Iterator[None]:
    """Lets a model run, eagerly and in the mode that is asked for, and leaves its modes, buffers
    and gradients and the generators of random numbers as they were."""
    modes = [(module, module.training) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(torch.inference_mode(False))
        if model.training is not train:  # else layers that were frozen one by one stay frozen
            model.train(train)
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
