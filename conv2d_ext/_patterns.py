"""Finds, in a torch.fx graph, convolutions with the operations that can move into their call.

A chain is a convolution, then in this order and each at most once: a normalization, an addition
and an activation. Every result but the last one has one user. A caller says which nodes are
convolutions and normalizations, and what a node's activation is, so that graphs of modules and
graphs of operators can be searched alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn


class Activation(NamedTuple):
    """An activation by conv2d's name, and the slope of leaky_relu."""

    name: str
    slope: float = 0.01


# Modules that compute an activation, as their subclasses do that have the same forward.
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.LeakyReLU: "leaky_relu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.Hardswish: "hardswish",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Mish: "mish",
}

# Functions that compute an activation, with the names of their arguments in order.
_PLAIN = ("input",)
_IN_PLACE = ("input", "inplace")
_LEAKY = ("input", "negative_slope", "inplace")
_FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    F.relu: ("relu", _IN_PLACE),
    F.relu_: ("relu", _PLAIN),
    torch.relu: ("relu", _PLAIN),
    torch.relu_: ("relu", _PLAIN),
    F.relu6: ("relu6", _IN_PLACE),
    F.leaky_relu: ("leaky_relu", _LEAKY),
    F.leaky_relu_: ("leaky_relu", ("input", "negative_slope")),
    F.silu: ("silu", _IN_PLACE),
    F.gelu: ("gelu", ("input", "approximate")),
    F.sigmoid: ("sigmoid", _PLAIN),
    torch.sigmoid: ("sigmoid", _PLAIN),
    torch.sigmoid_: ("sigmoid", _PLAIN),
    F.tanh: ("tanh", _PLAIN),
    torch.tanh: ("tanh", _PLAIN),
    torch.tanh_: ("tanh", _PLAIN),
    F.hardswish: ("hardswish", _IN_PLACE),
    F.hardsigmoid: ("hardsigmoid", _IN_PLACE),
    F.mish: ("mish", _IN_PLACE),
}
_METHODS = ("relu", "sigmoid", "tanh")  # and the same with an underscore

_ADDITIONS = (operator.add, operator.iadd, torch.add)


def find_module_activation(module: Any) -> Activation | None:
    """The activation that a module computes, or None."""
    name = _MODULES.get(type(module)) or _name_of_subclass(module)
    if name == "leaky_relu":
        return Activation(name, module.negative_slope)
    if name == "gelu":
        return _gelu(module.approximate)
    return name and Activation(name)  # type: ignore[return-value]


def _name_of_subclass(module: Any) -> str | None:
    """torch.export wraps modules in classes that derive from theirs."""
    for kind, name in _MODULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return name
    return None


def find_node_activation(node: fx.Node, modules: Mapping[str, nn.Module]) -> Activation | None:
    """The activation that a node of a traced forward computes, or None. `modules` has the modules
    that the graph calls by their paths."""
    if node.op == "call_module":
        is_plain = len(node.args) == 1 and not node.kwargs
        return find_module_activation(modules.get(str(node.target))) if is_plain else None
    if node.op == "call_method":
        name = str(node.target).removesuffix("_")
        is_plain = len(node.args) == 1 and not node.kwargs
        return Activation(name) if name in _METHODS and is_plain else None
    if node.op != "call_function" or node.target not in _FUNCTIONS:
        return None
    name, names = _FUNCTIONS[node.target]
    words = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if len(node.args) > len(names) or not words.keys() <= {*names}:
        return None
    if name == "gelu":
        return _gelu(words.get("approximate", "none"))
    slope = words.get("negative_slope", 0.01)
    return Activation(name, slope) if isinstance(slope, int | float) else None


def _gelu(approximate: object) -> Activation | None:
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)  # type: ignore[call-overload]
    return name and Activation(name)


def find_operand(node: fx.Node) -> Any:
    """The first operand of a node, which some callers of an activation pass by its name."""
    return node.args[0] if node.args else node.kwargs.get("input")


def find_addends(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two results that a node adds up, or None if it computes something else."""
    is_function = node.op == "call_function" and node.target in _ADDITIONS
    is_method = node.op == "call_method" and node.target in ("add", "add_")
    words = {**node.kwargs}
    if not (is_function or is_method) or words.pop("alpha", 1) != 1:
        return None
    operands = [*node.args, *(words.pop(name) for name in ("input", "other") if name in words)]
    if words or len(operands) != 2 or operands[0] is operands[1]:
        return None
    first, second = operands
    return (first, second) if isinstance(first, fx.Node) and isinstance(second, fx.Node) else None


@dataclass(frozen=True)
class Chain:
    """Nodes that become one call of a convolution."""

    conv: fx.Node
    norm: fx.Node | None = None
    addition: fx.Node | None = None
    act: fx.Node | None = None
    activation: Activation | None = None

    @property
    def nodes(self) -> list[fx.Node]:
        each = self.conv, self.norm, self.addition, self.act
        return [node for node in each if node is not None]

    @property
    def residual(self) -> fx.Node | None:
        """The addend that is not the convolution's, as the graph has it now."""
        addends = None if self.addition is None else find_addends(self.addition)
        if addends is None:
            return None
        first, second = addends
        return second if first in (self.conv, self.norm) else first

    @property
    def adds_in_place(self) -> bool:
        """Whether the convolution's result is written by the addition, whose dtype it then has."""
        return self.addition is not None and _adds_in_place(self.addition)

    @property
    def place(self) -> fx.Node:
        """The node in front of which the call belongs: all its operands exist there."""
        return self.addition or self.conv


def find_chains(
    graph: fx.Graph,
    *,
    is_conv: Callable[[fx.Node], bool],
    is_norm: Callable[[fx.Node, fx.Node], bool],
    find_activation: Callable[[fx.Node], Activation | None],
    is_new: Callable[[fx.Node], bool],
    writes: Callable[[fx.Node], bool],
) -> list[Chain]:
    """The longest chains of a graph, in the order of their convolutions. The sum of two
    convolutions belongs to the later one.

    A call that adds a residual takes the addition's place, so it reads the convolution's input
    later than the convolution did. An addition joins a chain only if no node between the two writes
    to a tensor that others may read.

    Args:
        graph: is not changed.
        is_conv: whether a node is a convolution that can take an epilogue.
        is_norm: whether a node, the first argument, normalizes the result of the second one, a
            convolution, by constant statistics.
        find_activation: the activation that a node computes, or None.
        is_new: whether a node's result shares no memory with its operands.
        writes: whether a node may write to its operands.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    nodes = [*graph.nodes]
    taken: set[fx.Node] = set()
    chains = []
    for conv in reversed(nodes):
        if not is_conv(conv):
            continue
        norm = addition = act = activation = None
        tail, user = conv, _only_user(conv)
        if user is not None and is_norm(user, conv):
            norm, tail, user = user, user, _only_user(user)
        addends = find_addends(user) if user is not None and user not in taken else None
        if user is not None and addends is not None:
            between = nodes[order[conv] + 1 : order[user]]
            may_wait = all(not writes(node) or _all_new(node, is_new) for node in between)
            if may_wait and (tail is addends[0] or not _adds_in_place(user)):
                addition, tail, user = user, user, _only_user(user)
        if user is not None and find_operand(user) is tail:
            activation = find_activation(user)
            act = user if activation is not None else None
        chain = Chain(conv, norm, addition, act, activation)
        if len(chain.nodes) > 1:
            taken.update(chain.nodes)
            chains.append(chain)
    return chains[::-1]


def _adds_in_place(addition: fx.Node) -> bool:
    return addition.target in (operator.iadd, "add_")


def _only_user(node: fx.Node) -> fx.Node | None:
    """The one node that reads a result, and reads it once."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.op != "output" and user.all_input_nodes.count(node) == 1 else None


def _all_new(node: fx.Node, is_new: Callable[[fx.Node], bool]) -> bool:
    """Whether a node that writes can only write to tensors that it alone reads."""
    return all(is_new(operand) and len(operand.users) == 1 for operand in node.all_input_nodes)


def writes_to_operands(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a node of a traced forward may write to a tensor that it is given. Modules and
    functions that are not PyTorch's may do so, as far as we know."""
    if node.op == "call_module":
        module = modules.get(str(node.target))
        is_known = type(module).__module__.startswith("torch.nn.modules.")
        return not is_known or bool(getattr(module, "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") or not hasattr(Tensor, str(node.target))
    if node.op != "call_function":
        return False
    name = str(getattr(node.target, "__name__", ""))
    is_known = str(getattr(node.target, "__module__", "")).partition(".")[0] in _PACKAGES
    in_place = any(value is True for value in (*node.args, *node.kwargs.values()))
    return (
        not is_known
        or in_place
        or "out" in node.kwargs
        or name.endswith("_")
        or (getattr(operator, name, None) is node.target and name in _IN_PLACE_OPERATORS)
    )


# Packages whose functions write to their operands only if their names or arguments say so.
_PACKAGES = ("torch", "_operator", "math", "builtins")
_IN_PLACE_OPERATORS = {"setitem", "delitem"} | {
    name for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
} - {"index", "inv", "invert"}
