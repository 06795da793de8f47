"""Swapping: nn.Conv2d modules become convx's layers in place, and become PyTorch's again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from .modules import Conv2d, LazyConv2d

# The attribute in which a swapped module remembers the class it came from.
_ORIGINAL = "_convx_original_class"


def swap_layers(layers: Iterable[nn.Conv2d], precision: str | None, algorithm: str) -> None:
    """Makes layers compute with convx. why_keep() must have returned None for each."""
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
    """PyTorch's class of the same kind for a layer that was made with a class of convx."""
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
        return padding  # nn.Conv2d then pads by its own list of four sides
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
    """The module's class without the subclass that parametrization puts on top of it."""
    return type(module).__bases__[0] if parametrize.is_parametrized(module) else type(module)


def _set_class(module: nn.Module, cls: type[Any]) -> None:
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
        members = {"__reduce_ex__": _reduce, "__module__": original.__module__}
        _subclasses[original] = type(original.__name__, (original, Conv2d), members)
        _subclasses[original]._conv_forward = Conv2d._conv_forward
    return _subclasses[original]


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickles and copies by the original class, because the made one has no name to import."""
    original = self.__dict__[_ORIGINAL]
    return _rebuild, (original,), self.__getstate__()


def _rebuild(original: type[Any]) -> Any:
    return object.__new__(_subclass_with_convx(original))
