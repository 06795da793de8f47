"""Finds activations in graphs, in any form that ATen and Inductor decompose them to.

A pattern is the trace of an activation's spelling, so it follows the decompositions of the PyTorch
that runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from ._graph_values import arguments_of

_aten = torch.ops.aten


class Match(NamedTuple):
    """An activation in a graph: its name, leaky_relu's slope, and the nodes that compute it."""

    activation: str
    slope: float
    nodes: tuple[fx.Node, ...]


def find_activation(start: fx.Node, dtype: torch.dtype) -> Match | None:
    """The activation that alone uses the result of `start`."""
    for pattern in _patterns(dtype):
        if (match := pattern.match(start)) is not None:
            return match
    return None


# Stands for the slope of leaky_relu in patterns. No model has it.
_ANY_SLOPE = 0.12345678901234567


def _hardsigmoid(x: Tensor) -> Tensor:
    return F.relu6(x + 3) / 6


# The spellings of the activations that the pass recognises.
_SPELLINGS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("relu", F.relu),
    ("relu", lambda x: x.clamp(min=0)),
    ("relu6", F.relu6),
    ("relu6", lambda x: x.clamp(0, 6)),
    ("leaky_relu", lambda x: F.leaky_relu(x, _ANY_SLOPE)),
    ("silu", F.silu),
    ("silu", lambda x: x * torch.sigmoid(x)),
    ("gelu", F.gelu),
    ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("sigmoid", torch.sigmoid),
    ("tanh", torch.tanh),
    ("hardswish", F.hardswish),
    ("hardswish", lambda x: x * _hardsigmoid(x)),
    ("hardswish", lambda x: x * F.relu6(x + 3) / 6),
    ("hardsigmoid", F.hardsigmoid),
    ("hardsigmoid", _hardsigmoid),
    ("mish", F.mish),
    ("mish", lambda x: x * torch.tanh(F.softplus(x))),
)


@dataclass(frozen=True)
class _Pattern:
    """An activation as operators: a traced graph's input, and the nodes between it and one output,
    which is the last of them."""

    activation: str
    input: fx.Node
    nodes: tuple[fx.Node, ...]

    def match(self, start: fx.Node) -> Match | None:
        """The nodes that compute the activation of `start`, if nothing else uses what they compute
        on the way."""
        bound = _Binding({self.input: start})
        for expected in self.nodes:
            anchor = bound.nodes[expected.all_input_nodes[0]]
            for user in anchor.users:
                if bound.agrees(expected, user):
                    bound.nodes[expected] = user
                    break
            else:
                return None
        found = tuple(bound.nodes.values())
        if any(user not in found for node in found[:-1] for user in node.users):
            return None
        return Match(self.activation, bound.slope, found[1:])


@dataclass
class _Binding:
    """The nodes of a graph for the nodes of a pattern, and the number for _ANY_SLOPE."""

    nodes: dict[fx.Node, fx.Node]
    slope: float = 0.0

    def agrees(self, expected: fx.Node, node: fx.Node) -> bool:
        if node.target is not expected.target or node in self.nodes.values():
            return False
        want, got = arguments_of(expected), arguments_of(node)
        orders = [got]
        if node.target in (_aten.add.Tensor, _aten.mul.Tensor):
            orders.append((got[1], got[0], *got[2:]))
        return any(all(map(self._is_same, want, order)) for order in orders)

    def _is_same(self, want: Any, got: Any) -> bool:
        if isinstance(want, fx.Node) or isinstance(got, fx.Node):
            return isinstance(want, fx.Node) and self.nodes.get(want) is got
        if want == _ANY_SLOPE and type(got) in (int, float):
            self.slope = float(got)
            return True
        return bool(want == got)


@functools.cache
def _patterns(dtype: torch.dtype) -> tuple[_Pattern, ...]:
    """Every spelling as ATen has it, as exported graphs have it, and as Inductor has it. A pattern
    comes before the shorter ones that it contains."""

    def spell_all(x: Tensor) -> list[Tensor]:
        return [function(x) for _, function in _SPELLINGS]

    patterns: list[_Pattern] = []
    with _disable_current_modes(), torch._C._DisableAutocast(), torch.no_grad():
        tables: tuple[Any, ...] = {}, core_aten_decompositions(), select_decomp_table()
        for table in tables:
            trace = make_fx(spell_all, table, tracing_mode="fake")
            patterns += _split(trace(torch.empty(1, 1, 1, 1, dtype=dtype)).graph)
    return tuple(sorted(patterns, key=lambda pattern: -len(pattern.nodes)))


def _split(graph: fx.Graph) -> Iterator[_Pattern]:
    """One pattern for each output of the traced spellings."""
    nodes: list[fx.Node] = list(graph.nodes)
    outputs: Any = nodes[-1].args[0]
    for (activation, _), output in zip(_SPELLINGS, outputs, strict=True):
        needed = {output}
        for node in reversed(nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        yield _Pattern(activation, nodes[0], tuple(node for node in nodes[1:] if node in needed))
