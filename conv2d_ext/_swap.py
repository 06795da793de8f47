"""Swapping: PyTorch's layers become convx's in place, and become PyTorch's again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from .modules import Conv1d, Conv2d, ConvTranspose2d, LazyConv2d

# Attributes of convx's layers that PyTorch's do not have.
_WORDS = ("activation", "negative_slope", "precision", "algorithm")

# The attribute in which a swapped module remembers the class it came from.
_ORIGINAL = "_convx_original_class"

# PyTorch's layers that convx computes.
ConvLayer = nn.Conv2d | nn.Conv1d | nn.ConvTranspose2d

# Of each kind of layer: our class, and the methods that decide what it computes. Our class brings
# the first one.
_KINDS: dict[type[nn.Module], tuple[type[Any], tuple[str, ...]]] = {
    nn.Conv2d: (Conv2d, ("_conv_forward", "forward")),
    nn.Conv1d: (Conv1d, ("_conv_forward", "forward")),
    nn.ConvTranspose2d: (ConvTranspose2d, ("forward", "_output_padding")),
}
OURS = {kind: ours for kind, (ours, _) in _KINDS.items()} | {nn.LazyConv2d: LazyConv2d}


def swap_layers(layers: Iterable[ConvLayer], precision: str | None, algorithm: str) -> None:
    """Makes layers compute with convx. why_keep() must have returned None for each."""
    for layer in layers:
        _swap(layer)
        if precision is not None:
            layer.precision = precision  # type: ignore[assignment]
        if algorithm != "auto":
            layer.algorithm = algorithm  # type: ignore[assignment]


def restore_layers(model: nn.Module, native: bool) -> list[str]:
    """Gives swapped layers their class back, and returns their names; see convert.restore."""
    natives = {}
    for name, module in model.named_modules() if native else ():
        cls = _native_class(module)
        if cls is not None:
            _refuse_activation(name, module)
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
        for word in _WORDS:
            module.__dict__.pop(word, None)
        became = isinstance(module, Conv2d) and issubclass(original, nn.LazyConv2d)
        set_class(module, original.cls_to_become if became else original)
        restored.append(name)
    return restored


def _native_class(module: nn.Module) -> type[Any] | None:
    """PyTorch's class of the same kind for a layer that was made with a class of convx."""
    if _ORIGINAL in module.__dict__:
        return None
    underlying = underlying_class(module)
    return next((kind for kind, ours in OURS.items() if ours is underlying), None)


def _refuse_activation(name: str, module: Any) -> None:
    activation = getattr(module, "activation", None)
    if activation not in (None, "none"):
        raise ValueError(
            f"convx.restore: layer '{name}' has activation='{activation}', which nn.Conv2d cannot "
            "express; put the activation into a module of its own"
        )


def _two_sided_padding(name: str, module: Any) -> Any:
    padding = module.padding
    if isinstance(padding, str) or len(padding) <= 2:
        return padding
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return top, left
    if module.padding_mode != "zeros":
        return padding  # nn.Conv2d then pads by its own list of four sides
    raise ValueError(
        f"convx.restore: layer '{name}' pads (top {top}, bottom {bottom}, left {left}, right "
        f"{right}), which nn.Conv2d cannot express; put nn.ZeroPad2d before a layer without padding"
    )


def why_keep(module: ConvLayer) -> str | None:
    """Why convert() would not swap a module, or None if it would."""
    if _is_ours(module):
        return "already computes with convx"
    cls = type(module)
    kind = find_kind(module)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        if kind is not nn.Conv2d:
            return f"{cls.__name__}: convert the model when it is initialised"
        if cls is not nn.LazyConv2d:
            return f"{cls.__name__} is a subclass of nn.LazyConv2d"
    for name in _WORDS:
        if hasattr(module, name):
            return f"{cls.__name__} has an attribute {name} of its own"
    for name in () if cls is nn.LazyConv2d else _KINDS[kind][1]:
        if getattr(cls, name) is not getattr(kind, name):
            return f"{cls.__name__} overrides {name}"
    return None


def find_kind(module: ConvLayer) -> type[nn.Module]:
    """PyTorch's class of the layer that a module is or inherits from."""
    return next(kind for kind in _KINDS if isinstance(module, kind))


def _is_ours(module: nn.Module) -> bool:
    return isinstance(module, tuple(OURS.values()))


def _swap(module: ConvLayer) -> None:
    original = underlying_class(module)
    module.__dict__[_ORIGINAL] = original
    set_class(module, OURS.get(original) or _subclass_with_convx(original))


def underlying_class(module: nn.Module) -> type[Any]:
    """The module's class without the subclass that parametrization puts on top of it."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def set_class(module: nn.Module, cls: type[Any]) -> None:
    if parametrize.is_parametrized(module):
        # The class on top holds the parametrized properties, and copies of the module share it. So
        # this module gets a class of its own with another base, to which removing the
        # parametrization returns.
        top = type(module)
        own = {k: v for k, v in vars(top).items() if k not in ("__dict__", "__weakref__")}
        cls = type(top.__name__, (cls,), own)
    module.__class__ = cls


_subclasses: dict[type[Any], type[Any]] = {}


def _subclass_with_convx(original: type[Any]) -> type[Any]:
    """A class that differs from `original` only in how the convolution is computed."""
    if original not in _subclasses:
        ours, (computes, *_) = next(of for kind, of in _KINDS.items() if issubclass(original, kind))
        members = {"__reduce_ex__": _reduce, "__module__": original.__module__}
        members[computes] = getattr(ours, computes)
        _subclasses[original] = type(original.__name__, (original, ours), members)
    return _subclasses[original]


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickles and copies by the original class, because the made one has no name to import."""
    original = self.__dict__[_ORIGINAL]
    return _rebuild, (original,), state_of(self)


def state_of(module: nn.Module) -> Any:
    """What pickle keeps of a module. Before Python 3.11, object has no __getstate__."""
    getstate = getattr(type(module), "__getstate__", None)
    return module.__dict__ if getstate is None else getstate(module)


def _rebuild(original: type[Any]) -> Any:
    return object.__new__(_subclass_with_convx(original))
