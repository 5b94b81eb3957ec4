"""In-flight batching: every iteration lets finished sequences out and waiting ones in.

A step holds one token of each running sequence and the whole prompts of new ones. Linear layers take all tokens together; attention
takes decodes and prompts apart, because each has its own kernel ("selective batching"). A long prompt makes a long step, in which all
others wait for their next token.

The token budget of a step counts both, because memory and CUDA graphs are sized by it. So a prompt of nearly the whole budget enters only
when few sequences decode, and those that arrived after it wait behind it (head-of-line blocking). Nobody starves: while it waits, nobody
enters, and those that run end. PrefillFirst, which is vLLM without chunked prefill, computes such a prompt in the next step; SplitFuse
splits it.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, sections 3.1 and 3.2.
"""


class InFlightBatching:
    """Decodes, and whole prompts."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        scheduler.decode(step)
        scheduler.prefill(step, whole=True)
