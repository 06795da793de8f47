"""One text form of a shape serves messages, the command line, tests and benchmarks."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import CASES, Case

import conv2d_ext
from conv2d_ext._shape import DTYPE_NAMES, Shape
from conv2d_ext.bench.shapes import find_shape, load_suite, suite_names
from conv2d_ext.explain import explain_shape

PRESETS = {"seed", "kernelbench", "resnet50", "convnext", "mobilenet", "unet", "replknet"}


def shape_of(case: Case) -> Shape:
    return Shape.of_call(case.x, case.w, case.stride, case.pad4, case.dilation, case.groups)


@pytest.mark.parametrize(
    "text",
    [
        "n8c32h512w512 k64r5s9",
        "n1c4h6w7 k4r3s3 pad1,0,2,1",
        "n2c6h9w9 k4r3s1 stride2x1 pad1,1,0,0 dilation1x3 groups2",
        "n2c6h9w9 k4r3s1 groups2 bfloat16",
    ],
)
def test_text_round_trip(text: str) -> None:
    assert Shape.parse(text).text == text


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_the_librarys_text_is_the_same_form(dtype: str) -> None:
    """The text that the compiled core writes parses to the same shape and dtype."""
    shapes = [shape_of(case) for case in CASES]
    shapes += [shape for suite in suite_names() for shape in load_suite(suite)]
    for shape in shapes:
        written = explain_shape(shape, dtype=getattr(torch, dtype)).problem
        read = Shape.parse(written, shape.name)
        assert (read.text, read.dtype) == (f"{shape.text} {dtype}", dtype)
        assert Shape.parse(read.text.removesuffix(f" {dtype}"), shape.name) == shape


def test_a_message_can_be_pasted_back() -> None:
    problem = conv2d_ext.explain((1, 2, 5, 6), (3, 2, 2, 2), stride=(1, 2)).problem
    assert find_shape(problem) == Shape(
        1, 2, 5, 6, 3, 2, 2, stride=(1, 2), name=problem, dtype="float32"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("n1c2h3w4", "does not say K, R, S"),
        ("n1c2h3w4 k1r1s1 stride2", "cannot read 'stride2'"),
        ("n1c2h3w4 k1r1s1 int8", "cannot read 'int8'"),
        ("hello", "no suite has a shape of that name"),
        ("cpu/seed80", "no suite has a shape of that name"),
    ],
)
def test_unreadable_shapes(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        find_shape(text)


def test_presets_exist_and_can_be_computed() -> None:
    assert set(suite_names()) >= PRESETS
    for suite in suite_names():
        for shape in load_suite(suite):
            assert Shape.parse(shape.text, shape.name) == shape
            assert explain_shape(shape).engine, shape.name


def test_names_find_their_shapes() -> None:
    assert find_shape("full/rn_56_3x3").N == 64
    assert find_shape("cpu/rn_56_3x3").N == 4
    for suite in suite_names():
        for shape in load_suite(suite):
            assert find_shape(f"{suite}/{shape.name}").text == shape.text
    for preset in PRESETS:  # whose names need no suite in front
        for shape in load_suite(preset):
            assert find_shape(shape.name) == shape


def test_arithmetic() -> None:
    shape = find_shape("seed80")
    assert (shape.P, shape.Q) == (508, 496)
    assert round(shape.flops / 1e9, 1) == 371.5
    assert round(shape.elements * 4 / 1e6) == 785
    assert shape.with_batch(1).flops * 8 == shape.flops


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_least_work_is_what_the_definition_needs(case: Case) -> None:
    """Counted element by element along both axes."""
    shape = shape_of(case)
    met = [
        (h, v, r, s, p, q)
        for p, r in itertools.product(range(shape.P), range(shape.R))
        for q, s in itertools.product(range(shape.Q), range(shape.S))
        if 0 <= (h := p * shape.stride[0] - shape.pad[0] + r * shape.dilation[0]) < shape.H
        and 0 <= (v := q * shape.stride[1] - shape.pad[2] + s * shape.dilation[1]) < shape.W
    ]
    channels = shape.C // shape.groups
    assert shape.least_flops == 2 * shape.N * shape.K * channels * len(met)
    x = shape.N * shape.C * len({(h, v) for h, v, *_ in met})
    w = shape.K * channels * len({(r, s) for _, _, r, s, _, _ in met})
    y = shape.N * shape.K * len({(p, q) for *_, p, q in met})
    whole_x, whole_w = shape.N * shape.C * shape.H * shape.W, shape.K * channels * shape.R * shape.S
    assert shape.least_elements("fwd") == x + w + shape.N * shape.K * shape.P * shape.Q
    assert shape.least_elements("dgrad") == whole_x + w + y
    assert shape.least_elements("wgrad") == x + whole_w + y


def test_a_strided_1x1_layer_reads_a_quarter_of_its_input() -> None:
    shape = Shape.parse("n2c8h6w6 k4r1s1 stride2x2")
    assert shape.least_elements("fwd") == 2 * 8 * 9 + 8 * 4 + 2 * 4 * 9
    assert shape.least_elements("dgrad") == 2 * 8 * 36 + 8 * 4 + 2 * 4 * 9


def test_of_a_call() -> None:
    case = next(case for case in CASES if case.name == "four_sided_padding_strided")
    shape = shape_of(case)
    assert case.y == (shape.N, shape.K, shape.P, shape.Q)
    assert shape.C // shape.groups == case.w[1]
