"""Links that do not close: the reason is shown, and the process ends within its limit."""

import re
import subprocess
import sys

import pytest

from minllm.parallel.let_go import EXIT_CODE, left_at_failure, let_go

CONNECTING = """
import threading
from minllm.parallel.let_go import left_at_failure, let_go
at_failure = []
with left_at_failure(at_failure):
    threading.Thread(target=let_go, args=(at_failure, "Rank 1 has failed: the cause", 0.1)).start()
    threading.Event().wait()
"""
STUCK = """
import threading
from minllm.parallel.let_go import let_go
let_go([threading.Event().wait], "Rank 1 has failed: the cause", limit_s=0.1)
print("not reached")
"""


@pytest.mark.parametrize("program", [STUCK, CONNECTING], ids=["abort", "connect"])
def test_a_wait_that_does_not_end_shows_the_reason_and_ends_the_process(program):
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == EXIT_CODE and not ended.stdout
    assert ended.stderr.startswith("Rank 1 has failed: the cause\nThis rank has not stopped waiting for the others within 0.1 s")
    assert re.search(r"It stands in wait, .*threading.py:\d+\.$", ended.stderr.strip())


def test_a_context_that_is_left_is_waited_for_no_more():
    at_failure = []
    with left_at_failure(at_failure):
        pass
    let_go(at_failure, "the reason", limit_s=60)


def test_links_are_closed_in_their_order_and_an_error_stops_none(capsys):
    closed = []

    def fails():
        raise OSError("this link is broken")

    let_go([lambda: closed.append(1), fails, lambda: closed.append(2)], "the reason")
    assert closed == [1, 2]
    assert "OSError: this link is broken" in capsys.readouterr().err
