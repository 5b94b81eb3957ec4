"""The interface of scheduling policies: what a step computes first.

A policy sees a scheduler and an empty step, and calls the scheduler's two methods in the order that it believes in: `decode`, which gives
every sequence whose prompt is computed its next token, and `prefill`, which computes prompts up to the token budget and admits waiting
ones. Memory, order of arrival and preemption are the scheduler's, and the same for all.
"""

from typing import Protocol


class SchedulingPolicy(Protocol):
    """Fills steps."""

    def plan(self, scheduler, step) -> None:
        """Add spans to the step; none if there is nothing to compute now."""
        ...
