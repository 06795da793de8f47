"""Put convx under a model that somebody else wrote, and take it away again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from ._choices import check_choices
from ._prediction import why_not_faster
from ._values import shown
from .modules import Conv2d, LazyConv2d

# Where a converted module remembers the class it came from.
_ORIGINAL = "_convx_original_class"
# Convolutions that are none of convx's, which a report mentions all the same.
_OTHER_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


POLICIES = ("all", "faster")


@dataclass
class ConvertReport:
    """What convert() did: names of swapped modules, and of kept ones with the reason.

    Where an example was measured, `times` has the milliseconds of each measured module with
    PyTorch and with convx, and `step` those of the whole model before and after the swap.
    """

    swapped: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    step: tuple[float, float] | None = None

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} convolutions swapped, {len(self.kept)} kept"]
        if self.step is not None:
            lines.append(f"  whole model: {times_text(self.step)}")
        for name in self.swapped:
            gain = f": {times_text(self.times[name])}" if name in self.times else ""
            lines.append(f"  swapped {name}{gain}")
        lines += [f"  kept    {name}: {reason}" for name, reason in self.kept.items()]
        return "\n".join(lines)


def times_text(times: tuple[float, float]) -> str:
    """Milliseconds with PyTorch and with convx, and their ratio."""
    before, after = times
    return f"{before:.3f} -> {after:.3f} ms ({before / after:.2f}x)"


def convert(
    model: nn.Module,
    filter: Callable[[str, nn.Conv2d], bool] | None = None,
    *,
    policy: str | None = None,
    example: Any = None,
    train: bool | None = None,
    seconds: float = 0.02,
    precision: str | None = None,
    algorithm: str = "auto",
) -> ConvertReport:
    """Make the nn.Conv2d of a model compute with convx, in place.

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

    Args:
        model: the model, or a single nn.Conv2d.
        filter: called with a module's name and the module; only those it returns True for are
            swapped.
        policy: "all" swaps every layer, "faster" those that are faster. None is "faster", or "all"
            if a filter or an algorithm is given and no example: then the caller has chosen.
        example: what to measure with: the model's input, a tuple of its positional arguments, or a
            dict of its keyword arguments; a list is one input. The model runs on it, and its
            buffers, gradients, modes and the random numbers are left as they were; lazy modules get
            initialised.
        train: whether a training step (forward and backward) is what should be faster, or a
            forward pass. None: a training step if the model is in training mode.
        seconds: spent on each measurement of a layer.
        precision: sets the converted modules' precision; None follows PyTorch's settings.
        algorithm: sets the converted modules' algorithm. Layers are measured with "auto" only.

    Returns:
        A report of what was swapped and what was kept, which prints readably. Transposed, 1-D and
            3-D convolutions are among the kept ones.

    Raises:
        ValueError: for an unknown policy, precision or algorithm, and for arguments that contradict
            each other, before anything is changed.
    """
    check_choices("convx.convert", precision, algorithm)
    policy = _find_policy(policy, example, algorithm, chosen=filter is not None)
    train = model.training if train is None else train
    report = ConvertReport()
    layers: dict[str, nn.Conv2d] = {}  # those to swap
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
        from .policy import choose_by_measuring  # imports this module

        layers = choose_by_measuring(model, candidates, example, train, precision, seconds, report)
    swap_layers(layers.values(), precision, algorithm)
    report.swapped += layers
    return report


def _find_policy(policy: str | None, example: Any, algorithm: str, chosen: bool) -> str:
    if policy is None:
        says_which = (chosen or algorithm != "auto") and example is None
        policy = "all" if says_which else "faster"
    if policy not in POLICIES:
        raise ValueError(
            f"convx.convert: policy must be 'all' or 'faster', but got policy={shown(policy)}"
        )
    if policy == "all" and example is not None:
        raise ValueError("convx.convert: policy='all' measures nothing, so it takes no example")
    if policy == "faster" and algorithm != "auto":
        raise ValueError(
            "convx.convert: policy='faster' is about algorithm='auto', but got "
            f"algorithm={shown(algorithm)}; pass policy='all'"
        )
    return policy


def _find_layers(
    model: nn.Module, filter: Callable[[str, nn.Conv2d], bool] | None, report: ConvertReport
) -> dict[str, nn.Conv2d]:
    """The layers that can be swapped and that the filter lets pass; the others are reported."""
    layers: dict[str, nn.Conv2d] = {}
    for name, module in model.named_modules():
        if isinstance(module, _OTHER_CONVOLUTIONS):
            report.kept[name] = f"{type(module).__name__}: convx computes nn.Conv2d only"
        if not isinstance(module, nn.Conv2d):
            continue
        reason = why_keep(module)
        if reason is None and filter is not None and not filter(name, module):
            reason = "the filter said no"
        if reason is None:
            layers[name] = module
        else:
            report.kept[name] = reason
    return layers


def swap_layers(layers: Iterable[nn.Conv2d], precision: str | None, algorithm: str) -> None:
    """Makes layers that why_keep() has nothing against compute with convx."""
    for layer in layers:
        _swap(layer)
        if precision is not None:
            layer.precision = precision  # type: ignore[assignment]
        if algorithm != "auto":
            layer.algorithm = algorithm  # type: ignore[assignment]


def restore(model: nn.Module, *, native: bool = False) -> list[str]:
    """Undo convert(): every module it swapped gets its class back.

    Args:
        model: the model, or a single layer.
        native: also turn layers that were made as `conv2d_ext.Conv2d` or `LazyConv2d` into the
            nn.Conv2d or nn.LazyConv2d of the same parameters, so that nothing of convx is left in
            the model: for tools that know PyTorch's own classes only. Subclasses of your own stay.

    Returns:
        The names of the modules that were changed.

    Raises:
        ValueError: with `native=True`, for a layer with four-sided padding that nn.Conv2d cannot
            express, before anything is changed.
    """
    natives = {}
    for name, module in model.named_modules() if native else ():
        cls = _native_class(module)
        if cls is not None:
            natives[name] = cls, _two_sided_padding(name, module)
    restored = []
    for name, module in model.named_modules():
        if name in natives:
            original, padding = natives[name]
            module.padding = padding
        else:
            original = module.__dict__.pop(_ORIGINAL, None)
        if original is None:
            continue
        module.__dict__.pop("precision", None)
        module.__dict__.pop("algorithm", None)
        became = isinstance(module, Conv2d) and issubclass(original, nn.LazyConv2d)
        _set_class(module, original.cls_to_become if became else original)
        restored.append(name)
    return restored


def _native_class(module: nn.Module) -> type[Any] | None:
    """PyTorch's class of the same kind, for a layer that was ours from the start."""
    if _ORIGINAL in module.__dict__:
        return None
    return {Conv2d: nn.Conv2d, LazyConv2d: nn.LazyConv2d}.get(_underlying_class(module))


def _two_sided_padding(name: str, module: Any) -> Any:
    padding = module.padding
    if isinstance(padding, str) or len(padding) == 2:
        return padding
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return top, left
    if module.padding_mode != "zeros":
        return padding  # nn.Conv2d pads by its own list of four sides then
    raise ValueError(
        f"convx.restore: layer '{name}' pads (top {top}, bottom {bottom}, left {left}, right "
        f"{right}), which nn.Conv2d cannot express; put nn.ZeroPad2d before a layer without padding"
    )


def why_keep(module: nn.Conv2d) -> str | None:
    """Why convert() would not swap a module, or None if it would."""
    if _is_ours(module):
        return "already computes with convx"
    cls = type(module)
    for name in ("precision", "algorithm"):
        if hasattr(module, name):
            return f"{cls.__name__} has an attribute {name} of its own"
    if cls._conv_forward is not nn.Conv2d._conv_forward:
        return f"{cls.__name__} overrides _conv_forward"
    lazy = isinstance(module, nn.LazyConv2d)
    if not lazy and cls.forward is not nn.Conv2d.forward:
        return f"{cls.__name__} overrides forward"
    if lazy and cls is not nn.LazyConv2d:
        return f"{cls.__name__} is a subclass of nn.LazyConv2d"
    return None


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, Conv2d | LazyConv2d)


def _swap(module: nn.Conv2d) -> None:
    original = _underlying_class(module)
    module.__dict__[_ORIGINAL] = original
    if original is nn.LazyConv2d:
        _set_class(module, LazyConv2d)
    elif original is nn.Conv2d:
        _set_class(module, Conv2d)
    else:
        _set_class(module, _subclass_with_convx(original))


def _underlying_class(module: nn.Module) -> type[Any]:
    """The module's class; below the one that parametrization puts on top, if it did."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def _set_class(module: nn.Module, cls: type[Any]) -> None:
    if parametrize.is_parametrized(module):
        # The class on top holds the parametrized properties, and copies of the module share it:
        # give this module one of its own, with another base. Removing the parametrization
        # returns to that base.
        top = type(module)
        own = {k: v for k, v in vars(top).items() if k not in ("__dict__", "__weakref__")}
        cls = type(top.__name__, (cls,), own)
    module.__class__ = cls


_subclasses: dict[type[Any], type[Any]] = {}


def _subclass_with_convx(original: type[Any]) -> type[Any]:
    """A class that is `original` in everything but how the convolution is computed."""
    if original not in _subclasses:
        members = {"__reduce_ex__": _reduce, "__module__": original.__module__}
        _subclasses[original] = type(original.__name__, (original, Conv2d), members)
        _subclasses[original]._conv_forward = Conv2d._conv_forward
    return _subclasses[original]


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickle and deepcopy by the original class: the made one has no name to import."""
    original = self.__dict__[_ORIGINAL]
    return _rebuild, (original,), self.__getstate__()


def _rebuild(original: type[Any]) -> Any:
    return object.__new__(_subclass_with_convx(original))
