"""`minllm bench serve --simulate GPU`: the simulated server for a model and a known GPU, with the options of a real one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from minllm.bench.record import SIMULATED_DEVICE
from minllm.bench.serving.simulated import SimulatedEngine
from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.bench.serving.workload import BenchRequest, longest
from minllm.costs import kv_bytes_per_token, weight_bytes
from minllm.costs.serving import StepCosts
from minllm.costs.step_limits import step_limits
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.machine.hardware import gpu_named
from minllm.models.shapes import find_config
from minllm.planning.formats import best_rate
from minllm.weights.formats import WEIGHT_FORMATS

SIMULATED = ("scheduling_policy", "preemption", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "device")
DEFAULTS = dict(dtype="auto", kv_cache_dtype="auto", enable_prefix_caching=False)


def check_simulation(options: dict[str, Any], requests: list[BenchRequest], compare: str | None, against: str | None) -> None:
    """Raises InvalidOptionError for options that the simulation does not support."""
    others = [name for name, value in options.items() if name not in SIMULATED and value != DEFAULTS.get(name)]
    others += ["against"] if against else []
    others += ["preemption swap"] if options.get("preemption", "recompute") not in ("recompute", "drop") else []
    others += ["compare-preemption"] if compare == "preemption" else []
    if others:
        option = "--" + others[0].replace("_", "-")
        raise InvalidOptionError(f"{option} does not go with --simulate, which computes no model and moves no memory: drop one of the two.")
    if longest(requests) is None:
        raise InvalidOptionError("--simulate needs the lengths of prompts: give prompt_tokens in place of prompt in the file of requests.")


def simulated_gpu(
    model: str, gpu_name: str, clock: VirtualClock
) -> tuple[str, Callable[[dict[str, Any]], AbstractContextManager[tuple[SimulatedEngine, int]]]]:
    """(the name of the machine, a function that opens an engine).

    Raises InvalidOptionError for an unknown GPU or model.
    """
    name, gpu = gpu_named(gpu_name)
    _, config = find_config(model)
    costs = StepCosts.of(config, gpu.ceiling_tb_s, best_rate(gpu, "bfloat16")[0])
    room = int(gpu.memory_gb * 1e9 * EngineOptions.gpu_memory_utilization) - weight_bytes(config)
    limits = step_limits(config, WEIGHT_FORMATS["bfloat16"], kv_bytes_per_token(config), room, gpu)
    defaults = dict(max_num_seqs=limits.sequences, max_num_batched_tokens=limits.tokens)

    @contextmanager
    def open_engine(options: dict[str, Any]) -> Iterator[tuple[SimulatedEngine, int]]:
        names = ("preemption", *defaults)
        chosen = defaults | {name: options[name] for name in names if options.get(name) is not None}
        tokens = options.get("kv_cache_memory_bytes", room) // kv_bytes_per_token(config)
        policy = options.get("scheduling_policy", EngineOptions.scheduling_policy)
        yield SimulatedEngine(costs, policy, kv_cache_tokens=tokens, clock=clock, **chosen), config.vocab_size

    return f"{name}{SIMULATED_DEVICE}", open_engine
