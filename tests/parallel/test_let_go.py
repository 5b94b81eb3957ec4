"""Links that do not close: the reason is shown, and the process ends within its limit."""

import subprocess
import sys

from minllm.parallel.let_go import EXIT_CODE, let_go

STUCK = """
import threading
from minllm.parallel.let_go import let_go
let_go([threading.Event().wait], "Rank 1 has failed: the cause", limit_s=0.1)
print("not reached")
"""


def test_a_link_that_does_not_close_shows_the_reason_and_ends_the_process():
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60)
    assert ended.returncode == EXIT_CODE and not ended.stdout
    assert ended.stderr.startswith("Rank 1 has failed: the cause\nThe links to the other ranks did not close within 0.1 s")


def test_links_are_closed_in_their_order_and_an_error_stops_none(capsys):
    closed = []

    def fails():
        raise OSError("this link is broken")

    let_go([lambda: closed.append(1), fails, lambda: closed.append(2)], "the reason")
    assert closed == [1, 2]
    assert "OSError: this link is broken" in capsys.readouterr().err
