"""Takes BatchNorm, addition and activation into the calls of a model's convolutions, in place.

Each module that has such a chain in its forward gets a class that differs from its own in forward:
code that torch.fx makes from a trace. That code calls run_chain() in place of the chain's modules,
which stay where they are. So the model keeps its modules, parameters and state_dict. Every call
checks what the trace took for granted. Where that no longer holds, the original forward or the
chain's own modules compute.

A module is traced by itself. Only nn.Sequential is traced through, so that a chain may leave it.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.compiler import is_compiling
from torch.nn.modules.module import _has_any_global_hook

from . import _autocast, _fold, _patterns
from ._arguments import ConvParams, output_hw, parse_padding, parse_pair
from ._fused import ACTIVATIONS
from ._patterns import Activation, Chain
from ._swap import ConvLayer, set_class, state_of, underlying_class
from ._trace import WRITES, Untraceable, trace
from .functional import conv2d
from .modules import Conv2d

# The attribute of a module, and of the class that it gets.
_FUSION = "_convx_fusion"
_UNFUSED_CLASS = "_convx_unfused_class"

_NO_ACTIVATION = Activation("none")


# What the code of a fused forward calls.


def run_chain(
    conv: nn.Module,
    norm: nn.Module | None,
    act: nn.Module | None,
    input: Tensor,
    residual: Tensor | None,
    adds_in_place: bool,
    function: Activation | None,
) -> Tensor:
    """activation(norm(conv(input)) + residual), in one call if that gives the same.

    The activation is a module, `act`, or a function, or there is none.
    """
    parts = conv, norm, act, input, residual, adds_in_place, function
    activation = function or _NO_ACTIVATION
    if act is not None:
        found = _patterns.find_module_activation(act)
        if found is None or _has_hooks(act):
            return _run_separately(*parts)
        activation = found
    if (
        not isinstance(input, Tensor)  # torch.fx traces the model
        or why_no_chain(conv, norm) is not None
        or (norm is not None and input.dim() != 4)  # BatchNorm2d has an error for these
    ):
        return _run_separately(*parts)
    assert isinstance(conv, Conv2d)
    padded, padding = conv.pad_input(input)
    if residual is not None and not _is_addend(conv, padded, padding, residual):
        return _run_separately(*parts)
    folded: tuple[Tensor, Tensor | None]
    folded = (conv.weight, conv.bias) if norm is None else _fold.fold(conv, norm)  # type: ignore[arg-type]
    return conv2d(
        padded,
        *folded,
        conv.stride,
        padding,
        conv.dilation,
        conv.groups,
        activation=activation.name,
        residual=residual,
        negative_slope=activation.slope,
        precision=conv.precision,
        algorithm=conv.algorithm,
    )


def _run_separately(
    conv: nn.Module,
    norm: nn.Module | None,
    act: nn.Module | None,
    input: Tensor,
    residual: Tensor | None,
    adds_in_place: bool,
    function: Activation | None,
) -> Tensor:
    """The chain as the model has it."""
    output = conv(input)
    if norm is not None:
        output = norm(output)
    if residual is not None:
        output = operator.iadd(output, residual) if adds_in_place else output + residual
    if act is not None:
        return act(output)
    return output if function is None else ACTIVATIONS[function.name](output, function.slope)


def why_no_chain(conv: nn.Module, norm: nn.Module | None) -> str | None:
    """Why a convolution and a BatchNorm cannot be one call now, or None if they can."""
    if not isinstance(conv, Conv2d):
        return "it does not compute with convx"
    cls, own = type(conv), conv.__dict__
    if (
        cls.forward is not Conv2d.forward
        or cls._conv_forward is not Conv2d._conv_forward
        or "forward" in own
        or "_conv_forward" in own
    ):
        return f"{cls.__name__} computes in its own way"
    if conv.activation not in (None, "none"):
        return "it has an activation of its own"
    if _has_hooks(conv):
        return "it has hooks"
    if norm is None:
        return None
    is_norm = isinstance(norm, nn.BatchNorm2d) and type(norm).forward is nn.BatchNorm2d.forward
    if not is_norm or "forward" in norm.__dict__:
        return "what follows it is no nn.BatchNorm2d"
    if norm.training:
        return "the BatchNorm that follows it is in training mode"
    if norm.running_mean is None or norm.running_var is None:
        return "the BatchNorm that follows it keeps no running statistics"
    if norm.num_features != conv.out_channels:
        return "the BatchNorm that follows it is of another size"
    return "the BatchNorm that follows it has hooks" if _has_hooks(norm) else None


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _is_addend(conv: Conv2d, padded: Tensor, padding: Any, residual: Tensor) -> bool:
    """Whether the sum has the convolution's size and dtype. Additions broadcast and promote."""
    if not isinstance(residual, Tensor) or residual.device != padded.device:
        return False
    dtype = _autocast.dtype_for(padded) if torch._C._is_any_autocast_enabled() else None
    if residual.dtype is not (dtype or padded.dtype):
        return False
    if not is_compiling() and torch._C._is_tracing():
        with warnings.catch_warnings():  # the answer becomes part of the trace
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            return _has_output_size(conv, padded, padding, residual)
    return _has_output_size(conv, padded, padding, residual)


def _has_output_size(conv: Conv2d, padded: Tensor, padding: Any, residual: Tensor) -> bool:
    stride, dilation = parse_pair("stride", conv.stride), parse_pair("dilation", conv.dilation)
    filters, _, *kernel = conv.weight.shape
    sides = parse_padding(padding, kernel, stride, dilation)
    p = ConvParams(*stride, *sides, *dilation, conv.groups, "ieee", "auto")
    extents = output_hw(padded.shape[-2], padded.shape[-1], kernel[0], kernel[1], p)
    return [*residual.shape] == [*padded.shape[:-3], filters, *extents]


# What a module with a fused forward has.


class _Fusion:
    """The fused forward of a module, and what it takes for granted. Paths name everything, so
    copies of the module share this object."""

    def __init__(
        self,
        run: Callable[..., Any],
        inputs: tuple[str, ...],
        inlined: dict[str, Any],
        skipped: tuple[str, ...],
    ) -> None:
        self.run = run
        self.inputs = inputs
        self.skipped = skipped  # paths of modules that return their input
        # By path: the names of a container's modules, and whether the trace went through its call.
        self.inlined = inlined

    def applies(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is the one that was traced: in eval mode, with all arguments that have no
        default and no others."""
        if module.training or _has_any_global_hook():
            return False
        if len(args) + len(kwargs) != len(self.inputs):
            return False
        for value in (*args, *kwargs.values()):
            if value is None:
                return False
        for name in kwargs:
            if name not in self.inputs:
                return False
        for path, (names, runs) in self.inlined.items():
            part = module.get_submodule(path)
            if tuple(part._modules) != names or (runs and not _is_traced_through(part)):
                return False
        return all(_is_identity(module.get_submodule(path)) for path in self.skipped)

    def __deepcopy__(self, memo: Any) -> _Fusion:
        return self

    def __reduce__(self) -> Any:
        """Files do not keep traces: a model that is loaded computes unfused."""
        return _fold.nothing, ()


_classes: dict[type[Any], type[Any]] = {}


def _class_with_fusion(original: type[Any]) -> type[Any]:
    """A class that differs from `original` in forward alone."""
    if original in _classes:
        return _classes[original]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        fusion = self._convx_fusion
        if fusion is not None and fusion.applies(self, args, kwargs):
            return fusion.run(self, *args, **kwargs)
        return original.forward(self, *args, **kwargs)

    # torch.jit.script compiles the source of the function that another one wraps, and looks names
    # up in the globals of the other one.
    theirs = original.forward
    cells = forward.__closure__
    forward = FunctionType(forward.__code__, theirs.__globals__, "forward", None, cells)
    functools.update_wrapper(forward, theirs)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        """An attribute that changes may have steered what was traced."""
        if name != "training" and name in self.__dict__:
            self.__dict__[_FUSION] = None
        super(made, self).__setattr__(name, value)  # type: ignore[arg-type]

    members = {
        "forward": forward,
        "__setattr__": set_attribute,
        "__reduce_ex__": lambda self, protocol: (_rebuild, (original,), state_of(self)),
        "__module__": original.__module__,
        _UNFUSED_CLASS: original,
        _FUSION: None,
    }
    made = _classes[original] = type(original.__name__, (original,), members)
    return made


def _rebuild(original: type[Any]) -> Any:
    return object.__new__(_class_with_fusion(original))


def _unfused_class(module: nn.Module) -> type[Any]:
    cls = underlying_class(module)
    return getattr(cls, _UNFUSED_CLASS, cls)


def _is_traced_through(module: nn.Module) -> bool:
    """Whether calling a module is calling its children in turn, as in nn.Sequential."""
    runs_in_turn = _unfused_class(module).forward is nn.Sequential.forward
    return runs_in_turn and "forward" not in module.__dict__ and not _has_hooks(module)


def _is_identity(module: nn.Module) -> bool:
    """Whether a module returns its input now."""
    cls = type(module)
    if isinstance(module, nn.Dropout | nn.Dropout2d):
        returns_input = not module.training and cls.forward in _DROPOUTS
    else:
        returns_input = isinstance(module, nn.Identity) and cls.forward is nn.Identity.forward
    return returns_input and "forward" not in module.__dict__ and not _has_hooks(module)


_DROPOUTS = (nn.Dropout.forward, nn.Dropout2d.forward)


# Fusing.


@dataclass
class Fused:
    """Which convolutions of a model got something fused, by name with the parts of their call, and
    why the others did not."""

    fused: dict[str, str] = field(default_factory=dict)
    unfused: dict[str, str] = field(default_factory=dict)


def fuse_model(model: nn.Module) -> Fused:
    """Fuses all chains of a model's convolutions that compute with convx, in place."""
    unfuse_model(model)
    report = Fused()
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    for module in modules.values():
        if any(isinstance(part, Conv2d) for part in module.modules() if part is not module):
            _fuse_module(module, names, report)
    for name, module in modules.items():
        if isinstance(module, Conv2d) and name not in report.fused:
            reason = why_no_chain(module, None) or "nothing that can be fused follows it"
            report.unfused.setdefault(name, reason)
    report.unfused = {k: v for k, v in report.unfused.items() if k not in report.fused}
    return report


def unfuse_model(model: nn.Module) -> None:
    """Gives every module of a model its own forward again."""
    for module in model.modules():
        _fold.forget(module)
        cls = underlying_class(module)
        if _UNFUSED_CLASS in cls.__dict__:
            module.__dict__.pop(_FUSION, None)
            set_class(module, cls.__dict__[_UNFUSED_CLASS])


def _fuse_module(module: nn.Module, names: dict[nn.Module, str], report: Fused) -> None:
    """Fuses the chains of one module's forward, if one of them is not within an nn.Sequential that
    is traced by itself too."""
    if module.training:
        return
    try:
        graph, inputs = trace(module, _is_traced_through)
    except Untraceable as error:
        reason = f"torch.fx cannot trace the forward of {type(module).__name__}: {error}"
        for child in module.children():
            if isinstance(child, Conv2d):
                report.unfused.setdefault(names[child], reason)
        return
    parts = dict(module.named_modules(remove_duplicate=False))
    skipped = _skip_identities(graph, parts)
    chains = _find_chains(graph, parts, names, report)
    if not any(_innermost(chain) == "" for chain in chains):
        return
    for chain in chains:
        conv = names[parts[str(chain.conv.target)]]
        report.fused.setdefault(conv, _describe(chain, parts, names))
        _replace(graph, chain)
    fusion = _Fusion(_compile(graph), inputs, _list_inlined(module), skipped)
    set_class(module, _class_with_fusion(underlying_class(module)))
    module.__dict__[_FUSION] = fusion


def _skip_identities(graph: fx.Graph, parts: dict[str, nn.Module]) -> tuple[str, ...]:
    """Takes modules that return their input out of a graph, and returns their paths."""
    skipped = []
    for node in [*graph.nodes]:
        is_call = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        if is_call and _is_identity(parts[node.target]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            skipped.append(node.target)
    return tuple(skipped)


def _find_chains(
    graph: fx.Graph, parts: dict[str, nn.Module], names: dict[nn.Module, str], report: Fused
) -> list[Chain]:
    def is_conv(node: fx.Node) -> bool:
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return False
        return why_no_chain(parts[str(node.target)], None) is None

    def is_norm(node: fx.Node, conv: fx.Node) -> bool:
        if node.op != "call_module" or node.args != (conv,) or node.kwargs:
            return False
        layer, norm = parts[str(conv.target)], parts[str(node.target)]
        reason = why_no_chain(layer, norm)
        if reason is not None and isinstance(norm, nn.BatchNorm2d):
            report.unfused.setdefault(names[layer], reason)
        return reason is None

    def find_activation(node: fx.Node) -> Activation | None:
        has_hooks = node.op == "call_module" and _has_hooks(parts[str(node.target)])
        return None if has_hooks else _patterns.find_node_activation(node, parts)

    def is_new(node: fx.Node) -> bool:
        part = parts.get(str(node.target)) if node.op == "call_module" else None
        return isinstance(part, ConvLayer | nn.BatchNorm2d) and not _has_hooks(part)

    def writes(node: fx.Node) -> bool:
        return not is_new(node) and _patterns.writes_to_operands(node, parts)

    return _patterns.find_chains(
        graph,
        is_conv=is_conv,
        is_norm=is_norm,
        find_activation=find_activation,
        is_new=is_new,
        writes=writes,
    )


def _innermost(chain: Chain) -> str:
    """The path of the innermost module that was traced through and has the whole chain in it."""
    stacks: list[list[str]] = []
    for node in chain.nodes:
        paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        stacks.append(paths[:-1] if node.op == "call_module" else paths)
    shared = ""
    for first, *others in zip(*stacks, strict=False):
        if any(path != first for path in others):
            break
        shared = first
    return shared


def _describe(chain: Chain, parts: dict[str, nn.Module], names: dict[nn.Module, str]) -> str:
    """The parts of a call behind the convolution, by the names of their modules if they have."""
    words = []
    if chain.norm is not None:
        words.append(names[parts[str(chain.norm.target)]])
    if chain.addition is not None:
        words.append("residual")
    if chain.act is not None and chain.activation is not None:
        is_module = chain.act.op == "call_module"
        words.append(names[parts[str(chain.act.target)]] if is_module else chain.activation.name)
    return " + ".join(words)


def _replace(graph: fx.Graph, chain: Chain) -> None:
    """Puts a call of run_chain() in the place of a chain."""
    with graph.inserting_before(chain.place):

        def get(node: fx.Node | None) -> fx.Node | None:
            is_module = node is not None and node.op == "call_module"
            return graph.create_node("get_attr", node.target) if is_module else None  # type: ignore[union-attr]

        act = get(chain.act)
        call = graph.call_function(
            run_chain,
            (
                get(chain.conv),
                get(chain.norm),
                act,
                chain.conv.args[0],
                chain.residual,
                chain.adds_in_place,
                chain.activation if act is None else None,
            ),
        )
    chain.nodes[-1].replace_all_uses_with(call)
    for node in reversed(chain.nodes):
        graph.erase_node(node)


def _compile(graph: fx.Graph) -> Callable[..., Any]:
    for node in graph.nodes:
        node.type = None
        node.target = WRITES.get(node.target, node.target)
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, "<a forward with fused convolutions>", "exec"), scope)
    return scope["forward"]


def _list_inlined(module: nn.Module) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The containers that a trace of the module has unrolled, as _Fusion has them."""
    inlined = {}

    def add(part: nn.Module, path: str, runs: bool) -> None:
        inlined[path] = tuple(part._modules), runs
        for name, child in part._modules.items():
            if child is None:
                continue
            child_path = f"{path}.{name}" if path else name
            if _is_traced_through(child):
                add(child, child_path, True)
            elif isinstance(child, nn.ModuleList | nn.ModuleDict):
                add(child, child_path, False)

    add(module, "", False)
    return inlined
