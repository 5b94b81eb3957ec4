"""The statistics of an engine."""

from dataclasses import asdict, dataclass
from typing import Any

from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.scheduling.speculative import Speculation


@dataclass(frozen=True)
class EngineStats:
    """Numbers of running and waiting sequences, and counts since the engine was made."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float  # share of the KV cache that running sequences hold, 0 to 1
    num_preemptions: int
    prefix_cache_queries: int  # prompt tokens looked up in the prefix cache
    prefix_cache_hits: int  # prompt tokens found in the prefix cache
    num_steps: int
    num_window_blocks_freed: int = 0  # blocks of layers with a sliding window that left the windows of all their sequences
    num_corrupted_requests: int = 0  # completions that ended because their logits held NaN or infinity
    num_graphs: int = 0  # CUDA graphs captured so far
    graph_memory_bytes: int = 0  # memory that all graphs share for temporaries and results
    spec_decode_num_drafts: int = 0  # verifications of drafts
    spec_decode_num_draft_tokens: int = 0  # drafts that were verified
    spec_decode_num_tried_tokens: int = 0  # drafts up to the first wrong one of each verification
    spec_decode_num_accepted_tokens: int = 0  # drafts that were accepted
    spec_decode_num_accepted_tokens_per_pos: tuple[int, ...] = ()  # entry i: verifications that accepted more than i drafts

    @property
    def spec_decode_acceptance_rate(self) -> float:
        """The share of verified drafts that were accepted, 0 to 1."""
        return self.spec_decode_num_accepted_tokens / max(1, self.spec_decode_num_draft_tokens)

    @property
    def spec_decode_mean_acceptance_length(self) -> float:
        """Tokens per verification of drafts: one, plus the accepted drafts."""
        return 1 + self.spec_decode_num_accepted_tokens / max(1, self.spec_decode_num_drafts)


def engine_stats(scheduler: Scheduler, num_steps: int, num_graphs: int = 0, graph_memory_bytes: int = 0) -> EngineStats:
    """The statistics of an engine with this scheduler."""
    windows = scheduler.memory.policy.windows
    usage, hits = scheduler.memory.policy.usage(), scheduler.memory.policy.prefix_hits
    return EngineStats(
        num_running=len(scheduler.queues.running), num_waiting=scheduler.queues.num_waiting, kv_cache_usage=usage.allocated / usage.total,
        num_preemptions=scheduler.queues.num_preemptions, prefix_cache_queries=hits.tokens_asked, prefix_cache_hits=hits.tokens_hit,
        num_window_blocks_freed=0 if windows is None else windows.num_freed, num_steps=num_steps,
        num_corrupted_requests=scheduler.num_corrupted_requests, num_graphs=num_graphs,
        graph_memory_bytes=graph_memory_bytes, **_of_speculation(scheduler.speculation),
    )  # fmt: skip


def _of_speculation(speculation: Speculation | None) -> dict[str, Any]:
    counts = {} if speculation is None else asdict(speculation.counts)
    return {f"spec_decode_{name}": tuple(count) if isinstance(count, list) else count for name, count in counts.items()}
