"""What commands about a whole model take: the model, and its inputs."""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from typing import Any

import torch
from torch import Tensor, nn

from .._user_error import UserError
from ..bench.measure import LAYOUTS
from ..bench.shapes import DTYPES
from .options import add_device, dtype_named


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODULE:FACTORY",
        help="torchvision.models:resnet50, or a call: \"timm:create_model('convnext_tiny')\"",
    )
    parser.add_argument(
        "--input",
        type=_size,
        action="append",
        required=True,
        help="size of the input, such as 1,3,224,224; once for each input",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--layout", choices=LAYOUTS, default="nchw")
    add_device(parser)


def make_model(arguments: argparse.Namespace) -> tuple[nn.Module, list[Tensor]]:
    """The model and random inputs, on the device, in the dtype and memory format asked for."""
    last = arguments.layout == "nhwc"
    memory_format = torch.channels_last if last else torch.contiguous_format
    dtype = dtype_named(arguments.dtype)
    model = load_model(arguments.model).to(arguments.device, dtype)
    if last:
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
    inputs = [torch.randn(size, device=arguments.device, dtype=dtype) for size in arguments.input]
    inputs = [
        value.contiguous(memory_format=memory_format) if value.dim() == 4 else value
        for value in inputs
    ]
    return model, inputs


def _size(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None


def load_model(text: str) -> nn.Module:
    """A model by "package.module:name", by the name of a function that makes it, or by a call of
    one with literal arguments."""
    module_name, colon, expression = text.partition(":")
    if not colon or not module_name or not expression:
        raise UserError(f"{text!r} is not of the form MODULE:FACTORY")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a file in the current folder is a module too
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"cannot import {module_name!r}: {error}") from error
    name, args, kwargs = _parse_call(expression)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise UserError(f"{module_name!r} has no {name!r}")
        target = getattr(target, part)
    made = target if isinstance(target, nn.Module) else target(*args, **kwargs)
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
