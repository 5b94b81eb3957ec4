"""The time of an all-reduce by algorithm: steps times latency plus bytes over bandwidth (Hockney's model).

Each of N ranks has a message of b bytes. A step, in which a rank signals and waits, has a latency of alpha seconds, and each rank receives
beta bytes per second:

    algorithm      steps          bytes received per rank
    ring           2 (N - 1)      2 (N - 1) / N b
    two_shot       2              2 (N - 1) / N b
    one_shot       1              (N - 1) b
    low_latency    1/2            2 (N - 1) b              flags travel with the data, not after it

So one_shot, which has fewer steps, is faster below a size, and two_shot or ring above it: `crossing`. These lower bounds leave out
launches, the copy of the message, and contention in the switch when N ranks read at once. Sources: Hockney 1994, "The communication
challenge for MPP: Intel Paragon and Meiko CS-2"; Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations
in MPICH", section 4.
"""

from dataclasses import dataclass

from minllm.errors import InvalidOptionError


@dataclass(frozen=True)
class Link:
    """A connection between GPUs. latency: seconds per step; bytes_per_second: what each GPU receives."""

    latency: float
    bytes_per_second: float


@dataclass(frozen=True)
class Collective:
    """The cost of an algorithm. traffic: bytes that a rank receives, as a multiple of the message's bytes."""

    steps: float
    traffic: float


def collective(algorithm: str, ranks: int) -> Collective:
    """The steps and traffic of an algorithm. Raises InvalidOptionError if it is unknown or ranks < 2."""
    if ranks < 2:
        raise InvalidOptionError(f"{ranks} ranks: an all-reduce takes at least 2")
    known = {
        "ring": Collective(2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "two_shot": Collective(2, 2 * (ranks - 1) / ranks),
        "one_shot": Collective(1, ranks - 1),
        "low_latency": Collective(0.5, 2 * (ranks - 1)),
    }
    if algorithm not in known:
        raise InvalidOptionError(f"no all-reduce is called {algorithm!r}; there are {', '.join(known)}")
    return known[algorithm]


def all_reduce_seconds(algorithm: str, message_bytes: float, ranks: int, link: Link) -> float:
    """Lower bound for one all-reduce of `message_bytes`, in seconds."""
    found = collective(algorithm, ranks)
    return found.steps * link.latency + found.traffic * message_bytes / link.bytes_per_second


def crossing(few_steps: str, few_bytes: str, ranks: int, link: Link) -> float:
    """The message size in bytes above which `few_bytes` is faster than `few_steps`; infinity if it never is."""
    one, other = collective(few_steps, ranks), collective(few_bytes, ranks)
    saved = one.traffic - other.traffic
    return (other.steps - one.steps) * link.latency * link.bytes_per_second / saved if saved > 0 else float("inf")
