"""Shorten Python's switch interval: the time that a thread holds the GIL while others wait, by default 5 ms, longer than a step.

Every driver call releases the GIL and must reacquire it. With the default, a thread that tokenises or reads outputs could delay each of a
step's calls by 5 ms. While pipelines run, the interval of the process is 0.1 ms; `minllm bench pipeline` measures the gain.
"""

import sys
import threading

INTERVAL = 1e-4  # seconds

_lock = threading.Lock()
_users = 0
_before = 0.0


def shorten() -> None:
    """Shorten the interval until `restore` has been called as many times as this."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, INTERVAL))
        _users += 1


def restore() -> None:
    """Undo one `shorten`; the last one restores the original interval."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            sys.setswitchinterval(_before)
