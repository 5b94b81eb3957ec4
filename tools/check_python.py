"""Check whether this Python can make the Makefile's virtual environment, and say what to do if it cannot. Runs on any Python 3."""

import sys

OLDEST, NEWEST = (3, 11), (3, 14)
VERSION = sys.version_info[:2]


def dotted(version):
    """(3, 11) as 3.11."""
    return ".".join(map(str, version))


if not OLDEST <= VERSION <= NEWEST:
    sys.exit(
        f"minllm needs Python {dotted(OLDEST)} to {dotted(NEWEST)}, and {sys.executable} is {dotted(VERSION)}.\n"
        "Name another one: make PYTHON=python3.12 demo"
    )
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    sys.exit(
        f"{sys.executable} has no venv module, which makes virtual environments.\n"
        f"On Debian and Ubuntu: sudo apt-get install python{dotted(VERSION)}-venv"
    )
