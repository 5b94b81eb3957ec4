"""The tests of the simulator run in its threads, the reference for the lanes; with --exhaustive they run in both engines."""

import pytest

from minllm.sim import using_engine
from minllm.sim.engines import ENGINES


def pytest_generate_tests(metafunc):
    if metafunc.config.option.exhaustive and "/lanes/" not in str(metafunc.definition.path):
        metafunc.fixturenames.append("engine")
        metafunc.parametrize("engine", ENGINES, indirect=True)


@pytest.fixture(autouse=True)
def engine(request):
    """Simulations run in threads, or in the engine of the test's parameter or of its module's ENGINE."""
    with using_engine(getattr(request, "param", getattr(request.module, "ENGINE", "threads"))):
        yield
