"""convert: make the convolutions of a model compute with convx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ._choices import check_choices, check_policy
from ._fusion import fuse_model, unfuse_model
from ._prediction import why_not_faster
from ._swap import ConvLayer, restore_layers, swap_layers, why_keep
from ._text import times_text
from ._values import shown
from .policy import choose_by_measuring

__all__ = ["ConvertReport", "convert", "restore"]

# Convolutions that convx does not compute. A report mentions them as kept.
_OTHER_CONVOLUTIONS = (nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d)


@dataclass
class ConvertReport:
    """The names of modules that convert() swapped, and of kept ones with the reason.

    If an example was measured, `times` has the milliseconds of each measured module with PyTorch
    and with convx, and `step` the milliseconds of the whole model before and after the swap. If
    fusion was asked for, `fused` has the convolutions that got something into their call, with the
    names of the parts behind them, and `unfused` the others with the reason.
    """

    swapped: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    step: tuple[float, float] | None = None
    fused: dict[str, str] = field(default_factory=dict)
    unfused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} convolutions swapped, {len(self.kept)} kept"]
        if self.fused or self.unfused:
            lines[0] += f", {len(self.fused)} fused"
        if self.step is not None:
            lines.append(f"  whole model: {times_text(self.step)}")
        for name in self.swapped:
            gain = f": {times_text(self.times[name])}" if name in self.times else ""
            lines.append(f"  swapped {name}{gain}")
        lines += [f"  kept    {name}: {reason}" for name, reason in self.kept.items()]
        lines += [f"  fused   {name} + {others}" for name, others in self.fused.items()]
        lines += [f"  unfused {name}: {reason}" for name, reason in self.unfused.items()]
        return "\n".join(lines)


def convert(
    model: nn.Module,
    filter: Callable[[str, Any], bool] | None = None,
    *,
    policy: str | None = None,
    fuse: bool = False,
    example: Any = None,
    train: bool | None = None,
    seconds: float = 0.02,
    precision: str | None = None,
    algorithm: str = "auto",
) -> ConvertReport:
    """Make the nn.Conv2d, nn.Conv1d and nn.ConvTranspose2d of a model compute with convx, in place.

    By default only layers that are faster with convx on this machine are swapped. Without an
    example input that is a prediction by the kind of layer, for the GPU if the machine has one that
    convx can use. With an example input every layer is measured, and so is the whole model: if it
    is not faster with the chosen layers, it is left as it was.

    On CUDA, float32 layers use TF32 wherever PyTorch's settings allow it, and PyTorch's default
    does; `precision="ieee"` converts to strict float32.

    Modules stay the objects they are and only change class: parameters, hooks, shared modules,
    optimizers that hold the parameters, and names are untouched. Lazy modules become convx's when
    they are initialised; parametrized ones (weight norm and the like) keep their parametrization.
    Subclasses are swapped unless they override how the convolution is computed.

    With `fuse=True`, convolutions that compute with convx also take what follows them into their
    call: BatchNorm in eval mode, the addition of a tensor of the same size, and an activation. The
    model keeps its modules, parameters and state_dict; folded weights are kept beside them and made
    anew when a parameter or a statistic is written. Training mode, hooks on a fused module, and
    additions that broadcast still compute as before.

    Args:
        model: the model, or a single layer.
        filter: called with a module's name and the module; convert() swaps only modules for which
            it returns True.
        policy: "all" swaps every layer, "faster" only faster ones. None is "faster", or "all" if a
            filter or an algorithm is given and no example, because then the caller has chosen.
        fuse: whether to fuse, for inference.
        example: the model's input, a tuple of its positional arguments, or a dict of its keyword
            arguments; a list is one input. The model runs on it to be measured, and its buffers,
            gradients, modes and the random numbers are left as they were; lazy modules get
            initialised.
        train: whether a training step (forward and backward) should become faster, or a forward
            pass. None: a training step if the model is in training mode.
        seconds: spent on each measurement of a layer.
        precision: sets the converted modules' precision; None follows PyTorch's settings.
        algorithm: sets the converted modules' algorithm. Layers are measured with "auto" only.

    Returns:
        A report of swapped, kept and fused layers, which prints readably. 3-D convolutions and
            transposed ones of other dimensions are among the kept ones.

    Raises:
        ValueError: for an unknown policy, precision or algorithm, for arguments that contradict
            each other, and for `fuse=True` with a model in training mode, before anything is
            changed.
    """
    check_choices("convx.convert", precision, algorithm)
    policy = _find_policy(policy, example, algorithm, chosen=filter is not None)
    train = model.training if train is None else train
    if fuse and model.training:
        raise ValueError(
            "convx.convert: fuse=True is for inference, but the model is in training mode; call "
            "model.eval() first"
        )
    if fuse and train:
        raise ValueError("convx.convert: fuse=True is for inference, so it takes no train=True")
    report = ConvertReport()
    layers: dict[str, ConvLayer] = {}  # to swap
    candidates = _find_layers(model, filter, report)
    if policy == "all":
        layers = candidates
    elif example is None:
        for name, module in candidates.items():
            reason = why_not_faster(module, train, precision)
            if reason is None:
                layers[name] = module
            else:
                report.kept[name] = reason
    elif candidates:
        choice = choose_by_measuring(model, candidates, example, train, precision, seconds, fuse)
        layers = choice.layers
        report.kept |= choice.kept
        report.times, report.step = choice.times, choice.step
    swap_layers(layers.values(), precision, algorithm)
    report.swapped += layers
    if fuse:
        fusion = fuse_model(model)
        report.fused, report.unfused = fusion.fused, fusion.unfused
    return report


def restore(model: nn.Module, *, native: bool = False) -> list[str]:
    """Undo convert(): every module that it swapped or fused gets its class and its forward back.

    Args:
        model: the model, or a single layer.
        native: also turn layers that were made as `conv2d_ext.Conv2d` or `LazyConv2d` into the
            nn.Conv2d or nn.LazyConv2d of the same parameters, so that nothing of convx is left in
            the model: for tools that know PyTorch's own classes only. Subclasses of your own stay.

    Returns:
        The names of the layers that got their class back.

    Raises:
        ValueError: with `native=True`, for a layer with an activation or with four-sided padding,
            which nn.Conv2d cannot express, before anything is changed.
    """
    restored = restore_layers(model, native)
    unfuse_model(model)
    return restored


def _find_policy(policy: str | None, example: Any, algorithm: str, chosen: bool) -> str:
    if policy is None:
        says_which = (chosen or algorithm != "auto") and example is None
        policy = "all" if says_which else "faster"
    check_policy("convx.convert", policy)
    if policy == "all" and example is not None:
        raise ValueError("convx.convert: policy='all' measures nothing, so it takes no example")
    if policy == "faster" and algorithm != "auto":
        raise ValueError(
            "convx.convert: policy='faster' is about algorithm='auto', but got "
            f"algorithm={shown(algorithm)}; pass policy='all'"
        )
    return policy


def _find_layers(
    model: nn.Module, filter: Callable[[str, Any], bool] | None, report: ConvertReport
) -> dict[str, ConvLayer]:
    """The layers that can be swapped and that the filter accepts; the others are reported."""
    layers: dict[str, ConvLayer] = {}
    for name, module in model.named_modules():
        if isinstance(module, _OTHER_CONVOLUTIONS):
            report.kept[name] = f"{type(module).__name__}: convx has no such layer"
        if not isinstance(module, ConvLayer):
            continue
        reason = why_keep(module)
        if reason is None and filter is not None and not filter(name, module):
            reason = "the filter said no"
        if reason is None:
            layers[name] = module
        else:
            report.kept[name] = reason
    return layers
