"""Dynamic SplitFuse: all decodes first, then chunks of prompts up to the token budget.

A long prompt is split over several steps, short ones are fused into one, and every step has about the same size. So no step is longer
than the budget makes it, which bounds the gap between two tokens of a sequence, and decodes ride along with prompts, which read the
weights anyway. Only the last chunk of a prompt yields a token.

Sources: Holmes et al., "DeepSpeed-FastGen: High-throughput Text Generation for LLMs via MII and DeepSpeed-Inference", 2024, section 3;
Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, section 4.
"""


class SplitFuse:
    """Decodes, and prompts in chunks."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        # exercise: scheduling.split_fuse
        scheduler.decode(step)
        scheduler.prefill(step)
        # end exercise
