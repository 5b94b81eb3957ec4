"""Build an engine from the options of LLM(): the one place where its parts are put together.

    plan        device, operations, formats and sizes (plan.py); every option is checked
    model       weights, while kernels are compiled in other processes
    memory      the KV cache, the policy that assigns it, and a draft model's cache
    runner      slots, graphs and the source of drafts
    scheduler   policy, preemption and the plan of speculation

Nothing is allocated on a device before the checkpoint's headers have been read and every option has been checked.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from minllm.cache.kv_cache import KVCache
from minllm.cache.policy import CachePolicy
from minllm.engine.build.cache import make_cache
from minllm.engine.build.calibration import calibrate
from minllm.engine.build.max_model_len import fitted_model_len
from minllm.engine.build.memory_budget import naming_memory_options
from minllm.engine.build.plan import Plan, plan_engine
from minllm.engine.build.precompile import precompile
from minllm.engine.build.preemption import make_preemption
from minllm.engine.build.speculation import (
    budget_beside_draft,
    draft_cache,
    draft_shape,
    load_draft,
    make_source,
    make_speculation,
    make_speculator,
)  # fmt: skip
from minllm.engine.build.weights import model_source
from minllm.engine.options import EngineOptions
from minllm.engine.progress import Progress
from minllm.engine.ranks.share import RankShare, captures_steps
from minllm.engine.requests.default_params import default_sampling_params
from minllm.engine.requests.grammar import Grammars
from minllm.engine.running.machine import CudaMachine, HostMachine, Machine
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.queues import Queues
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.models.config import ModelConfig
from minllm.models.generation_config import GenerationConfig
from minllm.models.model import Model, load_model
from minllm.models.tokenizer import Tokenizer
from minllm.ops.protocol import Ops
from minllm.parallel.processes import OtherRanks
from minllm.runtime.compile_ahead import CompileAhead


@dataclass
class Engine:
    """The parts that LLM() has made from its options."""

    options: EngineOptions  # with the limits of a step, which the engine sets if they were not given
    path: Path  # the model's directory or file
    device: str  # "cpu" or "cuda"
    ops: Ops
    model: Model
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    eos_token_ids: frozenset[int]
    max_model_len: int
    cache: KVCache
    cache_policy: CachePolicy
    scheduler: Scheduler
    runner: ModelRunner
    processes: OtherRanks | None = None  # None for a single rank
    program: Any = None  # ranks.launched.LaunchedProgram, which keeps the calls of all ranks in step; None without a launcher

    @functools.cached_property
    def grammars(self) -> Grammars:
        """The grammars of structured outputs."""
        return Grammars(self.tokenizer, self.model.config.vocab_size, self.eos_token_ids, self.runner.chooses_late)

    def close(self) -> None:
        """Drop the graphs, end the other ranks, and close the links to them: in this order, as NCCL waits for both (parallel/nccl.py)."""
        ops: Any = self.ops  # a rank's
        try:
            self.runner.close()
        finally:
            if self.processes is not None:
                self.processes.close()
                ops.disconnect()


class Memory(NamedTuple):
    """The memory of running sequences."""

    cache: KVCache
    policy: CachePolicy
    max_model_len: int
    of_draft: KVCache | None  # a draft model's cache, under the same block tables


def model_config(options: EngineOptions) -> ModelConfig:
    """The model's configuration. Raises CheckpointError or UnsupportedModelError."""
    return model_source(options).config()


def load_engine(options: EngineOptions, progress: Progress | None = None, share: RankShare | None = None) -> Engine:
    """Loads a model and makes its cache.

    share: this rank's share of the model, if several ranks share it; all ranks call this at the same time. Raises CheckpointError,
    UnsupportedModelError, InvalidOptionError, DeviceError or OutOfMemoryError.
    """
    plan = plan_engine(options, share)
    with naming_memory_options(plan.options):
        model = _read_model(plan, progress)
        draft = load_draft(plan)
        memory = _make_memory(plan, model, draft)
        runner = _make_runner(plan, model, memory, draft)
        return Engine(
            plan.options, plan.source.path, plan.device, plan.ops, model, plan.tokenizer, plan.generation_config,
            eos_token_ids=_eos_token_ids(plan.generation_config, plan.config, plan.tokenizer), max_model_len=memory.max_model_len,
            cache=memory.cache, cache_policy=memory.policy, scheduler=_make_scheduler(plan, memory, draft), runner=runner,
        )  # fmt: skip


def _read_model(plan: Plan, progress: Progress | None) -> Model:
    weights_read = None if progress is None else functools.partial(progress, "Loading weights")
    kernels_compiled = None if progress is None else functools.partial(progress, "Compiling kernels")
    with _precompile(plan) as compiling:
        model = load_model(
            plan.source.path, plan.ops, weights_read, max_positions=plan.wanted_len, checkpoint=plan.checkpoint,
            weight_format=plan.weight_format, config=plan.config, make_reader=None if plan.share is None else plan.share.make_reader,
        )  # fmt: skip
        compiling.wait(kernels_compiled)
    return model


def _precompile(plan: Plan) -> CompileAhead:
    """Kernels being compiled in other processes, as a context with `wait`; nothing on a CPU."""
    if plan.device == "cpu":
        return CompileAhead()
    shape = plan.shape
    if plan.options.kv_cache_policy == "contiguous":
        shape = replace(shape, block_size=plan.wanted_len)
    default_params = default_sampling_params(plan.generation_config, plan.part.vocab_size)
    return precompile(plan.part, shape, plan.weight_format, plan.options, plan.wanted_len, default_params, plan.split())


def _make_memory(plan: Plan, model: Model, draft: Model | None) -> Memory:
    of_draft = draft_shape(draft, plan)
    calibration = calibrate(plan.ops, model, plan.shape, plan.tokenizer, plan.wanted_len)
    budget = budget_beside_draft(plan.budget(), plan.shape, of_draft)
    cache, policy = make_cache(plan, budget)
    max_model_len = fitted_model_len(plan.options, plan.wanted_len, policy.max_sequence_tokens, budget)
    if calibration is not None:
        cache.calibrate(calibration.smoothing, calibration.scales, plan.ops)
    return Memory(cache, policy, max_model_len, draft_cache(of_draft, plan.ops, policy))


def _make_scheduler(plan: Plan, memory: Memory, draft: Model | None) -> Scheduler:
    options = plan.options
    manager = KVCacheManager(memory.policy, LENGTH_PREDICTIONS[options.length_prediction]())
    preemption = make_preemption(plan, memory.cache, memory.policy, memory.of_draft)
    queues = Queues(manager, preemption, options.max_num_seqs)
    return Scheduler(POLICIES[options.scheduling_policy](), queues, options.max_num_batched_tokens, make_speculation(plan, draft))


def _make_runner(plan: Plan, model: Model, memory: Memory, draft: Model | None) -> ModelRunner:
    ops, options, config = plan.ops, plan.options, plan.options.speculation
    machine: Machine = HostMachine() if plan.device == "cpu" else CudaMachine(ops)
    max_model_len, speculator = memory.max_model_len, None
    if config is not None:
        source = make_source(config, ops, draft, memory.of_draft, options.max_num_seqs)
        speculator = functools.partial(make_speculator, config, source, ops, machine, max_model_len=max_model_len, cache=memory.cache)
        max_model_len += config.rows_beyond
    kind = ModelRunner if plan.share is None else plan.share.runner
    return kind(
        ops, model, memory.cache, memory.policy, max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=max_model_len, machine=machine, uses_graphs=plan.device == "cuda" and captures_steps(options), speculator=speculator,
    )  # fmt: skip


def _eos_token_ids(generation_config: GenerationConfig, config: ModelConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, or config.json's if that names none, and the tokenizer's eos_token.

    As in vLLM, the tokenizer's counts beside the others, because chat models often name the end of a turn only there. Ids beyond the
    vocabulary (defaults of a model family with a larger one) can never be generated, and are left out.
    """
    ids = {*(generation_config.eos_token_ids or config.eos_token_ids), tokenizer.eos_token_id}
    return frozenset(token_id for token_id in ids if token_id is not None and token_id < config.vocab_size)
