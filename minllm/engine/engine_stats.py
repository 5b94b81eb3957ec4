"""What an engine is doing, in numbers."""

from dataclasses import dataclass

from minllm.engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True)
class EngineStats:
    """Sequences that run and wait now, and counts since the engine was made."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float  # share of the KV cache that running sequences hold, 0 to 1
    num_preemptions: int
    prefix_cache_queries: int  # prompt tokens looked up in the prefix cache
    prefix_cache_hits: int  # prompt tokens found in the prefix cache
    num_steps: int
    num_graphs: int = 0  # CUDA graphs captured so far
    graph_memory_bytes: int = 0  # memory that all graphs share for temporaries and results


def engine_stats(scheduler: Scheduler, num_steps: int, num_graphs: int = 0, graph_memory_bytes: int = 0) -> EngineStats:
    """The stats of an engine with this scheduler."""
    usage, hits = scheduler.memory.policy.usage(), scheduler.memory.policy.prefix_hits
    return EngineStats(
        num_running=len(scheduler.running), num_waiting=scheduler.num_waiting, kv_cache_usage=usage.allocated / usage.total,
        num_preemptions=scheduler.num_preemptions, prefix_cache_queries=hits.tokens_asked, prefix_cache_hits=hits.tokens_hit,
        num_steps=num_steps, num_graphs=num_graphs, graph_memory_bytes=graph_memory_bytes,
    )  # fmt: skip
