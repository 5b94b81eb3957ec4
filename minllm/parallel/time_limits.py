"""Time limits of the ranks, in seconds. Environment variables change them; started ranks inherit these."""

import os

from minllm.errors import InvalidOptionError

STEP, STEP_S = "MINLLM_STEP_SECONDS", 25.0  # for the results of a step, once all ranks have warmed up
RENDEZVOUS, RENDEZVOUS_S = "MINLLM_RENDEZVOUS_SECONDS", 300.0  # for all launched ranks to start, as torchrun's


def step_seconds() -> float:
    """The longest that rank 0 waits for other ranks in a step. Raises InvalidOptionError for a wrong value of the variable."""
    return seconds(STEP, STEP_S)


def rendezvous_seconds() -> float:
    """The longest that launched ranks wait for each other to start. Raises InvalidOptionError for a wrong value of the variable."""
    return seconds(RENDEZVOUS, RENDEZVOUS_S)


def seconds(variable: str, default: float) -> float:
    """The value of an environment variable. Raises InvalidOptionError if it is not a number above 0."""
    text = os.environ.get(variable, str(default))
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InvalidOptionError(f"{variable}={text!r} must be a number of seconds above 0.")
    return found
