"""Replaces convolutions in the graphs that Inductor compiles.

The pass runs on the joint graph of forward and backward, or on the graph of inference, where a
convolution is aten.convolution and its gradients are the results of aten.convolution_backward. The
graph pass replaces each of them on its own by convx's private operator, and then fuses what follows
the convolutions (_graph_epilogue.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config, list_mode_options
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from . import _graph_activations, _graph_epilogue, _graph_values, _ops
from ._arguments import ConvParams, parse_lists
from ._checks import DTYPES
from ._graph_values import hints_of, replace_call, tensor_of
from ._layout import are_channels_last, is_channels_last
from ._precision import default_precision, precision_name
from ._shape import PASSES, Shape
from ._version import __version__
from .measuring.case import Case, CaseTimes
from .measuring.timing import WORTH_IT

_aten, _convx = torch.ops.aten, torch.ops.convx
# The code that decides what becomes of a graph.
_FILES = (
    __file__,
    _graph_activations.__file__,
    _graph_epilogue.__file__,
    _graph_values.__file__,
)


def compile_with_convx(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    mode: str | None,
    options: dict[str, Any] | None,
    times: CaseTimes,
    name: str | None,
) -> Any:
    """Inductor's compile_fx with the pass in it. `name` says which rule chooses, for Inductor's
    files; None keeps graphs out of them."""
    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    earlier = patches.get("joint_custom_pre_pass", config.joint_custom_pre_pass)
    patches["joint_custom_pre_pass"] = ConvPass(times, name, earlier)
    return compile_fx(graph, inputs, inner_compile=_compile_inner, config_patches=patches)


def _compile_inner(graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Keeps the memory format of a graph that has convolutions of convx. Inductor would move the
    other convolutions to channels_last and insert copies."""
    ours = any(getattr(node.target, "namespace", "") == "convx" for node in graph.graph.nodes)
    with config.patch(layout_optimization=config.layout_optimization and not ours):
        return compile_fx_inner(graph, *args, **kwargs)


class ConvPass(CustomGraphPass):
    """The graph pass as Inductor's configuration takes it. It runs after a pass that was configured
    earlier."""

    def __init__(self, times: CaseTimes, name: str | None, earlier: Any = None) -> None:
        self.times, self.name, self.earlier = times, name, earlier

    def __call__(self, graph: fx.Graph) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        replace_convolutions(graph, self.times)
        _graph_epilogue.fuse_epilogues(graph)

    def uuid(self) -> Any:
        if self.name is None:
            return None
        mine = f"convx {__version__} {self.name}", get_hash_for_files(_FILES)
        if self.earlier is None:
            return mine
        theirs = self.earlier.uuid() if isinstance(self.earlier, CustomGraphPass) else None
        return theirs and (mine, theirs)


@dataclass(frozen=True)
class _Pass:
    """One pass of a convolution in a graph. `node` has its result: the convolution itself, or the
    getitem of a gradient. convx's operator `target` computes the same from `args`."""

    node: fx.Node
    case: Case
    device: torch.device
    target: Any
    args: tuple[Any, ...]


def replace_convolutions(graph: fx.Graph, times: CaseTimes) -> int:
    """Replaces the passes that are faster with convx, and returns how many."""
    found = [found for node in graph.nodes for found in _find_passes(node)]
    timed = [(each, *times(each.case, each.device)) for each in found]
    faster = [each for each, ours, theirs in timed if ours < WORTH_IT * theirs]
    if not faster:
        return 0
    if config.layout_optimization and any(each.case.layout == "nchw" for each in found):
        mixed = sum(min(ours, theirs) for _, ours, theirs in timed)
        moved = sum(min(theirs, _channels_last_ms(each, times)) for each, _, theirs in timed)
        if mixed >= WORTH_IT * moved:
            return 0
    replaced = sum(replace_call(each.node, each.target, each.args) for each in faster)
    _drop_unused_gradients(graph)
    return replaced


def _channels_last_ms(each: _Pass, times: CaseTimes) -> float:
    return times(replace(each.case, layout="nhwc"), each.device)[1]


def _find_passes(node: Any) -> Iterator[_Pass]:
    if node.target is _aten.convolution.default:
        x, w, b, *numbers = node.args
        convolution = _Convolution.of(x, w, numbers)
        if convolution is not None:
            operands = x, w, b, *convolution.params
            target = _convx._conv2d.default
            yield convolution.make_pass(node, "fwd", target, operands, b is not None)
    elif node.target is _aten.convolution_backward.default:
        g, x, w, _, *numbers, mask = node.args
        convolution = _Convolution.of(x, w, numbers)
        if convolution is None or not (_is_static(x) and _is_static(g)):
            return
        for user in node.users:
            index = user.args[1] if user.target is operator.getitem else None
            if index not in (0, 1) or not mask[index]:
                continue
            like = (x if index == 0 else w).meta["val"]
            size = like.shape[2], like.shape[3], is_channels_last(user.meta["val"])
            target = (_convx._conv2d_input_grad, _convx._conv2d_weight_grad)[index].default
            args = g, w if index == 0 else x, *size, *convolution.params
            yield convolution.make_pass(user, PASSES[1 + index], target, args)


@dataclass(frozen=True)
class _Convolution:
    """The operands and parameters that the passes of a convolution have in common."""

    x: Tensor
    w: Tensor
    params: ConvParams

    @staticmethod
    def of(x: Any, w: Any, numbers: Sequence[Any]) -> _Convolution | None:
        """None for a convolution that convx does not compute. Image sizes may be dynamic."""
        stride, padding, dilation, transposed, _, groups = numbers
        lists = stride, padding, dilation
        if transposed or not (_is_known(x) and _is_static(w)) or not all(map(_is_pair, lists)):
            return None
        params = parse_lists(*lists, groups, precision="torch")
        return _Convolution(x.meta["val"], w.meta["val"], params)

    def make_pass(
        self, node: fx.Node, direction: str, target: Any, args: Any, bias: bool = False
    ) -> _Pass:
        p, device = self.params, self.x.device
        geometry = (p.stride_h, p.stride_w), p[2:6], (p.dilation_h, p.dilation_w), p.groups
        size, stride = hints_of(self.x.shape), hints_of(self.x.stride())
        shape = Shape.of_call(size, self.w.shape, *geometry)
        precision = precision_name(self.x.dtype, default_precision(device))
        channels_last = are_channels_last(size, stride) or is_channels_last(self.w)
        layout = "nhwc" if channels_last else "nchw"
        return _Pass(
            node, Case(shape, direction, precision, layout, bias=bias), device, target, args
        )


def _is_pair(values: Any) -> bool:
    return len(values) == 2 and all(type(value) is int for value in values)


def _is_known(node: Any) -> bool:
    """Whether convx computes with a node's result, a tensor of four sizes. Dynamic sizes have to be
    known for the example that is compiled for."""
    value = tensor_of(node)
    return (
        value is not None
        and value.dim() == 4
        and all(size > 0 for size in hints_of(value.shape))
        and value.dtype in DTYPES
        and (value.is_cpu or (value.is_cuda and _ops.why_no_cuda() is None))
    )


def _is_static(node: Any) -> bool:
    """Whether in addition all sizes and strides are fixed."""
    value = tensor_of(node)
    return (
        value is not None
        and _is_known(node)
        and all(type(number) is int for number in (*value.shape, *value.stride()))
    )


def _drop_unused_gradients(graph: fx.Graph) -> None:
    """Masks the gradients that convx computes out of aten.convolution_backward."""
    nodes: list[Any] = list(graph.nodes)
    for node in nodes:
        if node.target is not _aten.convolution_backward.default:
            continue
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        if not node.users:
            graph.erase_node(node)
        elif all(user.target is operator.getitem for user in node.users):
            mask = [asked and i in used for i, asked in enumerate(node.args[-1])]
            node.args = (*node.args[:-1], mask)
            values = zip(node.meta["val"], mask, strict=True)
            node.meta["val"] = tuple(value if asked else None for value, asked in values)
