"""A backend of torch.compile that lets convx compute the convolutions of a model that it wins, and
the graph pass in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._choices import check_policy
from ._ops import says_out_of_memory
from .measuring.case import Case, CaseTimes, time_case


def compile_backend(
    policy: str = "faster", *, seconds: float = 0.01, times: CaseTimes | None = None
) -> Callable[..., Any]:
    """Make a backend for torch.compile: Inductor, with convx for the convolutions it computes
    faster.

        compiled = torch.compile(model, backend=conv2d_ext.compile_backend())

    `backend="convx"` is the same by name. The model is not touched and needs no convert(). The
    backend replaces aten.convolution, and each gradient of it by itself, in the graphs that
    Inductor gets; there are no graph breaks. BatchNorm with fixed statistics, the addition of a
    residual and an activation behind a convolution of convx become one operator with it. Gradients
    whose sizes are dynamic stay as they are.

    While it compiles, the backend measures every distinct convolution of a graph, both ways, with
    dynamic sizes as in the example that is compiled for. Where Inductor would move a graph to
    channels_last, PyTorch's times there count, and a graph in which convx computes something keeps
    its memory format.

    Args:
        policy: "faster", or "all" for every convolution that convx can compute, without measuring.
        seconds: spent on each measurement.
        times: measures in place of the backend's own measurement: called with a case and a device,
            returns the milliseconds of convx and of PyTorch.

    Returns:
        The backend. torch.compile's `mode` and `options` are Inductor's.

    Raises:
        ValueError: for an unknown policy.
    """
    check_policy("convx.compile_backend", policy)
    times, name = _choose_rule(policy, seconds, times)

    def convx(
        graph: torch.fx.GraphModule,
        inputs: list[torch.Tensor],
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Any:
        # Imported here because it loads Inductor, which takes longer than the rest of the package.
        from ._graph_pass import compile_with_convx

        return compile_with_convx(graph, inputs, mode, options, times, name)

    return convx


def compile_pass(
    policy: str = "faster", *, seconds: float = 0.01, times: CaseTimes | None = None
) -> Any:
    """Make compile_backend()'s graph pass alone, for a program that configures Inductor itself.

        options = {"joint_custom_pre_pass": conv2d_ext.compile_pass()}
        compiled = torch.compile(model, options=options)
        package = torch._inductor.aoti_compile_and_package(program, inductor_configs=options)

    The pass also works as `post_grad_custom_post_pass`, and called with an exported program's graph
    after `run_decompositions()`. Unlike the backend, it cannot keep Inductor from moving the
    convolutions that PyTorch computes to channels_last: add `"layout_optimization": False`.

    Args:
        policy, seconds, times: those of compile_backend().

    Returns:
        A torch._inductor.custom_graph_pass.CustomGraphPass. Its uuid() keeps Inductor's files of
        compiled graphs right; with `times`, graphs are not kept in files.

    Raises:
        ValueError: for an unknown policy.
    """
    check_policy("convx.compile_pass", policy)
    from ._graph_pass import ConvPass  # loads Inductor

    return ConvPass(*_choose_rule(policy, seconds, times))


def _choose_rule(
    policy: str, seconds: float, times: CaseTimes | None
) -> tuple[CaseTimes, str | None]:
    """The times that decide, and the rule's name in Inductor's files of compiled graphs. Without a
    name, graphs are not kept in files."""
    if times is not None:
        return times, None
    return _pretend_faster if policy == "all" else _Measured(seconds), f"{policy} {seconds}"


def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **options: Any) -> Any:
    """The backend that torch.compile finds by the name "convx"."""
    return _default(graph, inputs, **options)


class _Measured:
    """Measures every case once, on random numbers that do not disturb the program's own."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.known: dict[tuple[Case, torch.device], tuple[float, float]] = {}

    def __call__(self, case: Case, device: torch.device) -> tuple[float, float]:
        if (case, device) not in self.known:
            self.known[case, device] = self._measure(case, device)
        return self.known[case, device]

    def _measure(self, case: Case, device: torch.device) -> tuple[float, float]:
        from torch.utils._python_dispatch import _disable_current_modes

        devices = [device] if device.type == "cuda" else []
        try:
            with _disable_current_modes(), torch.random.fork_rng(devices):
                return time_case(case, device, self.seconds)
        except RuntimeError as error:
            if not says_out_of_memory(error):
                raise
            return float("inf"), float("inf")  # no memory to find out: PyTorch's stays


def _pretend_faster(case: Case, device: torch.device) -> tuple[float, float]:
    return 0.0, 1.0


_default = compile_backend()
