"""The named shapes of the benchmark: its presets, and the layers of real networks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files

from .._shape import Shape

# The layers of networks.json are a preset with both batches, and one preset for each.
NETWORK_BATCHES = (1, 32)
NETWORK_PRESETS = ("models", *(f"models_{batch}" for batch in NETWORK_BATCHES))


@cache
def _network_layers() -> dict[str, dict[str, int]]:
    """The distinct convolutions of real networks, which .github/scripts/list_layers.py wrote.

    A key is the shape's text for one image. Its value says how often each network computes that
    layer in a forward pass.
    """
    return json.loads((files(__package__) / "networks.json").read_text())["layers"]


def networks_of(shape: Shape) -> dict[str, int]:
    """The networks that have a layer, for any number of images, and how often each computes it."""
    return dict(_network_layers().get(replace(shape, N=1, dtype="").text, {}))


@cache
def _suites() -> dict[str, dict[str, str]]:
    suites = json.loads((files(__package__) / "suites.json").read_text())
    both, *single = NETWORK_PRESETS
    suites[both] = {}
    for preset, batch in zip(single, NETWORK_BATCHES, strict=True):
        texts = [f"n{batch}{text.removeprefix('n1')}" for text in _network_layers()]
        suites[preset] = {text: text for text in texts}
        suites[both] |= suites[preset]
    return suites


def suite_names() -> list[str]:
    return list(_suites())


def load_suite(name: str) -> list[Shape]:
    return [Shape.parse(text, shape_name) for shape_name, text in _suites()[name].items()]


def find_shape(text: str) -> Shape:
    """A shape by its name in a suite, by "suite/name" where suites share it, or by its text."""
    suite, slash, name = text.rpartition("/")
    for candidate, shapes in _suites().items():
        if name in shapes and (not slash or candidate == suite):
            return Shape.parse(shapes[name], text)
    try:
        return Shape.parse(text, text)
    except ValueError as error:
        raise ValueError(f"{error}, and no suite has a shape of that name") from None
