"""Byte budgets: compares the bytes that a launch loads and stores, by the simulator's trace, with those that the kernel needs."""

from collections.abc import Callable

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch
from minllm.sim import detecting, tracing


def counted(run: Callable[[], None]) -> dict[str, dict[str, int]]:
    """{"read": {array: bytes}, "write": ...} of all launches of `run`; arrays have the names of the kernel's parameters."""
    with detecting(False), tracing() as traces:
        run()
    totals = {"read": {}, "write": {}}
    for trace in traces:
        for name, array in trace.arrays.items():
            for kind, amounts in totals.items():
                amounts[name] = amounts.get(name, 0) + getattr(array, kind).bytes
    return totals


def expect_bytes(run: Callable[[], None], read: dict[str, int], write: dict[str, int], advice: str = "") -> None:
    """Raise Mismatch if a launch loads or stores more bytes of an array than its budget, or stores fewer."""
    totals = counted(run)
    for kind, budget in (("read", read), ("write", write)):
        for name, allowed in budget.items():
            found = totals[kind].get(name, 0)
            if kind == "write":
                note(f"bytes of {name}", found)
            if found > allowed:
                raise Mismatch(f"the threads {kind} {found:,} bytes of {name}; {allowed:,} are enough.\nLikely cause: {advice}")
            if found < allowed and kind == "write":
                raise Mismatch(f"the threads write {found:,} bytes of {name}, which has {allowed:,}.")
