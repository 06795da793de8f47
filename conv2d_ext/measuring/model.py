"""Running a whole model for a measurement: its device, one step, and its state left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from .._user_error import UserError


def find_device(model: nn.Module, *inputs: Any) -> torch.device:
    """The device of the inputs, or of the model's parameters."""
    return next((t.device for t in _tensors(model, inputs)), torch.device("cpu"))


def _tensors(model: nn.Module, inputs: Sequence[Any]) -> Iterator[Tensor]:
    yield from (value for value in inputs if isinstance(value, Tensor))
    yield from model.parameters()


def run_step(
    model: nn.Module, args: Sequence[Any], keywords: Mapping[str, Any], train: bool
) -> None:
    """One inference step, or one training step: forward, and backward of the mean square over all
    outputs, wherever the model puts them."""
    with torch.set_grad_enabled(train):
        if not train:
            model(*args, **keywords)
            return
        model.zero_grad(set_to_none=True)
        leaves = pytree.tree_leaves(model(*args, **keywords))
        useful = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not useful:
            raise UserError("no output of the model has a gradient, so it has no training step")
        torch.stack([output.float().square().mean() for output in useful]).sum().backward()


@contextmanager
def unchanged(model: nn.Module, train: bool, device: torch.device) -> Iterator[None]:
    """Lets a model run eagerly, in training mode or not, and restores its modes, buffers and
    gradients and the generators of random numbers.

    Parameters keep their values, because no optimizer runs.
    """
    modes = [(module, module.training) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        stack.enter_context(torch.inference_mode(False))
        if model.training is not train:  # layers frozen one by one stay frozen if the mode is right
            model.train(train)
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, value in values:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
