"""In-flight batching: at every iteration, finished sequences leave and waiting ones enter.

A step holds one token of each running sequence and the whole prompts of new ones. Linear layers compute all tokens together; attention
computes decodes and prompts separately, because each has its own kernel ("selective batching"). A long prompt makes a long step, during
which all other sequences wait for their next token.

The token budget of a step counts both, because memory and CUDA graphs are sized by it. So a prompt of nearly the whole budget enters only
when few sequences decode, and later arrivals wait behind it (head-of-line blocking). No sequence starves: while the prompt waits, none
enters, and the running ones end. PrefillFirst, which is vLLM without chunked prefill, computes such a prompt in the next step; SplitFuse
splits it.

Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, sections 3.1 and 3.2.
"""


class InFlightBatching:
    """A step computes all decodes, then whole prompts."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        scheduler.decode(step)
        scheduler.prefill(step, whole=True)
