"""The table of scheduling policies, by the names that the option `scheduling_policy` takes."""

from minllm.engine.scheduling.in_flight import InFlightBatching
from minllm.engine.scheduling.prefill_first import PrefillFirst
from minllm.engine.scheduling.split_fuse import SplitFuse
from minllm.engine.scheduling.static_batching import StaticBatching

POLICIES = {"split_fuse": SplitFuse, "in_flight": InFlightBatching, "prefill_first": PrefillFirst, "static": StaticBatching}
