"""How long a thread keeps the interpreter while others wait for it: 5 ms by default, which is longer than a step.

Every call of the driver gives the interpreter up and needs it back. With the default, a thread that tokenises or reads outputs could delay
each of a step's calls by 5 ms. While pipelines run, the interval of the process is 0.1 ms; `minllm bench pipeline` measures the gain.
"""

import sys
import threading

INTERVAL = 1e-4  # seconds

_lock = threading.Lock()
_users = 0
_before = 0.0


def shorten() -> None:
    """Shorten the interval until `restore` has been called as often."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, INTERVAL))
        _users += 1


def restore() -> None:
    """Restore the interval from before, once every `shorten` has been undone."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            sys.setswitchinterval(_before)
