"""The interface of scheduling policies, which decide what a step computes first.

A policy gets a scheduler and an empty step, and calls the scheduler's two methods in its own order: `decode`, which gives every sequence
whose prompt is computed its next token, and `prefill`, which computes prompts up to the token budget and admits waiting ones. The scheduler
handles memory, order of arrival and preemption, in the same way for all policies.
"""

from typing import Protocol


class SchedulingPolicy(Protocol):
    """Fills the steps of a scheduler."""

    def plan(self, scheduler, step) -> None:
        """Add spans to the step; none if there is nothing to compute now."""
        ...
