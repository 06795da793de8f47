"""Fuses the pointwise operators behind a convolution of convx into its epilogue.

The pass looks at a functional graph of ATen operators, in which every convolution that convx
computes is convx::_conv2d. It follows the result through

    per-channel factors and terms    BatchNorm with fixed statistics, a scale, a bias
    the addition of a residual       a tensor of the output's size, dtype and memory format
    an activation                    see _graph_activations.py

as long as nothing else reads a value on the way. Operators in the graph multiply the factors into
the weight and add the terms to the bias, so that parameters may still change between two calls. The
rest becomes one convx::_conv2d_fused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._ops import HigherOrderOperator

from ._graph_activations import find_activation
from ._graph_values import are_alike, arguments_of, hint_of, replace_call, tensor_of, value_of

_aten, _convx, _prims = torch.ops.aten, torch.ops.convx, torch.ops.prims


def fuse_epilogues(graph: fx.Graph) -> int:
    """Fuses what follows each convolution of convx, and returns how many convolutions changed."""
    convolutions = [node for node in graph.nodes if node.target is _convx._conv2d.default]
    epilogues = map(_find_epilogue, convolutions)
    return sum(_fuse(graph, each) for each in epilogues if each is not None)


@dataclass(frozen=True)
class _InverseDeviation:
    """1 / sqrt(variance + eps)."""

    variance: fx.Node
    eps: float


_Operand = fx.Node | float | _InverseDeviation


@dataclass(frozen=True)
class _Step:
    """y -> y + operand, y - operand, operand - y ("right_sub"), y * operand, or y / operand."""

    name: str
    operand: _Operand


@dataclass(frozen=True)
class _Epilogue:
    """The nodes from a convolution to the one whose result the fused operator returns, in order."""

    nodes: tuple[fx.Node, ...]
    steps: tuple[_Step, ...] = ()
    residual: fx.Node | None = None
    activation: str = "none"
    slope: float = 0.0

    @property
    def conv(self) -> fx.Node:
        return self.nodes[0]

    @property
    def end(self) -> fx.Node:
        return self.nodes[-1]

    @property
    def has_only_steps(self) -> bool:
        return self.residual is None and self.activation == "none"


def _find_epilogue(conv: fx.Node) -> _Epilogue | None:
    """The longest epilogue whose result has the dtype and the strides of the convolution's."""
    best = None
    reached = _extend(_Epilogue((conv,)))
    while reached is not None and not _is_mutation_between(conv, reached.end):
        if are_alike(tensor_of(reached.end), tensor_of(conv)) and not _is_pass_of_its_own(reached):
            best = reached
        reached = _extend(reached)
    return None if best is None or _gains_nothing(best) else best


def _is_pass_of_its_own(epilogue: _Epilogue) -> bool:
    """Whether the kernels leave it to a second pass over memory, as those of a GPU do with all but
    a ReLU. Inductor's pass is as fast, and takes along what follows."""
    is_applied = epilogue.residual is None and epilogue.activation in ("none", "relu")
    return _is_on_gpu(epilogue.conv) and not is_applied


def _gains_nothing(epilogue: _Epilogue) -> bool:
    """Whether Inductor computes it in the pass over memory that follows anyway."""
    users = [_is_pointwise(user) for user in epilogue.end.users]
    if epilogue.has_only_steps:
        return any(users)
    return _is_on_gpu(epilogue.conv) and users != [] and all(users)


def _is_on_gpu(conv: fx.Node) -> bool:
    output = tensor_of(conv)
    return output is not None and output.device.type == "cuda"


def _is_mutation_between(conv: fx.Node, end: fx.Node) -> bool:
    """Whether an operator may write to an operand of the convolution before the fused operator,
    which takes the place of `end`, reads it."""
    node = conv
    while node is not end:
        node = node.next
        schema = getattr(node.target, "_schema", None)
        if isinstance(node.target, HigherOrderOperator) or (schema and schema.is_mutable):
            return True
    return False


def _is_pointwise(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _extend(epilogue: _Epilogue) -> _Epilogue | None:
    """The epilogue with what follows it, or None if that cannot be fused."""
    nodes, end, conv = epilogue.nodes, epilogue.end, epilogue.conv
    value, output = tensor_of(end), tensor_of(conv)
    if value is None or output is None or epilogue.activation != "none":
        return None
    if value.dtype == output.dtype and (match := find_activation(end, value.dtype)) is not None:
        found = (*nodes, *match.nodes)
        return replace(epilogue, nodes=found, activation=match.activation, slope=match.slope)
    if len(end.users) != 1 or epilogue.residual is not None:
        return None
    user = next(iter(end.users))
    if user.target is _aten._native_batch_norm_legit_no_training.default:
        return _extend_by_batch_norm(epilogue, user)
    result, dtypes = tensor_of(user), (output.dtype, _wide(output.dtype))
    if result is None or result.dtype not in dtypes:
        return None
    if _is_cast(user):
        return replace(epilogue, nodes=(*nodes, user))
    return _extend_by_step(epilogue, user, output) if user.target in _STEPS else None


_STEPS: dict[Any, str] = {
    _aten.add.Tensor: "add",
    _aten.sub.Tensor: "sub",
    _aten.mul.Tensor: "mul",
    _aten.div.Tensor: "div",
}


def _extend_by_step(epilogue: _Epilogue, user: fx.Node, output: Tensor) -> _Epilogue | None:
    """Takes a residual, or a factor or term of each channel."""
    end = epilogue.end
    a, b, *alpha = arguments_of(user)
    if alpha not in ([], [1]) or a is b:
        return None
    name, operand = _STEPS[user.target], b if a is end else a
    extended = replace(epilogue, nodes=(*epilogue.nodes, user))
    if (
        name == "add"
        and are_alike(tensor_of(end), output)
        and are_alike(tensor_of(operand), output)
    ):
        # It cannot depend on the convolution, whose result has no other user than the addition.
        return replace(extended, residual=operand)
    if a is not end and name in ("sub", "div"):
        name = "right_" + name
    step = _Step(name, operand)
    is_known = type(operand) in (int, float) or _is_per_channel(operand, epilogue.conv)
    if is_known and _can_fold([step], epilogue.conv):
        return replace(extended, steps=(*epilogue.steps, step))
    return None


def _extend_by_batch_norm(epilogue: _Epilogue, norm: fx.Node) -> _Epilogue | None:
    """Takes BatchNorm that is one operator, as exported programs have it."""
    _, weight, bias, mean, variance, _, eps = arguments_of(norm)
    results = list(norm.users)
    steps = [_Step("sub", mean), _Step("mul", _InverseDeviation(variance, eps))]
    steps += [_Step("mul", weight)] if weight is not None else []
    steps += [_Step("add", bias)] if bias is not None else []
    vectors = [each for each in (weight, bias, mean, variance) if each is not None]
    if (
        len(results) != 1
        or results[0].target is not operator.getitem
        or results[0].args[1] != 0
        or not _can_fold(steps, epilogue.conv)
        or not _are_small(vectors, epilogue.conv)
    ):
        return None
    return replace(
        epilogue, nodes=(*epilogue.nodes, norm, results[0]), steps=(*epilogue.steps, *steps)
    )


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that PyTorch computes pointwise operators in."""
    return torch.promote_types(dtype, torch.float32)


def _is_cast(node: fx.Node) -> bool:
    """Whether a node changes the dtype and nothing else."""
    return node.target is _prims.convert_element_type.default or (
        node.target is _aten._to_copy.default and set(node.kwargs) <= {"dtype"}
    )


def _can_fold(steps: Iterable[_Step], conv: fx.Node) -> bool:
    """Whether steps can be folded into weight and bias, in less time than they take themselves."""
    weight, output = tensor_of(arguments_of(conv)[1]), tensor_of(conv)
    if weight is None or output is None:
        return False
    if any(each.name == "right_div" or each == _Step("div", 0) for each in steps):
        return False
    if all(each.name in ("add", "sub") for each in steps):
        return True
    # Every call multiplies the weight, unless parameters are constants, and Inductor does so once.
    is_constant = config.freezing or config.aot_inductor.use_runtime_constant_folding
    is_cheap = is_constant or weight.numel() <= hint_of(output.numel())
    return is_cheap and torch.empty_like(weight).stride() == weight.stride()


def _is_per_channel(operand: Any, conv: fx.Node) -> bool:
    """Whether a tensor has one value for each channel of an image, or one for all images."""
    value, output = tensor_of(operand), tensor_of(conv)
    if value is None or output is None or value.dim() > 4 or value.device != output.device:
        return False
    if any(type(size) is not int for size in value.shape):
        return False
    n, k, h, w = [1] * (4 - value.dim()) + list(value.shape)
    is_vector = (n, h, w) == (1, 1, 1) and k in (1, output.shape[1])
    return is_vector and _are_small([operand], conv)


def _are_small(operands: list[fx.Node], conv: fx.Node) -> bool:
    """Whether tensors, and everything they are computed from, have no more elements than the
    convolution has filters. Parameters and statistics of a layer are such tensors."""
    weight = tensor_of(arguments_of(conv)[1])
    pending, seen = list(operands), set(operands)
    while pending:
        node = pending.pop()
        value = tensor_of(node)
        count: Any = -1 if value is None else value.numel()
        if weight is None or type(count) is not int or not 0 <= count <= weight.shape[0]:
            return False
        new = [each for each in node.all_input_nodes if each not in seen]
        seen.update(new)
        pending += new
    return True


def _fuse(graph: fx.Graph, epilogue: _Epilogue) -> bool:
    """Makes the end of an epilogue the fused operator, if the result lies in memory as before."""
    x, weight, bias, *params = arguments_of(epilogue.conv)
    writer = _Writer(graph, epilogue.end)
    if epilogue.steps:
        weight, bias = _fold(writer, epilogue)
    if epilogue.has_only_steps:
        target, args = _convx._conv2d.default, (x, weight, bias, *params)
    else:
        target = _convx._conv2d_fused.default
        fused = epilogue.residual, epilogue.activation, epilogue.slope
        args = (x, weight, bias, *fused, *params)
    if not replace_call(epilogue.end, target, args):
        writer.drop()
        return False
    for node in reversed(epilogue.nodes[:-1]):
        graph.erase_node(node)
    return True


class _Writer:
    """Writes the arithmetic of parameters in front of a node. Operands are nodes and numbers."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        self.graph, self.before = graph, before
        self.written: list[fx.Node] = []

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.graph.inserting_before(self.before):
            node = self.graph.call_function(target, args, kwargs)
        own = "val", "tensor_meta", "eager_input_vals"
        node.meta = {name: each for name, each in self.before.meta.items() if name not in own}
        node.meta["val"] = target(*map(value_of, args), **kwargs)
        self.written.append(node)
        return node

    def drop(self) -> None:
        for node in reversed(self.written):
            self.graph.erase_node(node)

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        if value_of(node).dtype == dtype:
            return node
        return self.call(_prims.convert_element_type.default, node, dtype)

    def add(self, a: Any, b: Any) -> Any:
        if not isinstance(a, fx.Node):
            a, b = b, a
        if not isinstance(a, fx.Node):
            return a + b
        return a if b == 0 else self.call(_aten.add.Tensor, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        if not isinstance(a, fx.Node):
            a, b = b, a
        if not isinstance(a, fx.Node):
            return a * b
        return a if b == 1 else 0 if b == 0 else self.call(_aten.mul.Tensor, a, b)

    def vector(self, operand: _Operand, dtype: torch.dtype) -> Any:
        """An operand as a number or as a vector."""
        if isinstance(operand, _InverseDeviation):
            variance = self.add(self.cast(operand.variance, dtype), operand.eps)
            return self.call(_aten.rsqrt.default, variance)
        if not isinstance(operand, fx.Node):
            return operand
        return self.call(_aten.view.default, self.cast(operand, dtype), [-1])

    def inverse(self, operand: Any) -> Any:
        if isinstance(operand, fx.Node):
            return self.call(_aten.reciprocal.default, operand)
        return 1 / operand


def _fold(writer: _Writer, epilogue: _Epilogue) -> tuple[fx.Node, fx.Node | None]:
    """Weight and bias with the steps in them, computed in the dtype of pointwise operators and
    rounded once."""
    _, weight, bias, *_ = arguments_of(epilogue.conv)
    value = value_of(weight)
    wide = _wide(value.dtype)
    # The steps make factor * y + term of the result y of the convolution without a bias.
    factor: Any = 1
    term: Any = 0 if bias is None else writer.cast(_unrounded(bias, wide), wide)
    for step in epilogue.steps:
        operand = writer.vector(step.operand, wide)
        if step.name in ("mul", "div", "right_sub"):
            by = -1 if step.name == "right_sub" else operand
            by = writer.inverse(operand) if step.name == "div" else by
            factor, term = writer.mul(factor, by), writer.mul(term, by)
        if step.name in ("add", "sub", "right_sub"):
            term = writer.add(term, writer.mul(operand, -1) if step.name == "sub" else operand)
    if isinstance(factor, fx.Node):
        factor = writer.call(_aten.view.default, factor, [-1, 1, 1, 1])
    if isinstance(factor, fx.Node) or factor != 1:
        product = writer.call(_aten.mul.Tensor, writer.cast(_unrounded(weight, wide), wide), factor)
        weight = writer.cast(product, value.dtype)
    if bias is None and not isinstance(term, fx.Node) and term == 0:
        return weight, None
    if not isinstance(term, fx.Node) or value_of(term).shape[0] != value.shape[0]:
        with value.fake_mode:
            full = [value.shape[0]], 0.0
            zeros = writer.call(_aten.full.default, *full, dtype=wide, device=value.device)
        term = writer.call(_aten.add.Tensor, zeros, term)
    return weight, writer.cast(term, value.dtype)


def _unrounded(node: fx.Node, wide: torch.dtype) -> fx.Node:
    """The tensor that a node rounds, as autocast rounds parameters."""
    if node.target is _prims.convert_element_type.default:
        source: Any = node.args[0]
        if value_of(source).dtype == wide and value_of(source).stride() == value_of(node).stride():
            return source
    return node
