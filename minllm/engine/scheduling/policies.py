"""The table of scheduling policies, by the names that the option `scheduling_policy` takes."""

from collections.abc import Callable

from minllm.engine.scheduling.in_flight import InFlightBatching
from minllm.engine.scheduling.policy import SchedulingPolicy
from minllm.engine.scheduling.prefill_first import PrefillFirst
from minllm.engine.scheduling.split_fuse import SplitFuse
from minllm.engine.scheduling.static_batching import StaticBatching

POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {
    "split_fuse": SplitFuse, "in_flight": InFlightBatching, "prefill_first": PrefillFirst, "static": StaticBatching
}  # fmt: skip
