"""The number of ranks on each GPU: one, unless an environment variable lets several share it, which started ranks inherit."""

import os

from minllm.errors import InvalidOptionError

RANKS_PER_GPU = "MINLLM_RANKS_PER_GPU"


def ranks_per_gpu() -> int:
    """The number of ranks on each GPU, by default 1. Raises InvalidOptionError for a wrong value of the variable."""
    text = os.environ.get(RANKS_PER_GPU, "1")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOptionError(f"{RANKS_PER_GPU}={text!r} must be a number of ranks, 1 or more.")
    return int(text)
