"""Say whether this Python can make the virtual environment of the Makefile, and what to do if it cannot. Runs on any Python 3."""

import sys

OLDEST, NEWEST = (3, 11), (3, 13)
VERSION = sys.version_info[:2]

if not OLDEST <= VERSION <= NEWEST:
    sys.exit(
        "minllm needs Python %d.%d to %d.%d, and %s is %d.%d.\n" % (OLDEST + NEWEST + (sys.executable,) + VERSION)
        + "Name another one: make PYTHON=python3.12 demo"
    )
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    sys.exit(
        "%s has no venv module, which makes virtual environments.\n" % sys.executable
        + "On Debian and Ubuntu: sudo apt-get install python%d.%d-venv" % VERSION
    )
