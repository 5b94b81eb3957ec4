"""Make the requested speculation: the source of drafts, and for a draft model its weights and its cache."""

import functools
from dataclasses import replace
from pathlib import Path

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.policy import CachePolicy
from minllm.costs.speculation import best_num_drafts, trial_interval
from minllm.costs.step_time import StepRates, StepTimes
from minllm.engine.build.cache_format import cache_shape, check_shape
from minllm.engine.build.plan import Plan
from minllm.engine.drafting.draft_model import DraftModel
from minllm.engine.drafting.lookahead import LookaheadDrafts
from minllm.engine.drafting.ngrams import NgramDrafts
from minllm.engine.drafting.tree_model import TreeModel
from minllm.engine.running.machine import Machine
from minllm.engine.running.slots import Slots
from minllm.engine.running.speculator import DraftSource, Speculator
from minllm.engine.running.step_graphs import TOKEN_STEP
from minllm.engine.scheduling.speculative import Speculation
from minllm.engine.speculative_config import SpeculativeConfig
from minllm.errors import InvalidOptionError
from minllm.machine.hardware import Gpu, find_gpu
from minllm.models.config import ModelConfig
from minllm.models.model import Model, load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.source import bundled_model, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.ops.protocol import Ops


def load_draft(plan: Plan) -> Model | None:
    """The draft model; None if drafts come from elsewhere.

    Raises InvalidOptionError if its vocabulary or tokenizer is not the model's, or its context is shorter than max_model_len.
    """
    config, ops, vocab_size, max_model_len = plan.options.speculation, plan.ops, plan.config.vocab_size, plan.wanted_len
    if config is None or config.method != "draft_model":
        return None
    source = open_source(bundled_model("draft") if config.model is None else Path(config.model))
    found = source.config()
    if found.vocab_size != vocab_size:
        _refuse(source.path, f"has a vocabulary of {found.vocab_size} tokens, and the model one of {vocab_size}")
    theirs, ours = (one.backend.get_vocab(with_added_tokens=True) for one in (source.tokenizer(), plan.tokenizer))
    if theirs != ours:
        differing = sum(ours.get(token) != number for token, number in theirs.items()) or len(ours) - len(theirs)
        _refuse(source.path, f"has another tokenizer than the model: {differing} of {len(theirs)} tokens have other numbers")
    if found.max_position_embeddings < max_model_len:
        raise InvalidOptionError(
            f"speculative_config: model={str(source.path)!r} is not allowed: its context of {found.max_position_embeddings} tokens is "
            f"shorter than max_model_len={max_model_len}: lower that, or take another draft."
        )
    if plan.options.load_format == "dummy":
        weights = RandomCheckpoint(found, plan.options.seed)
        return load_model(source.path, ops, max_positions=max_model_len, checkpoint=weights, config=found)
    checkpoint = source.checkpoint(found)
    return load_model(source.path, ops, max_positions=max_model_len, checkpoint=checkpoint, config=untied_if_stored(found, checkpoint))


def draft_shape(draft: Model | None, plan: Plan) -> CacheShape | None:
    """The shape of a draft model's cache; None without a draft model."""
    if draft is None:
        return None
    shape = cache_shape(draft.config, plan.ops.dtype, plan.shape.block_size)
    check_shape(plan.device, shape)
    return shape


def budget_beside_draft(budget: CacheBudget, shape: CacheShape, of_draft: CacheShape | None) -> CacheBudget:
    """The part of the budget for the model's blocks, if every block comes with one for the draft model."""
    if of_draft is None:
        return budget
    ours, theirs = (one.bytes_per_block // one.block_size for one in (shape, of_draft))
    return replace(budget, num_bytes=budget.num_bytes * ours // (ours + theirs))


def draft_cache(of_draft: CacheShape | None, ops: Ops, policy: CachePolicy) -> KVCache | None:
    """A draft model's cache, under the policy's block tables."""
    return None if of_draft is None else KVCache(ops, replace(of_draft, block_size=policy.block_size), policy.num_blocks)


def make_source(config: SpeculativeConfig, ops: Ops, draft: Model | None, cache: KVCache | None, num_slots: int) -> DraftSource:
    """The source of drafts that `config` names."""
    if config.method == "lookahead":
        return LookaheadDrafts(ops, num_slots, *config.lookahead_sizes)
    if draft is not None and cache is not None:
        kind = DraftModel if config.tree is None else TreeModel
        return kind(ops, draft, cache, config.draft_sample_method == "probabilistic")
    return NgramDrafts(ops, *config.lookup_sizes)


def make_speculation(plan: Plan, draft: Model | None) -> Speculation | None:
    """The scheduler's part of speculation; None without speculation.

    On a known GPU, the number of drafts follows from its data sheet, unless the schedule is constant. Otherwise, and for a tree, all
    drafts are verified.
    """
    config = plan.options.speculation
    if config is None:
        return None
    best, interval, most = None, None, config.num_drafts
    is_constant = config.num_speculative_tokens_schedule == "constant"
    gpu = None if plan.device == "cpu" or config.tree is not None or is_constant else _known_gpu()
    if gpu is not None:
        costs, of_draft = step_times(plan.config, gpu), None if draft is None else step_times(draft.config, gpu)
        best = functools.partial(best_num_drafts, costs, most=most, draft=of_draft, num_made=most)
        if of_draft is not None:
            interval = functools.partial(trial_interval, costs, most=most, draft=of_draft, catch_up=of_draft.launched_seconds(TOKEN_STEP))
    is_synthetic = config.synthetic_acceptance_rate is not None
    return Speculation(
        most, needs_room=draft is not None, best=best, tree=config.tree, trial_interval=interval, accepts_all=is_synthetic
    )  # fmt: skip


def step_times(model: ModelConfig, gpu: Gpu) -> StepTimes:
    """The predicted times of a model's steps on a GPU."""
    return StepTimes(model, StepRates.of(gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops or gpu.fp32_tflops))


def _known_gpu() -> Gpu | None:
    from minllm.runtime.device import current_device

    return find_gpu(current_device().name)


def make_speculator(
    config: SpeculativeConfig, source: DraftSource, ops: Ops, machine: Machine, slots: Slots, max_model_len: int, cache: KVCache
) -> Speculator:  # fmt: skip
    """The speculator of these slots. cache: the model's. Raises InvalidOptionError if no sequence is long enough for the drafts."""
    num_drafts = config.num_drafts
    if num_drafts > max_model_len - 2:
        raise InvalidOptionError(
            f"speculative_config: num_speculative_tokens={num_drafts} is not allowed: the KV cache has room for {max_model_len} tokens of "
            f"a sequence, so that at most {max_model_len - 2} can be drafted."
        )
    return Speculator(ops, machine, slots, source, num_drafts, max_model_len, config.synthetic_acceptance_rate, config.tree, cache)


def _refuse(path: Path, why: str) -> None:
    raise InvalidOptionError(
        f"speculative_config: model={str(path)!r} is not allowed: it {why}. Drafts are token ids of the model: take a draft that was "
        "trained with its tokenizer."
    )
