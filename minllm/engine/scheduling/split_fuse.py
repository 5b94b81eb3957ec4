"""Dynamic SplitFuse: all decodes first, then chunks of prompts up to the token budget.

A long prompt is split over several steps, short ones are fused into one, and every step has about the same size. The budget thus bounds
the length of a step, and with it the gap between two tokens of a sequence. Decodes share steps with prompts, which read the weights
anyway. Only the last chunk of a prompt yields a token.

Sources: Holmes et al., "DeepSpeed-FastGen: High-throughput Text Generation for LLMs via MII and DeepSpeed-Inference", 2024, section 3;
Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, section 4.
"""


class SplitFuse:
    """A step computes all decodes, then prompts in chunks."""

    def plan(self, scheduler, step) -> None:
        """See SchedulingPolicy."""
        # exercise: scheduling.split_fuse
        scheduler.decode(step)
        scheduler.prefill(step)
        # end exercise
