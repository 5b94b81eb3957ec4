"""Prefill first: prompts are computed as soon as they can be admitted, decodes when no prompt waits.

This gives the lowest TTFT, and as no step mixes prompts and decodes, each runs its best kernels. Sequences that decode wait whenever a
request arrives, so their TPOT has no bound while requests keep coming. vLLM's first scheduler worked like this.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, section 4.6.
"""


class PrefillFirst:
    """A step computes whole prompts, or decodes if no prompt can enter."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        scheduler.prefill(step, whole=True)
        if not step.spans:
            scheduler.decode(step)
