"""Traces a module's forward with torch.fx, and says why where a trace would not be the forward.

A trace holds what a forward did once. It is refused where the forward may do something else in
another call: where it asks for classes, computes on tensors of its own, switches modes, or changes
attributes.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode


class Untraceable(Exception):
    """Why a forward cannot be traced."""


class _NoTensors(TorchDispatchMode):
    """Refuses every operator: a trace would keep its result, whatever it depends on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Untraceable(f"it computes {func} on tensors that do not depend on its input")


class _Proxy(fx.Proxy):
    """A value in a trace. It records writes, which torch.fx takes for additions and so on, and does
    not tell a forward of which class it is, because a trace would keep what follows from that."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        # Builtin functions of PyTorch ask too, and have no frame.
        frame = sys._getframe(1)
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_users = package not in ("torch", "conv2d_ext") or frame.f_code.co_name == "is_tensor"
        if is_users and "isinstance" in frame.f_code.co_names:
            raise Untraceable("it asks for the class of a value")
        return fx.Proxy


def _record_write(function: Callable[..., Any]) -> Callable[..., Any]:
    def record(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return record


def _call_write(function: Callable[..., Any]) -> Callable[..., Any]:
    def write(value: Any, other: Any) -> Any:
        return function(value, other)

    return write


# Augmented assignments as functions. torch.fx would write `x += y` for the operators, which also
# changes a number that is used again under its old name.
WRITES: dict[Any, Callable[..., Any]] = {}
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    _operator = getattr(operator, f"i{_name}")
    WRITES[_operator] = _call_write(_operator)
    setattr(_Proxy, f"__i{_name}__", _record_write(_operator))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(
        self, inputs: tuple[str, ...], is_traced_through: Callable[[nn.Module], bool]
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.is_traced_through = is_traced_through
        self.modes = _modes()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise Untraceable("it switches a mode of autograd or autocast")
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not self.is_traced_through(m)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Arguments with a default are not given, so that they keep it."""
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in self.inputs]
        return root_fn, [self.root, *proxies]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor) and a not in self.tensor_attrs:
            known = (*self.root.parameters(), *self.root.buffers())
            if not any(a is each for each in known):
                raise Untraceable("it makes a tensor that does not depend on its input")
        return super().create_arg(a)


def _modes() -> list[Any]:
    """What a forward may switch by a decorator or a context, of which a trace has nothing."""
    devices = "cpu", "cuda"
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *map(torch.is_autocast_enabled, devices),
        *map(torch.get_autocast_dtype, devices),
    ]


def trace(
    module: nn.Module, is_traced_through: Callable[[nn.Module], bool]
) -> tuple[fx.Graph, tuple[str, ...]]:
    """The graph of a module's forward, and the names of its arguments without default. A part is a
    node of the graph, or is traced through."""
    cls = type(module)
    if isinstance(module, torch.jit.ScriptModule | fx.GraphModule):
        raise Untraceable("it is a graph already")
    if "forward" in module.__dict__ or cls.__call__ is not nn.Module.__call__:
        raise Untraceable("it is called in its own way")
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        raise Untraceable("it is pickled in its own way")
    parameters = [*inspect.signature(cls.forward).parameters.values()][1:]
    required = [p for p in parameters if p.default is p.empty]
    required = [p for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if any(p.kind is p.KEYWORD_ONLY for p in required):
        raise Untraceable("it takes arguments by keyword only")
    inputs = tuple(p.name for p in required)
    before = _Attributes(module)
    try:
        with _NoTensors():
            graph = _Tracer(inputs, is_traced_through).trace(module)
    except Exception as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Untraceable(first) from error
    finally:
        has_changed = before.bring_back()
    if has_changed:
        raise Untraceable("it changes attributes of its own")
    return graph, inputs


class _Attributes:
    """The attributes of a module, and what its lists, dicts and sets have in them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.values = {**module.__dict__}
        containers = (value for value in self.values.values() if type(value) in (list, dict, set))
        self.contents = [(container, container.copy()) for container in containers]

    def bring_back(self) -> bool:
        """Undoes every change since then, and returns whether there was one."""
        has_changed = _differs(self.module.__dict__, self.values)
        self.module.__dict__.clear()
        self.module.__dict__.update(self.values)
        for container, content in self.contents:
            if not _differs(container, content):
                continue
            has_changed = True
            container.clear()
            container.extend(content) if isinstance(content, list) else container.update(content)
        return has_changed


def _differs(container: Any, content: Any) -> bool:
    """Whether two containers hold other objects; equal ones count as others."""
    if isinstance(content, dict):
        container, content = [*container, *container.values()], [*content, *content.values()]
    return [*map(id, container)] != [*map(id, content)]
