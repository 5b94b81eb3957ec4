"""A time limit for tests that hang inside a call of the driver, which pytest-timeout cannot interrupt: Python handles no signal there.

GRACE_SECONDS after a test's limit the process ends, with the stacks of all threads on standard error. xdist then reports the test as
failed and continues with another process. The limit is that of pytest-timeout: a test's mark, --timeout, or pyproject.toml.
"""

import faulthandler
import os
from functools import cache
from typing import Any

import pytest

GRACE_SECONDS = 30  # for pytest-timeout, which ends the test alone, and for fixtures that give up


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Run a test under the limit."""
    if seconds := limit_of(item):
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=standard_error(item.config))
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """The seconds that a test may take; 0 for no limit."""
    if item.config.option.usepdb:
        return 0
    if mark := item.get_closest_marker("timeout"):
        return mark.args[0]
    given = item.config.option.timeout
    return float(item.config.getini("timeout") or 0) if given is None else given


@cache
def standard_error(config: Any) -> int:
    """A file descriptor of the standard error that pytest does not capture."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        return os.dup(2)
    with capture.global_and_fixture_disabled():
        return os.dup(2)
