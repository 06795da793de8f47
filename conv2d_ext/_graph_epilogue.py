"""Fuses the pointwise operators behind a convolution of convx into its epilogue.

The pass looks at a functional graph of ATen operators, in which every convolution that convx
computes is convx::_conv2d. It follows the result through

    per-channel factors and terms    BatchNorm with fixed statistics, a scale, a bias
    the addition of a residual       a tensor of the output's size, dtype and memory format
    an activation                    in any form that ATen and Inductor decompose it to

as long as nothing else reads a value on the way. Operators in the graph multiply the factors into
the weight and add the terms to the bias, so that parameters may still change between two calls. The
rest becomes one convx::_conv2d_fused.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from ._graph_values import are_alike, hint_of, tensor_of, value_of

_aten, _convx, _prims = torch.ops.aten, torch.ops.convx, torch.ops.prims

# A tensor of the graph, or a number.
_Operand = fx.Node | float


def fuse_epilogues(graph: fx.Graph) -> int:
    """Fuses what follows each convolution of convx, and returns how many convolutions changed."""
    convolutions = [node for node in graph.nodes if node.target is _convx._conv2d.default]
    epilogues = map(_find_epilogue, convolutions)
    return sum(_fuse(graph, each) for each in epilogues if each is not None)


@dataclass(frozen=True)
class _Affine:
    """One step y -> y + operand, y - operand, operand - y, y * operand or y / operand."""

    name: str
    operand: _Operand


@dataclass(frozen=True)
class _Epilogue:
    """The nodes from a convolution to the one whose result the fused operator returns, in order."""

    nodes: tuple[fx.Node, ...]
    affine: tuple[_Affine, ...] = ()
    residual: fx.Node | None = None
    activation: str = "none"
    slope: float = 0.0

    @property
    def conv(self) -> fx.Node:
        return self.nodes[0]

    @property
    def end(self) -> fx.Node:
        return self.nodes[-1]


def _find_epilogue(conv: fx.Node) -> _Epilogue | None:
    """The longest epilogue whose result has the dtype and the strides of the convolution's."""
    best = None
    reached = _extend(_Epilogue((conv,)))
    while reached is not None:
        if are_alike(tensor_of(reached.end), tensor_of(conv)):
            best = reached
        reached = _extend(reached)
    return best


def _extend(epilogue: _Epilogue) -> _Epilogue | None:
    """The epilogue with the next step, or None if no step follows that can be fused."""
    nodes, end, conv = epilogue.nodes, epilogue.end, epilogue.conv
    value, output = tensor_of(end), tensor_of(conv)
    if value is None or output is None or epilogue.activation != "none":
        return None
    if value.dtype == output.dtype:
        for pattern in _patterns(value.dtype):
            if (match := pattern.match(end)) is not None:
                found, slope = match
                return replace(
                    epilogue, nodes=nodes + found, activation=pattern.activation, slope=slope
                )
    if len(end.users) != 1 or epilogue.residual is not None:
        return None
    user = next(iter(end.users))
    extended = replace(epilogue, nodes=(*nodes, user))
    if _is_cast(user, (output.dtype, _wide(output.dtype))):
        return extended
    if user.target not in _AFFINE or tensor_of(user) is None:
        return None
    a, b, *alpha = _arguments(user)
    if alpha not in ([], [1]) or a is b:
        return None
    other = b if a is end else a
    name = _AFFINE[user.target]
    if name == "add" and _is_residual(other, end, output):
        return replace(extended, residual=other)
    if a is not end and name in ("sub", "div"):
        name = "right_" + name
    if _can_fold(name, other, conv):
        return replace(extended, affine=(*epilogue.affine, _Affine(name, other)))
    return None


_AFFINE = {
    _aten.add.Tensor: "add",
    _aten.sub.Tensor: "sub",
    _aten.mul.Tensor: "mul",
    _aten.div.Tensor: "div",
}


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that PyTorch computes pointwise operators in."""
    return torch.promote_types(dtype, torch.float32)


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call in the order of the operator's schema, with their defaults."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    rest = schema[len(node.args) :]
    return (*node.args, *(node.kwargs.get(each.name, each.default_value) for each in rest))


def _is_cast(node: fx.Node, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether a node converts between the dtypes and changes nothing else."""
    value = tensor_of(node)
    known = node.target is _prims.convert_element_type.default or (
        node.target is _aten._to_copy.default and set(node.kwargs) <= {"dtype"}
    )
    return known and value is not None and value.dtype in dtypes


def _is_residual(other: Any, end: fx.Node, output: Tensor) -> bool:
    """Whether convx's epilogue adds a tensor without a copy. The tensor cannot depend on `end`,
    which has no other user than the addition."""
    return are_alike(tensor_of(other), output) and are_alike(tensor_of(end), output)


def _can_fold(name: str, operand: Any, conv: fx.Node) -> bool:
    """Whether a step can be folded into the weight and the bias, and this takes less time than the
    step itself."""
    if name == "right_div" or (name == "div" and operand == 0):
        return False
    weight, output = tensor_of(_arguments(conv)[1]), tensor_of(conv)
    if weight is None or output is None:
        return False
    if not isinstance(operand, fx.Node):
        if type(operand) not in (int, float):
            return False
    elif not _is_per_channel(operand, weight):
        return False
    if name in ("add", "sub"):
        return True
    # The weight is multiplied in every call, unless Inductor computes it once because the
    # parameters are constants.
    is_cheap = config.freezing or weight.numel() <= hint_of(output.numel())
    return is_cheap and torch.empty_like(weight).stride() == weight.stride()


def _is_per_channel(operand: fx.Node, weight: Tensor) -> bool:
    """Whether a tensor has one value for each channel of an image, or one for all, and comes from
    tensors that are no larger, such as the statistics of BatchNorm."""
    value, filters = tensor_of(operand), weight.shape[0]
    if value is None or value.dim() > 4 or value.device != weight.device:
        return False
    sizes = [1] * (4 - value.dim()) + list(value.shape)
    if sizes[1] not in (1, filters) or any(size != 1 for size in (sizes[0], *sizes[2:])):
        return False
    pending, seen = [operand], {operand}
    while pending:
        node = pending.pop()
        value = tensor_of(node)
        if value is None or type(value.numel()) is not int or value.numel() > filters:
            return False
        new = [each for each in node.all_input_nodes if each not in seen]
        seen.update(new)
        pending += new
    return True


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

    def match(self, start: fx.Node) -> tuple[tuple[fx.Node, ...], float] | None:
        """The nodes that compute the activation of `start`, and the slope, if nothing else uses
        what they compute on the way."""
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
        return found[1:], bound.slope


@dataclass
class _Binding:
    """The nodes of a graph for the nodes of a pattern, and the number for _ANY_SLOPE."""

    nodes: dict[fx.Node, fx.Node]
    slope: float = 0.0

    def agrees(self, expected: fx.Node, node: fx.Node) -> bool:
        if node.target is not expected.target or node in self.nodes.values():
            return False
        want, got = _arguments(expected), _arguments(node)
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


@dataclass
class _Writer:
    """Writes calls in front of a node, with the values that they have for fake tensors."""

    graph: fx.Graph
    before: fx.Node
    written: list[fx.Node] = field(default_factory=list)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        values = tuple(value_of(arg) for arg in args)
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        copied = {name: each for name, each in self.before.meta.items() if name not in _OWN_META}
        node.meta = {**copied, "val": target(*values, **kwargs)}
        self.written.append(node)
        return node

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        if value_of(node).dtype == dtype:
            return node
        return self.call(_prims.convert_element_type.default, node, dtype)

    def vector(self, operand: _Operand, dtype: torch.dtype) -> _Operand:
        """A tensor with one value for each channel, or a single one, as a vector."""
        if not isinstance(operand, fx.Node):
            return operand
        wide = self.cast(operand, dtype)
        return self.call(_aten.view.default, wide, [value_of(wide).numel()])

    def combine(self, target: Any, a: _Operand | None, b: _Operand) -> _Operand:
        """The sum or product of vectors and numbers. None stands for no operand."""
        if a is None:
            return b
        if isinstance(a, fx.Node):
            return self.call(target, a, b)
        return self.call(target, b, a) if isinstance(b, fx.Node) else _ON_NUMBERS[target](a, b)

    def drop(self) -> None:
        for node in reversed(self.written):
            self.graph.erase_node(node)


# What a node does not have in common with the node that it replaces.
_OWN_META = ("val", "tensor_meta", "eager_input_vals")
_ON_NUMBERS: Mapping[Any, Callable[[float, float], float]] = {
    _aten.add.Tensor: operator.add,
    _aten.mul.Tensor: operator.mul,
}


def _fuse(graph: fx.Graph, epilogue: _Epilogue) -> bool:
    """Replaces the nodes of an epilogue, if the result lies in memory as theirs does."""
    end = epilogue.end
    writer = _Writer(graph, end)
    x, weight, bias, *params = _arguments(epilogue.conv)
    if epilogue.affine:
        weight, bias = _fold(writer, epilogue)
    if epilogue.residual is None and epilogue.activation == "none":
        target, args = _convx._conv2d.default, (x, weight, bias, *params)
    else:
        extra = epilogue.residual, epilogue.activation, epilogue.slope
        target, args = _convx._conv2d_fused.default, (x, weight, bias, *extra, *params)
    fused = writer.call(target, *args)
    if not are_alike(tensor_of(fused), tensor_of(end)):
        writer.drop()
        return False
    # Inductor gives operands to an operator that it does not know with the strides of these values.
    fused.meta["eager_input_vals"] = (tuple(map(value_of, args)), {})
    end.replace_all_uses_with(fused)
    for node in reversed(epilogue.nodes):
        graph.erase_node(node)
    return True


def _fold(writer: _Writer, epilogue: _Epilogue) -> tuple[fx.Node, fx.Node | None]:
    """Weight and bias with the factors and terms in them, computed in the dtype of pointwise
    operators and rounded once."""
    _, weight, bias, *_ = _arguments(epilogue.conv)
    dtype, filters = value_of(weight).dtype, value_of(weight).shape[0]
    wide = _wide(dtype)
    add, mul = _aten.add.Tensor, _aten.mul.Tensor
    factor: _Operand | None = None
    term: _Operand | None = None
    if bias is not None:
        term = writer.cast(_unrounded(bias, wide), wide)
    for step in epilogue.affine:
        operand = writer.vector(step.operand, wide)
        if step.name == "div":
            operand = (
                writer.call(_aten.reciprocal.default, operand)
                if isinstance(operand, fx.Node)
                else 1 / operand
            )
        if step.name == "sub":
            operand = writer.combine(mul, operand, -1.0)
        if step.name in ("mul", "div", "right_sub"):
            by = -1.0 if step.name == "right_sub" else operand
            factor = writer.combine(mul, factor, by)
            term = None if term is None else writer.combine(mul, term, by)
        if step.name in ("add", "sub", "right_sub"):
            term = writer.combine(add, term, operand)
    if factor is not None:
        if isinstance(factor, fx.Node):
            factor = writer.call(_aten.view.default, factor, [-1, 1, 1, 1])
        product = writer.call(mul, writer.cast(_unrounded(weight, wide), wide), factor)
        weight = writer.cast(product, dtype)
    if term is not None:
        if not isinstance(term, fx.Node) or value_of(term).numel() != filters:
            term = writer.combine(add, _zeros(writer, filters, wide, value_of(weight)), term)
        assert isinstance(term, fx.Node)
        term = writer.cast(term, dtype)
    return weight, term


def _unrounded(node: fx.Node, wide: torch.dtype) -> fx.Node:
    """The tensor that a node rounds, as autocast rounds parameters."""
    if node.target is _prims.convert_element_type.default:
        source: Any = node.args[0]
        if value_of(source).dtype == wide and value_of(source).stride() == value_of(node).stride():
            return source
    return node


def _zeros(writer: _Writer, size: int, dtype: torch.dtype, like: Any) -> fx.Node:
    with like.fake_mode:
        return writer.call(_aten.full.default, [size], 0.0, dtype=dtype, device=like.device)
