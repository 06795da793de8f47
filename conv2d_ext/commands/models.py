"""The options of commands about a whole model: the model and its inputs."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._ops import says_out_of_memory
from .._precision import dtype_of
from .._user_error import UserError
from .options import add_device, add_dtype, add_layout, add_precision, dtype_named, positive_int

Result = TypeVar("Result")


def add_model(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """`model`, `precision` and `layout` are lists if there may be several."""
    parser.add_argument(
        "model",
        nargs="+" if several else None,
        metavar="MODULE:FACTORY",
        help="torchvision.models:resnet50, or a call: \"timm:create_model('convnext_tiny')\"",
    )
    parser.add_argument(
        "--input",
        type=_size,
        action="append",
        required=True,
        metavar="N,C,H,W",
        help="size of the input, such as 1,3,224,224; once for each input",
    )
    add_precision(
        parser, several=several, default="float32 by PyTorch's settings: tf32 on a GPU, else ieee"
    )
    add_dtype(parser)
    add_layout(parser, several)
    add_device(parser)


@contextmanager
def model_precision(arguments: argparse.Namespace) -> Iterator[None]:
    """Lets float32 convolutions round to TF32, or not, as --precision says."""
    if arguments.precision not in ("ieee", "tf32"):
        yield
        return
    cudnn, allow = torch.backends.cudnn, arguments.precision == "tf32"
    with cudnn.flags(enabled=cudnn.enabled, benchmark=cudnn.benchmark, allow_tf32=allow):
        yield


def model_dtype(arguments: argparse.Namespace) -> torch.dtype:
    if arguments.precision and arguments.dtype:
        raise UserError("--precision says the dtype already: leave out --dtype")
    if arguments.dtype:
        return dtype_named(arguments.dtype)
    return dtype_of(arguments.precision or "ieee")


def make_model(arguments: argparse.Namespace) -> tuple[nn.Module, list[Tensor]]:
    """The model and random inputs, on the device, in the dtype and memory format asked for."""
    last = arguments.layout == "nhwc"
    memory_format = torch.channels_last if last else torch.contiguous_format
    dtype = model_dtype(arguments)
    model = load_model(arguments.model).to(arguments.device, dtype)
    if last:
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
    inputs = [torch.randn(size, device=arguments.device, dtype=dtype) for size in arguments.input]
    inputs = [
        value.contiguous(memory_format=memory_format) if value.dim() == 4 else value
        for value in inputs
    ]
    return model, inputs


def run_model(run: Callable[[], Result]) -> Result:
    """The result of run(). An error in the model, most often an input of the wrong size, becomes a
    UserError; out of memory stays as it is."""
    try:
        return run()
    except UserError:
        raise
    except Exception as error:
        if says_out_of_memory(error):
            raise
        raise UserError(f"the model fails on these inputs: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"


def _size(text: str) -> tuple[int, ...]:
    try:
        return tuple(positive_int(word) for word in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers") from None


def load_model(text: str) -> nn.Module:
    """A model by "package.module:name", by the name of a function that makes it, or by a call of
    one with literal arguments."""
    module_name, colon, expression = text.partition(":")
    if not colon or not module_name or not expression:
        raise UserError(f"{text!r} is not of the form MODULE:FACTORY")
    name, args, kwargs = _parse_call(expression)
    if "" not in sys.path:
        sys.path.insert(0, "")  # a file in the current folder is a module too
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:  # the module's code may raise anything
        raise UserError(f"cannot import {module_name!r}: {_reason(error)}") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise UserError(f"{module_name!r} has no {name!r}")
        target = getattr(target, part)
    made = target
    if not isinstance(target, nn.Module) and callable(target):
        try:
            made = target(*args, **kwargs)
        except Exception as error:
            raise UserError(f"cannot make {text!r}: {_reason(error)}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{text!r} is a {type(made).__name__}, not a torch.nn.Module")
    return made


def _parse_call(expression: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name and literal arguments: scan runs a model's code, but no code from its command line."""
    try:
        tree = ast.parse(expression, mode="eval").body
        if not isinstance(tree, ast.Call):
            return expression, [], {}
        args = [ast.literal_eval(argument) for argument in tree.args]
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords if k.arg}
        return ast.unparse(tree.func), args, kwargs
    except (SyntaxError, ValueError) as error:
        raise UserError(f"cannot read {expression!r}: a name, or a call with literals") from error
