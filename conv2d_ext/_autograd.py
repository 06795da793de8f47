"""Gradients of any order, in eager mode, under torch.func and under torch.compile.

Convolution is bilinear, so its three operators are closed under differentiation: every gradient
of one is one of the others with its operands exchanged.

    forward(x, w)       d/dx: input_grad(g, w)     d/dw: weight_grad(g, x)
    input_grad(g, w)    d/dg: forward(., w)        d/dw: weight_grad(g, .)
    weight_grad(g, x)   d/dg: forward(x, .)        d/dx: input_grad(g, .)

Each is an autograd.Function around a private operator. The operator has no autograd kernel, so that
calls without gradients pay for none, and compiled graphs hold private operators only. The Function
takes the operator's tensors and one tuple of the other arguments, because every argument of a
Function costs a call a fraction of a microsecond. The functions `forward`, `input_grad`,
`weight_grad` and `bias_grad` below pick the cheapest correct way: the operator itself, the
Function, or its twin for torch.func.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter

from . import _ops
from ._arguments import ConvParams, output_hw, parse_lists
from ._autocast import cast_operand, cast_parameter, cast_to, dtype_for
from ._checks import check_backward, check_ranks, is_zero
from ._layout import are_channels_last

_compiler = torch.compiler
_float32 = torch.float32
_is_mapped = torch._C._are_functorch_transforms_active
_unwrap = torch._C._functorch.unwrap_if_dead
_is_grad_enabled = torch.is_grad_enabled
_count_modes = torch._C._len_torch_dispatch_stack
_will_execute = torch._C._will_engine_execute_node


class _Leaf(tuple[Any, ...]):
    """A tuple that torch.func treats as one value. It looks for tensors inside plain tuples."""

    __slots__ = ()


class _ConvFunction(torch.autograd.Function):
    """A Function around the operator of `_ops` that `operator` names.

    torch.func wants forward and setup_context apart, but eager mode is several microseconds faster
    with both in one. Subclasses define `save`, and get both forms: it notes plain values for
    backward on the context, and returns the tensors to keep. jvp reads the first two tensors.
    """

    operator: str
    for_torch_func: type[torch.autograd.Function]
    record: Callable[..., Tensor]
    save: Callable[..., tuple[Tensor | None, ...]]

    @classmethod
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        operator, save = cls.operator, cls.save

        def compute(*inputs: Any) -> Tensor:
            return getattr(_ops, operator)(*inputs[:-1], *inputs[-1])

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:
            ctx.save_for_backward(*save(ctx, inputs))
            ctx.save_for_forward(*inputs[:-1][:2])

        def forward(ctx: Any, *inputs: Any) -> Tensor:
            # Two assignments replace save_for_backward(...) and set_materialize_grads(False), whose
            # frames would cost measurable time.
            if forward_ad._current_level < 0:
                ctx.to_save = save(ctx, inputs)
            else:
                setup_context(ctx, inputs, None)
            # Gradients and tangents that are zero come as None, and nothing is computed from them.
            ctx.materialize_grads = False
            return getattr(_ops, operator)(*inputs[:-1], *inputs[-1])

        if "forward" not in cls.__dict__:
            cls.forward = staticmethod(forward)  # type: ignore[method-assign]
        # Function.apply looks this up under a name that no cache of attributes knows, so it should
        # find it in the first class of the search.
        cls.setup_context = staticmethod(cls.setup_context)  # type: ignore[method-assign]
        # Function.apply ends in this call; its checks before that take three microseconds.
        cls.record = super(torch.autograd.Function, cls).apply  # type: ignore[misc]
        # The node's apply() would look for backward() and vjp() in every backward pass.
        cls._backward_cls.apply = cls.backward  # type: ignore[attr-defined]
        pieces = {
            "forward": staticmethod(compute),
            "setup_context": staticmethod(setup_context),
            "backward": staticmethod(cls.backward),
            "jvp": staticmethod(cls.jvp),
            "generate_vmap_rule": True,
        }
        cls.for_torch_func = type(cls.__name__ + "ForTorchFunc", (torch.autograd.Function,), pieces)


def _product_rule(
    product: Callable[[Tensor, Tensor], Tensor],
    operands: tuple[Tensor, Tensor],
    tangents: tuple[Tensor | None, Tensor | None],
) -> list[Tensor]:
    """The terms of a bilinear product's directional derivative; None is a tangent of zero."""
    (first, second), (first_t, second_t) = operands, tangents
    terms = []
    if first_t is not None:
        terms.append(product(first_t, second))
    if second_t is not None:
        terms.append(product(first, second_t))
    return terms


def _form(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def like_tensor(size: Sequence[int], stride: Sequence[int]) -> tuple[int, int, bool]:
    """Height, width and memory format of a gradient that belongs to a tensor of these sizes and
    strides. They are read when the gradient is computed, not when a call is recorded."""
    return size[2], size[3], are_channels_last(size, stride)


def find_asked(ctx: Any) -> Sequence[bool]:
    """Which gradients are used. They are fewer than needs_input_grad says if torch.autograd.grad or
    backward(inputs=...) asks for some tensors only. PyTorch's own nodes check the same."""
    needs: Sequence[bool] = ctx.needs_input_grad
    if sum(needs) < 2 or is_compiling() or _is_mapped():
        return needs
    used = list(needs)
    # There is one node for each tensor, and tensors are a Function's first arguments. The loop
    # calls nothing else, because every backward pass runs it.
    for i, (node, _) in enumerate(getattr(ctx, "next_functions", ())):
        if used[i]:
            try:
                used[i] = _will_execute(node)
            except RuntimeError:  # a leaf that is asked for, or the engine is not running
                used[i] = True
    return used


def _zeros(
    asked: Sequence[bool], sizes: Sequence[Sequence[int]], *of: Tensor | None
) -> list[Tensor | None]:
    """The gradients that are asked for where the input has no channels.

    All are empty or zero. They still depend on the operands, so that autograd can differentiate
    them again.
    """
    empty = [tensor for tensor in of if tensor is not None]
    zero = sum((tensor.sum() for tensor in empty[1:]), empty[0].sum())
    pairs = zip(asked, sizes, strict=False)
    return [zero + empty[0].new_zeros(size) if wanted else None for wanted, size in pairs]


def _add(terms: list[Tensor]) -> Tensor | None:
    return sum(terms[1:], terms[0]) if terms else None


class _Forward(_ConvFunction):
    operator = "forward"

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, params: Any
    ) -> Tensor:
        # The generated forward() without its slices and its search for the operator, and save() for
        # layers that are not the first one without its frame.
        ctx.params = params
        needs = ctx.needs_input_grad
        if needs[0] and needs[1]:
            ctx.to_save = input, weight
        else:
            ctx.to_save = _Forward.save(ctx, (input, weight, bias, params))
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(input, weight)
        ctx.materialize_grads = False
        return _ops.forward(input, weight, bias, *params)

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        input, weight, _, ctx.params = inputs
        needs = ctx.needs_input_grad
        if needs[0] and needs[1]:
            return input, weight
        ctx.of_input, ctx.of_weight = _form(input), _form(weight)
        return input if needs[1] else None, weight if needs[0] else None

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Any, ...]:
        if grad_output is None:
            return None, None, None, None
        input, weight = ctx.saved_tensors
        p = ctx.params
        if input is None or weight is None:
            of_input, of_weight = ctx.of_input, ctx.of_weight
        elif is_eager(grad_output):
            # Both tensors are saved if both gradients may be asked for. This is find_asked()
            # without its loop, because every layer's backward pass runs it.
            edges = ctx.next_functions
            try:
                needs_input, needs_weight = _will_execute(edges[0][0]), _will_execute(edges[1][0])
                needs_bias = ctx.needs_input_grad[2] and _will_execute(edges[2][0])
            except RuntimeError:
                needs_input, needs_weight, needs_bias, _ = find_asked(ctx)
            grad_input, grad_weight, grad_bias = _ops.gradients(
                grad_output, input, weight, needs_input, needs_weight, needs_bias, *p
            )
            return grad_input, grad_weight, grad_bias, None
        else:
            of_input, of_weight = _form(input), _form(weight)
            parameter = getattr(ctx, "parameter", None)
            if parameter is not None and _is_grad_enabled():
                weight = _CastOf.apply(parameter, weight)
        asked = needs_input, needs_weight, needs_bias, _ = find_asked(ctx)
        if is_zero(of_input[0][1]):
            sizes = of_input[0], of_weight[0], of_weight[0][:1]
            return (*_zeros(asked, sizes, grad_output, input, weight), None)
        return (
            input_grad(grad_output, weight, *like_tensor(*of_input), *p) if needs_input else None,
            weight_grad(grad_output, input, *like_tensor(*of_weight), *p) if needs_weight else None,
            bias_grad(grad_output) if needs_bias else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        input, weight = ctx.saved_tensors
        input_t, weight_t, bias_t, _ = tangents
        p = ctx.params

        def product(x: Tensor, w: Tensor) -> Tensor:
            return forward(x, w, None, *p)

        terms = _product_rule(product, (input, weight), (input_t, weight_t))
        if is_zero(input.shape[1]):
            return _add(terms) if terms else product(input, weight)
        if bias_t is not None:
            shift = bias_t[None, :, None, None]
            terms.append(shift if terms else shift.expand(output_shape(input, weight, *p)))
        return _add(terms)


class _ForwardOfParameters(_Forward):
    """`_Forward` under autocast. It casts float32 parameters itself, so the graph has no nodes for
    casts. The engine casts the parameters' gradients back to float32, as it does with any gradient
    that has another dtype than its tensor."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, params: Any
    ) -> Tensor:
        dtype = input.dtype
        cast = cast_parameter(weight, dtype)  # type: ignore[arg-type]
        if bias is not None:
            bias = cast_parameter(bias, dtype)  # type: ignore[arg-type]
        ctx.params = params
        ctx.parameter = weight
        if ctx.needs_input_grad[0]:
            ctx.to_save = input, cast
        else:
            ctx.to_save = _Forward.save(ctx, (input, cast, bias, params))
        ctx.materialize_grads = False
        return _ops.forward(input, cast, bias, *params)


class _CastOf(torch.autograd.Function):
    """The cast that a call has used, as a function of the parameter: gradients of gradients reach
    the parameter through it, also after the parameter has changed in place."""

    generate_vmap_rule = True

    @staticmethod
    def forward(parameter: Tensor, cast: Tensor) -> Tensor:
        return cast.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


class _InputGrad(_ConvFunction):
    operator = "input_grad"

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        grad_output, weight, rest = inputs
        ctx.input_like, ctx.params = rest[:3], rest[3:]
        return grad_output, weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None
        grad_output, weight = ctx.saved_tensors
        asked = needs_grad_output, needs_weight, _ = find_asked(ctx)
        p = ctx.params
        if is_zero(weight.shape[1]):
            sizes = grad_output.shape, weight.shape
            return (*_zeros(asked, sizes, grad, grad_output, weight), None)
        return (
            forward(grad, weight, None, *p) if needs_grad_output else None,
            weight_grad(grad_output, grad, *like_tensor(*_form(weight)), *p)
            if needs_weight
            else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        def product(first: Tensor, second: Tensor) -> Tensor:
            return input_grad(first, second, *ctx.input_like, *ctx.params)

        return _add(_product_rule(product, ctx.saved_tensors, tangents[:2]))


class _WeightGrad(_ConvFunction):
    operator = "weight_grad"

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        grad_output, input, rest = inputs
        ctx.weight_like, ctx.params = rest[:3], rest[3:]
        return grad_output, input

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        if grad is None:
            return None, None, None
        grad_output, input = ctx.saved_tensors
        needs_grad_output, needs_input, _ = find_asked(ctx)
        p = ctx.params
        return (
            forward(input, grad, None, *p) if needs_grad_output else None,
            input_grad(grad_output, grad, *like_tensor(*_form(input)), *p) if needs_input else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor | None:
        def product(first: Tensor, second: Tensor) -> Tensor:
            return weight_grad(first, second, *ctx.weight_like, *ctx.params)

        return _add(_product_rule(product, ctx.saved_tensors, tangents[:2]))


class _BiasGrad(_ConvFunction):
    operator = "bias_grad"

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        ctx.shape = inputs[0].shape
        return ()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        return None if grad is None else grad[None, :, None, None].expand(ctx.shape), None

    @staticmethod
    def jvp(ctx: Any, grad_output_t: Tensor, _: None) -> Tensor:
        return bias_grad(grad_output_t)


def is_plain(first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> bool:
    """Whether nobody will differentiate or map the result, so that the operator alone is enough."""
    if _is_mapped() or forward_ad._current_level >= 0:
        return False
    return not _is_grad_enabled() or not (
        first.requires_grad
        or (second is not None and second.requires_grad)
        or (third is not None and third.requires_grad)
    )


def is_eager(grad_output: Tensor) -> bool:
    """Whether a backward pass computes plain numbers: no graph is recorded or compiled, and nobody
    (torch.func, a dispatch mode, a subclass such as DTensor) wants to see the operators that have
    rules for it."""
    return not (
        is_dynamo_compiling()
        or _compiler._is_compiling_flag
        or _is_grad_enabled()
        or type(grad_output) is not Tensor
        or _count_modes()
        or _is_mapped()
        or forward_ad._current_level >= 0
    )


def _apply(function: type[_ConvFunction], tensors: Sequence[Tensor | None], rest: Any) -> Tensor:
    if _is_mapped():
        return function.for_torch_func.apply(*tensors, _Leaf(rest))
    if is_compiling():
        return function.apply(*tensors, rest)
    return function.record(*[_alive(t) for t in tensors], rest)


def _alive(tensor: Tensor | None) -> Tensor | None:
    """The tensor inside a wrapper that has outlived its transform of torch.func. Parameters wrap
    nothing; the check would take a third of a microsecond for each."""
    return tensor if tensor is None or type(tensor) is Parameter else _unwrap(tensor)


# The next four functions take the arguments of the private operator of the same name.


def forward(input: Tensor, weight: Tensor, bias: Tensor | None, *params: Any) -> Tensor:
    if is_plain(input, weight, bias):
        return _ops.forward(input, weight, bias, *params)
    return _apply(_Forward, (input, weight, bias), params)


def record_forward(input: Tensor, weight: Tensor, bias: Tensor | None, params: Any) -> Tensor:
    """`forward` for an eager call outside of torch.func that backward will differentiate."""
    # _alive() of each, without its frames.
    if type(input) is not Parameter:
        input = _unwrap(input)
    if type(weight) is not Parameter:
        weight = _unwrap(weight)
    if bias is not None and type(bias) is not Parameter:
        bias = _unwrap(bias)
    return _Forward.record(input, weight, bias, params)


def forward_in_autocast(input: Tensor, weight: Tensor, bias: Tensor | None, params: Any) -> Tensor:
    """`forward` for an eager call while autocast is on for some device."""
    dtype = dtype_for(input)
    if dtype is None:
        return forward(input, weight, bias, *params)
    if not _is_grad_enabled() and forward_ad._current_level < 0 and not _is_mapped():
        # is_plain() without its frame.
        return _ops.forward(*cast_to(dtype, input, weight, bias), *params)
    if input.dtype is not dtype:
        input = cast_operand(input, dtype, input.is_cuda)
    if (
        type(weight) is Parameter  # _is_castable_parameter() without its frame
        and weight.dtype is _float32
        and weight.requires_grad
        and (bias is None or _is_castable_parameter(bias))
        and input.dtype is dtype
        and _is_grad_enabled()
        and forward_ad._current_level < 0
        and not _is_mapped()
        and not _count_modes()
    ):
        if type(input) is not Parameter:
            input = _unwrap(input)
        return _ForwardOfParameters.record(input, weight, bias, params)
    return forward(*cast_to(dtype, input, weight, bias), *params)


def _is_castable_parameter(tensor: Tensor) -> bool:
    return type(tensor) is Parameter and tensor.dtype is _float32 and tensor.requires_grad


def input_grad(grad_output: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    if is_plain(grad_output, weight):
        return _ops.input_grad(grad_output, weight, *rest)
    return _apply(_InputGrad, (grad_output, weight), rest)


def weight_grad(grad_output: Tensor, input: Tensor, *rest: Any) -> Tensor:
    if is_plain(grad_output, input):
        return _ops.weight_grad(grad_output, input, *rest)
    return _apply(_WeightGrad, (grad_output, input), rest)


def bias_grad(grad_output: Tensor) -> Tensor:
    if is_plain(grad_output):
        return _ops.bias_grad(grad_output)
    return _apply(_BiasGrad, (grad_output,), ())


def output_shape(input: Tensor, weight: Tensor, *params: Any) -> list[int]:
    (n, _, h, w), (k, _, r, s) = input.shape, weight.shape
    return [n, k, *output_hw(h, w, r, s, ConvParams(*params))]


def _conv2d_autograd(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    p = parse_lists(*args, **kwargs)
    if input.dim() == 3:
        return forward(input.unsqueeze(0), weight, bias, *p).squeeze(0)
    return forward(input, weight, bias, *p)


def _conv2d_backward_autograd(
    grad_output: Tensor, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    *lists, output_mask = args
    check_ranks(grad_output, input)
    if input.dim() == 3:
        batch = grad_output.unsqueeze(0), input.unsqueeze(0)
        grad_input, grad_weight, grad_bias = _conv2d_backward_autograd(
            *batch, weight, *args, **kwargs
        )
        if grad_input is not None:
            grad_input = grad_input.squeeze(0)
        return grad_input, grad_weight, grad_bias
    p = parse_lists(*lists, **kwargs)
    check_backward(grad_output, input, weight, p)
    if is_zero(input.shape[1]):
        sizes = input.shape, weight.shape, weight.shape[:1]
        zeros = _zeros(output_mask, sizes, grad_output, input, weight)
        return zeros[0], zeros[1], zeros[2]
    input_like = like_tensor(input.shape, input.stride())
    weight_like = like_tensor(weight.shape, weight.stride())
    return (
        input_grad(grad_output, weight, *input_like, *p) if output_mask[0] else None,
        weight_grad(grad_output, input, *weight_like, *p) if output_mask[1] else None,
        bias_grad(grad_output) if output_mask[2] else None,
    )


def _conv2d_int(*args: Any, **kwargs: Any) -> Tensor:
    return _ops.conv2d(*args, **kwargs)


_library = torch.library.Library("convx", "IMPL")
# Without a fallthrough, the dispatcher would give every call to its kernel for operators without a
# gradient, which checks all arguments and warns. The Functions above compute the gradients.
for _name in ("", "_input_grad", "_weight_grad", "_bias_grad", "_gradients"):
    _library.impl("_conv2d" + _name, torch.library.fallthrough_kernel, "Autograd")
for _name, _kernel, _key in (
    ("conv2d", _conv2d_autograd, "Autograd"),
    ("conv2d.int", _conv2d_int, "CompositeImplicitAutograd"),
    ("conv2d_backward", _conv2d_backward_autograd, "Autograd"),
):
    _library.impl(_name, _kernel, _key)
    # This is torch.func's entry key. Its transforms see an autograd.Function, which they can
    # differentiate and map, before they would see the operator.
    _library.impl(_name, _kernel, "FuncTorchDynamicLayerFrontMode")
