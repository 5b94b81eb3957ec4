"""Fixtures of the tests of operations."""

import pytest

from minllm import sim


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels that the test simulates."""
    names, simulate = [], sim.simulate

    def counted(kernel, *arguments, **options):
        names.append(kernel.__name__)
        simulate(kernel, *arguments, **options)

    monkeypatch.setattr(sim, "simulate", counted)
    return names
