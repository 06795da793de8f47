"""Tests that need a GPU: streams, graphs, memory, precision, size."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import conv2d_ext
from conv2d_ext._shape import PASSES, Shape
from conv2d_ext.bench.reference import sampled_error
from conv2d_ext.bench.shapes import find_shape, load_suite
from conv2d_ext.explain import explain_shape
from conv2d_ext.measuring.case import Case, Operands, torch_precision

pytestmark = pytest.mark.gpu

PASS_NAMES = {"fwd": "forward", "dgrad": "input_grad", "wgrad": "weight_grad"}
SMALL = Shape.parse("n4c24h40w44 k40r3s5 stride2x1 pad1,2,0,3 dilation1x2 groups2")


def engine_names() -> list[str]:
    explanation = conv2d_ext.explain((1, 8, 9, 9), (8, 8, 3, 3), device="cuda")
    return [candidate.name for candidate in explanation.candidates]


@pytest.fixture(params=["cuda_pixels", "cuda_lines", "cuda_gemm", "cuda_direct"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_engines_are_these() -> None:
    assert engine_names() == [
        "cuda_pixels",
        "cuda_lines",
        "cuda_boxes",
        "cuda_mma",
        "cuda_pointwise",
        "cuda_grouped",
        "cuda_diagonal",
        "cuda_depthwise",
        "cuda_bands",
        "cuda_phases",
        "cuda_col2im",
        "cuda_weight_grad",
        "cuda_gemm",
        "cuda_direct",
    ]


def operands_of(shape: Shape, direction: str, engine: str, precision: str = "ieee") -> Operands:
    """Skips the test where the engine refuses the problem; the engines' own tests check that."""
    operands = Operands(Case(shape, direction, precision, "nchw", engine), torch.device("cuda"))
    said = explain_shape(
        shape, direction=PASS_NAMES[direction], dtype=operands.x.dtype, device="cuda"
    )
    refusal = next(c.refusal for c in said.candidates if c.name == engine)
    if refusal:
        pytest.skip(f"{engine} refuses: {refusal}")
    return operands


@pytest.fixture(autouse=True)
def release_memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("shape", load_suite("seed"), ids=lambda shape: shape.name)
@pytest.mark.parametrize("direction", PASSES)
def test_full_size_workloads_are_as_accurate_as_cudnn(shape: Shape, direction: str) -> None:
    """In ieee precision, at most twice the error of cuDNN's strict float32."""
    operands = Operands(Case(shape, direction, "ieee", "nchw"), torch.device("cuda"))
    tensors = operands.x, operands.w, operands.g
    with torch_precision("ieee"):
        ours = sampled_error(direction, shape, operands.ours(), *tensors)
        theirs = sampled_error(direction, shape, operands.theirs(), *tensors)
    assert ours <= 2 * theirs
    assert theirs < 1e-5


@pytest.mark.parametrize("direction", PASSES)
def test_tf32_only_where_it_is_asked_for(direction: str) -> None:
    shape = find_shape("n2c64h32w32 k64r3s3 pad1,1,1,1")
    errors = {}
    for precision in ("ieee", "tf32"):
        operands = Operands(
            Case(shape, direction, precision, "nchw", "cuda_gemm"), torch.device("cuda")
        )
        tensors = operands.x, operands.w, operands.g
        errors[precision] = sampled_error(direction, shape, operands.ours(), *tensors)
    assert errors["ieee"] < 2e-6
    assert 5e-5 < errors["tf32"] < 2e-3


def test_autocast_to_float32_follows_it_too() -> None:
    x = torch.randn(2, 64, 32, 32, device="cuda").half()
    w = torch.randn(64, 64, 3, 3, device="cuda")
    said = {p: conv2d_ext.conv2d(x.float(), w, precision=p) for p in ("ieee", "tf32")}
    with torch_precision("tf32"), torch.autocast("cuda", dtype=torch.float32):
        got = conv2d_ext.conv2d(x, w)
    assert torch.equal(got, said["tf32"])
    assert not torch.equal(got, said["ieee"])


def test_the_function_follows_pytorchs_switch() -> None:
    x, w = torch.randn(2, 64, 32, 32, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = F.conv2d(x.double(), w.double())
    compiled = torch.compile(conv2d_ext.conv2d, fullgraph=True, backend="aot_eager")

    def error(conv) -> float:
        y = conv(x, w, algorithm="cuda_gemm").double()
        return ((y - exact).norm() / exact.norm()).item()

    for conv in (conv2d_ext.conv2d, compiled, conv2d_ext.conv2d, compiled):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
            assert error(conv) > 5e-5
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            assert error(conv) < 2e-6


def test_without_cudnn_the_function_follows_matrix_products() -> None:
    x, w = torch.randn(2, 64, 32, 32, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = F.conv2d(x.double(), w.double())
    compiled = torch.compile(conv2d_ext.conv2d, fullgraph=True, backend="aot_eager")
    before = torch.backends.cuda.matmul.allow_tf32

    def error(conv) -> float:
        y = conv(x, w).double()
        return ((y - exact).norm() / exact.norm()).item()

    try:
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=True):
            for allowed in (True, False):
                torch.backends.cuda.matmul.allow_tf32 = allowed
                for conv in (F.conv2d, conv2d_ext.conv2d, compiled):
                    assert (error(conv) > 5e-5) == allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_cublas_math_mode_is_left_as_it_was() -> None:
    a = torch.randn(512, 512, device="cuda")
    exact = a.double() @ a.double()
    x, w = torch.randn(2, 64, 32, 32, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    torch.ops.convx.conv2d(x, w, precision="tf32", algorithm="cuda_gemm")
    error = ((a @ a).double() - exact).norm() / exact.norm()
    assert error < 1e-6


@pytest.mark.parametrize("direction", PASSES)
def test_ten_runs_give_the_same_bits(engine: str, direction: str) -> None:
    for precision in ("ieee", "bf16"):
        operands = operands_of(SMALL, direction, engine, precision)
        first = operands.ours()
        for _ in range(9):
            assert torch.equal(operands.ours(), first)


@pytest.mark.parametrize("direction", PASSES)
def test_graph_capture_and_replay(engine: str, direction: str) -> None:
    operands = operands_of(SMALL, direction, engine)
    operands.ours()  # plans and loads before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = operands.ours()
    for tensor in (operands.x, operands.w, operands.g):
        tensor.normal_()
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, operands.ours())


def test_graph_of_a_whole_training_step() -> None:
    layer = conv2d_ext.Conv2d(24, 32, 3, padding=1, device="cuda")
    x = torch.randn(4, 24, 20, 20, device="cuda")

    def step() -> torch.Tensor:
        layer.zero_grad(set_to_none=False)
        loss = layer(x).square().mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    x.normal_()
    graph.replay()
    captured = loss.item(), layer.weight.grad.clone(), layer.bias.grad.clone()
    again = step()
    assert captured[0] == again.item()
    assert torch.equal(captured[1], layer.weight.grad)
    assert torch.equal(captured[2], layer.bias.grad)


@pytest.mark.parametrize("direction", PASSES)
def test_two_streams_do_not_disturb_each_other(engine: str, direction: str) -> None:
    """Each stream's work waits behind a long kernel of its own, so they overlap."""
    shape = find_shape("n8c64h64w64 k64r3s3 pad1,1,1,1")
    pairs = [operands_of(shape, direction, engine) for _ in range(2)]
    expected = [operands.ours() for operands in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    results: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
    for _ in range(5):
        for stream, operands, result in zip(streams, pairs, results, strict=True):
            with torch.cuda.stream(stream):
                result.append(operands.ours())
    torch.cuda.synchronize()
    for result, want in zip(results, expected, strict=True):
        for got in result:
            assert torch.equal(got, want)


def test_calls_do_not_wait_for_the_device() -> None:
    operands = Operands(Case(SMALL, "fwd", "ieee", "nchw"), torch.device("cuda"))
    operands.ours()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    marker = torch.cuda.Event()
    operands.ours()
    marker.record()
    assert not marker.query()  # still behind the sleep: nothing above waited
    torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_device_than_the_current_one() -> None:
    x, w = torch.randn(2, 8, 9, 9, device="cuda:1"), torch.randn(8, 8, 3, 3, device="cuda:1")
    with torch.cuda.device(0):
        y = torch.ops.convx.conv2d(x, w)
    assert y.device == x.device
    torch.testing.assert_close(y.cpu(), F.conv2d(x.cpu(), w.cpu()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", PASSES)
def test_peak_memory_is_the_stated_workspace(engine: str, direction: str) -> None:
    shape = find_shape("n8c64h256w256 k64r3s3 pad1,1,1,1")
    operands = operands_of(shape, direction, engine)
    stated = json.loads(
        torch.ops.convx._explain_cuda(
            PASS_NAMES[direction],
            "float32",
            operands.x.shape,
            operands.x.stride(),
            operands.w.shape,
            operands.w.stride(),
            [],
            False,
            [1, 1],
            [1, 1, 1, 1],
            [1, 1],
            1,
            "ieee",
            engine,
            0,
        )
    )
    workspace = next(c["workspace_bytes"] for c in stated["candidates"] if c["name"] == engine)
    assert workspace <= 256 << 20
    operands.ours()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = operands.ours()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before - result.numel() * 4
    assert extra <= workspace + (1 << 20)  # the allocator rounds up


def test_a_weight_gradient_takes_no_memory_for_tensors_at_other_addresses() -> None:
    """TMA reads aligned tensors in place; others are packed, which takes 64 MB here."""
    x, dy = (torch.randn(16, channels, 56, 56, device="cuda") for channels in (64, 256))
    w = torch.empty(256, 64, 1, 1, device="cuda")
    lists = [1, 1], [0, 0], [1, 1], 1, [False, True, False]

    def extra(x: torch.Tensor) -> int:
        torch.ops.convx.conv2d_backward(dy, x, w, *lists, precision="tf32")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        torch.ops.convx.conv2d_backward(dy, x, w, *lists, precision="tf32")
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - start

    apart = torch.empty(x.numel() + 1, device="cuda")[1:].view_as(x).copy_(x)
    assert extra(x) < 16 << 20 < extra(apart)


def test_the_workspace_limit_is_a_setting(engine: str) -> None:
    shape = find_shape("n4c64h128w128 k64r5s5 pad2,2,2,2")
    operands = operands_of(shape, "fwd", engine)
    expected = operands.ours()
    before = conv2d_ext.set_cuda_workspace_limit(16 << 20)
    try:
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        result = operands.ours()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - start - result.numel() * 4
        assert extra <= (16 << 20) + (1 << 20)
    finally:
        assert conv2d_ext.set_cuda_workspace_limit(before) == 16 << 20
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="at least 1 MiB"):
        conv2d_ext.set_cuda_workspace_limit(0)


def test_short_memory_means_less_workspace_not_failure(engine: str) -> None:
    shape = find_shape("n4c64h256w256 k64r3s3 pad1,1,1,1")
    operands = operands_of(shape, "wgrad", engine)
    expected = operands.ours()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    used = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + (4 << 20)) / total)
    try:
        result = operands.ours()
    except torch.OutOfMemoryError:
        pytest.fail("gave up instead of taking less")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-1)


def test_an_output_too_large_for_the_device_is_out_of_memory() -> None:
    x = torch.zeros(1, 1, 1, 1, device="cuda").expand(64, 1, 4096, 4096)
    w = torch.randn(1024, 1, 1, 1, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="convx"):
        conv2d_ext.conv2d(x, w)


LARGE = Shape.parse("n3c4h16384w16384 k3r3s1 pad1,1,0,0", "more than 2^31 elements")


@pytest.mark.slow
@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_more_than_two_to_the_31_elements(direction: str, layout: str) -> None:
    assert LARGE.N * LARGE.C * LARGE.H * LARGE.W > 2**31
    for name in engine_names():
        operands = Operands(Case(LARGE, direction, "bf16", layout, name), torch.device("cuda"))
        try:
            result = operands.ours()
        except RuntimeError as error:
            assert "cannot run this problem" in str(error)  # noqa: PT017
            continue
        tensors = operands.x, operands.w, operands.g
        assert sampled_error(direction, LARGE, result, *tensors) < 1e-2
        del operands, result, tensors
        torch.cuda.empty_cache()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "text", "layout"),
    [
        ("cuda_depthwise", "n3c4h16384w16384 k4r3s3 pad1,1,1,1 groups4", "nchw"),
        ("cuda_depthwise", "n3c4h16384w16384 k4r3s3 pad1,1,1,1 groups4", "nhwc"),
        ("cuda_bands", "n3c4h16384w16384 k4r5s13 pad2,2,6,6 groups4", "nchw"),
        ("cuda_diagonal", "n3c4h16384w16384 k4r3s3 pad1,1,1,1 groups2", "nhwc"),
        ("cuda_grouped", "n3c4h16384w16384 k4r3s3 pad1,1,1,1 groups2", "nchw"),
        ("cuda_boxes", "n3c4h16384w16384 k4r1s1", "nchw"),
        ("cuda_boxes", "n3c4h16385w16383 k4r1s1", "nchw"),  # planes begin anywhere
    ],
)
def test_layers_of_more_than_two_to_the_31_elements(engine: str, text: str, layout: str) -> None:
    shape = Shape.parse(text)
    case = Case(shape, "fwd", "bf16", layout, engine)
    operands = Operands(case, torch.device("cuda"))
    tensors = operands.x, operands.w, operands.g
    assert sampled_error("fwd", shape, operands.ours(), *tensors) < 1e-2
