"""Conv2d is an nn.Conv2d in everything but the engine."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import conv2d_ext

CONSTRUCTORS = {
    "plain": dict(in_channels=4, out_channels=6, kernel_size=3),
    "all numbers": dict(
        in_channels=4,
        out_channels=8,
        kernel_size=(3, 2),
        stride=(2, 1),
        padding=(1, 2),
        dilation=(1, 2),
        groups=2,
        bias=False,
    ),
    "same": dict(in_channels=4, out_channels=6, kernel_size=(2, 5), padding="same"),
    "same, dilated": dict(
        in_channels=4, out_channels=6, kernel_size=(4, 3), padding="same", dilation=(1, 2)
    ),
    "valid": dict(in_channels=4, out_channels=6, kernel_size=3, padding="valid"),
    "reflect": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=(2, 1), padding_mode="reflect"
    ),
    "replicate": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=2, padding_mode="replicate"
    ),
    "circular": dict(
        in_channels=4, out_channels=6, kernel_size=3, padding=(0, 2), padding_mode="circular"
    ),
    "circular, same": dict(
        in_channels=4, out_channels=6, kernel_size=(4, 3), padding="same", padding_mode="circular"
    ),
    "float64": dict(in_channels=4, out_channels=6, kernel_size=3, dtype=torch.float64),
}


# Both are float32, so neither is right to the last bit.
TOLERANCE = dict(rtol=1e-4, atol=1e-4)


def make_pair(arguments: dict) -> tuple[nn.Conv2d, conv2d_ext.Conv2d]:
    torch.manual_seed(0)
    theirs = nn.Conv2d(**arguments)
    torch.manual_seed(0)
    return theirs, conv2d_ext.Conv2d(**arguments)


@pytest.mark.parametrize("arguments", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_is_an_nn_conv2d(arguments: dict) -> None:
    theirs, ours = make_pair(arguments)
    assert isinstance(ours, nn.Conv2d)
    assert repr(ours) == repr(theirs)
    for (name, value), (our_name, our_value) in zip(
        theirs.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        assert name == our_name
        assert torch.equal(value, our_value)  # the same initialisation from the same seed

    x = torch.randn(2, 4, 9, 10, dtype=theirs.weight.dtype)
    x_ours = x.clone().requires_grad_()
    x_theirs = x.clone().requires_grad_()
    y_ours, y_theirs = ours(x_ours), theirs(x_theirs)
    torch.testing.assert_close(y_ours, y_theirs, **TOLERANCE)
    g = torch.randn_like(y_theirs)
    y_ours.backward(g)
    y_theirs.backward(g)
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, **TOLERANCE)
    for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours_p.grad, theirs_p.grad, **TOLERANCE)


BAD_ARGUMENTS = {
    "in_channels must be divisible by groups": dict(groups=3),
    "Invalid padding string": dict(padding="nowhere"),
    "padding='same' is not supported for strided": dict(stride=2, padding="same"),
    "padding_mode must be one of": dict(padding_mode="mirror"),
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_bad_constructor_arguments_raise_what_nn_conv2d_raises(message: str) -> None:
    for layer in (nn.Conv2d, conv2d_ext.Conv2d):
        with pytest.raises(ValueError, match=message):
            layer(4, 6, 3, **BAD_ARGUMENTS[message])


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_four_sided_padding(mode: str) -> None:
    layer = conv2d_ext.Conv2d(2, 3, 3, padding=(1, 2, 0, 3), padding_mode=mode)
    x = torch.randn(1, 2, 6, 7)
    pad_mode = "constant" if mode == "zeros" else mode
    padded = nn.functional.pad(x, (0, 3, 1, 2), mode=pad_mode)
    expected = nn.functional.conv2d(padded, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)


def test_unbatched_input() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["plain"])
    x = torch.randn(4, 8, 9)
    torch.testing.assert_close(ours(x), theirs(x))


def test_state_dict_loads_both_ways() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["all numbers"])
    nn.init.zeros_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    assert not ours.weight.any()
    nn.init.ones_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.weight.all()


def test_deepcopy_and_pickle_keep_settings() -> None:
    layer = conv2d_ext.Conv2d(4, 6, 3, precision="tf32", algorithm="cpu_direct")
    x = torch.randn(1, 4, 5, 5)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        assert (other.precision, other.algorithm) == ("tf32", "cpu_direct")
        assert torch.equal(other(x), layer(x))
    assert "precision=tf32" in repr(layer)
    assert "algorithm=cpu_direct" in repr(layer)


def test_algorithm_reaches_the_operator() -> None:
    layer = conv2d_ext.Conv2d(4, 6, 3, algorithm="no such engine")
    with pytest.raises(RuntimeError, match="no such engine"):
        layer(torch.randn(1, 4, 5, 5))


def test_lazy_becomes_ours() -> None:
    layer = conv2d_ext.LazyConv2d(6, 3)
    layer(torch.randn(1, 4, 5, 5))
    assert type(layer) is conv2d_ext.Conv2d
    assert layer.weight.shape == (6, 4, 3, 3)


def test_torch_compile_of_a_module() -> None:
    theirs, ours = make_pair(CONSTRUCTORS["reflect"])
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 4, 9, 10)
    torch.testing.assert_close(compiled(x), theirs(x))
