"""Prefill first: prompts as soon as they can be admitted, decodes when no prompt waits.

First tokens come soonest, and steps are pure, so each runs its best kernels. Sequences that decode wait whenever somebody arrives: their
gaps between tokens have no bound while requests keep coming. It is what vLLM's first scheduler did.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4.6.
"""


class PrefillFirst:
    """Whole prompts, or else decodes."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        scheduler.prefill(step, whole=True)
        if not step.spans:
            scheduler.decode(step)
