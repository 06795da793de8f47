"""The CUDA engines, each forced by name, on the same cases as the CPU's."""

import pytest
from engine_tester import EngineTester, parametrize_engines

pytest_generate_tests = parametrize_engines


@pytest.mark.gpu
class TestCudaEngines(EngineTester):
    device = "cuda"
