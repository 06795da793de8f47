"""The values of a graph's nodes: fake tensors, whose sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq


def value_of(arg: Any) -> Any:
    """The value of an argument that is a node; any other argument is its own value."""
    return arg.meta.get("val") if isinstance(arg, fx.Node) else arg


def tensor_of(arg: Any) -> Tensor | None:
    """The value of a node whose result is a tensor, or None."""
    value = value_of(arg)
    return value if isinstance(value, Tensor) else None


def arguments_of(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call in the order of the operator's schema, with their defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    rest = schema[len(node.args) :]
    return (*node.args, *(node.kwargs.get(each.name, each.default_value) for each in rest))


def hint_of(number: Any) -> int:
    """A size of the example that is compiled for, without a guard; -1 if it depends on data."""
    if type(number) is int:
        return number
    hint = number.node.hint
    return -1 if hint is None else int(hint)


def hints_of(numbers: Iterable[Any]) -> list[int]:
    return [hint_of(number) for number in numbers]


def are_alike(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors are known to have the same dtype, device, sizes and strides."""
    return (
        a is not None
        and b is not None
        and a.dtype == b.dtype
        and a.device == b.device
        and a.dim() == b.dim()
        and statically_known_true(sym_eq(tuple(a.shape), tuple(b.shape)))
        and statically_known_true(sym_eq(tuple(a.stride()), tuple(b.stride())))
    )


def replace_call(node: fx.Node, target: Any, args: tuple[Any, ...]) -> bool:
    """Makes a node the call of an operator of convx, if the result lies in memory as before. The
    node keeps its name, by which an exported program knows its outputs."""
    values = tuple(map(value_of, args))
    value = target(*values)
    if not are_alike(value, tensor_of(node)):
        return False
    node.target, node.args, node.kwargs = target, args, {}
    # Inductor gives operands to an operator that it does not know with the strides of these values.
    node.meta.update(val=value, eager_input_vals=(values, {}))
    return True
