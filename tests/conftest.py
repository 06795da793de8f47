"""Devices, skips and threads for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device that torch can use")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that the package has kernels for."""
    return request.param


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """No test sees another's random numbers, thread count or default dtype."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """No compiled code from other tests, whose number is limited, and none left behind."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
