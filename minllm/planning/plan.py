"""Computes memory, largest batch, floors, tokens per second and cost of a shape on a GPU, with minllm.costs.

Memory on each GPU: its weights, the activations of one forward (cache/capacity.py), and keys and values in the rest of `memory_share`, as
the cache's policy allocates them (costs/cache_policies.py).

Time: a step takes at least the longer of moving its bytes and doing its operations. With several GPUs the all-reduces are added: they
cannot be overlapped, because the next operation needs their sum. The resulting tokens per second are an upper bound, not a prediction.

Cost: the price per hour of all GPUs divided by tokens per hour. At the ridge batch, multiplying by the weights takes as long as reading
them; below it a larger batch is nearly free. Source: Pope et al. 2023, "Efficiently Scaling Transformer Inference", section 2.
"""

import math
from dataclasses import dataclass, replace

from minllm import costs
from minllm.cache.capacity import activation_bytes
from minllm.costs.cache_policies import MOST
from minllm.costs.parameters import expert_parameters, layer_matrices
from minllm.costs.pipeline import MicroBatches, last_stage, micro_batches, prompt_parts
from minllm.costs.step_limits import step_limits
from minllm.errors import InvalidOptionError, shown
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.models.parts.experts import touched_experts
from minllm.planning.floor import Floor, Passes, step_floor
from minllm.planning.formats import KV_ITEMSIZES, WEIGHT_FORMATS, best_rate, kv_itemsize, kv_window


@dataclass(frozen=True)
class Wishes:
    """What to plan for. context: number of tokens in each sequence of a decode step, and in the prompt of a prefill.

    Raises InvalidOptionError for values out of range.
    """

    context: int = 4096
    batch: int = 1
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    price_per_hour: float | None = None  # per GPU, in any currency
    memory_share: float = 0.9
    policy: costs.AllocationPolicy = costs.AllocationPolicy()
    kv_window: int | None = None  # newest tokens kept unquantised; None: the format's default

    def __post_init__(self) -> None:
        for name in ("context", "batch", "tensor_parallel", "pipeline_parallel"):
            if not 1 <= getattr(self, name) <= MOST:
                raise InvalidOptionError(f"{name.replace('_', '-')} {shown(getattr(self, name))} is not allowed: it is from 1 to {MOST:,}.")
        kv_window(self.kv_dtype, self.kv_window)
        if not 0 < self.memory_share <= 1:
            raise InvalidOptionError(f"memory-share {self.memory_share} is not allowed: it is above 0 and at most 1.")
        if self.price_per_hour is not None and not 0 <= self.price_per_hour < math.inf:
            raise InvalidOptionError(f"price-per-hour {self.price_per_hour} is not allowed: it is a number of at least 0.")

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def residual_window(self) -> int:
        """Tokens of the residual window; 0 for none."""
        return kv_window(self.kv_dtype, self.kv_window)


@dataclass(frozen=True)
class Plan:
    """The results of a plan. Bytes are per GPU, except in fields that begin with `all_`."""

    wishes: Wishes
    parameters: int
    active_parameters: int  # that one token multiplies by; fewer only in a model with experts
    touched_experts: float | None  # expected number per layer in a decode step, if tokens choose uniformly; None without experts
    all_weight_bytes: int
    weight_bytes: int
    all_kv_bytes_per_token: int
    ungrouped_kv_bytes_per_token: int
    kv_bytes_per_token: int
    kv_bytes: int  # allocated for the batch at its context
    window_bytes: int  # residual window of one sequence, included in kv_bytes
    sliding_window: int  # tokens that layers with a sliding window keep, if they keep no more
    kv_wasted_share: float  # share of the allocated blocks or pages that holds no token
    max_num_seqs: int  # sequences of a step of the engine, unless its options say otherwise
    max_num_batched_tokens: int  # tokens of such a step
    activation_bytes: int
    memory_bytes: int
    budget_bytes: int  # memory times memory_share
    largest_batch: int
    bandwidth_tb_s: float
    bandwidth_source: str
    tflops: float
    tflops_source: str
    ridge_batch: float
    decode: Floor
    prefill: Floor

    @property
    def fits(self) -> bool:
        """Whether weights, cache and activations of the batch fit in budget_bytes."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes <= self.budget_bytes

    def cost_per_million(self, floor: Floor) -> float | None:
        """The price of a million tokens at the speed of `floor`; None if no price was given."""
        if self.wishes.price_per_hour is None:
            return None
        return 1e6 * self.wishes.price_per_hour * self.wishes.gpus / (3600 * floor.tokens_per_s)


def make_plan(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> Plan:
    """The plan of `config` on `wishes.gpus` GPUs.

    Raises InvalidOptionError if the model cannot be divided among them, if the context is longer than learned positions allow, or if a
    GPU's part of a matrix does not fit the weights' format.
    """
    if config.rope is None and wishes.context > config.max_position_embeddings:
        raise InvalidOptionError(
            f"context {wishes.context} is not allowed: this model has learned positions for {config.max_position_embeddings} tokens."
        )
    weights, kv_item = WEIGHT_FORMATS[wishes.dtype], kv_itemsize(wishes.kv_dtype, config.head_dim)
    all_stages, stages = costs.shard(config, wishes.tensor_parallel), wishes.pipeline_parallel
    part = last_stage(all_stages, stages)
    for matrix in layer_matrices(part):
        weights.check_inputs(f"the {matrix.name} of one GPU", matrix.inputs)
    sizes = dict(itemsize=weights.itemsize, kv_itemsize=kv_item, weight_format=weights, residual_window=wishes.residual_window)
    tflops, tflops_source = best_rate(gpu, wishes.dtype)

    machine = dict(config=config, gpu=gpu, tflops=tflops, degree=wishes.tensor_parallel, itemsize=weights.itemsize)
    together = micro_batches(wishes.batch, stages)
    decode = Passes(*(costs.decode_step(one, together.tokens, wishes.context, **sizes) for one in (all_stages, part)))
    part_weights = costs.weight_bytes(part, weights.itemsize, weight_format=weights)
    kv_token = costs.kv_bytes_per_token(part, kv_item)
    window, sequence_bytes, held_bytes = 0, wishes.policy.allocated_bytes(wishes.context, kv_token), wishes.context * kv_token
    if wishes.gpus == 1 and wishes.policy.name == "paged" and wishes.kv_dtype in KV_ITEMSIZES:  # where the engine has local blocks
        window = part.mixed_window
        sequence_bytes, held_bytes = costs.local_block_bytes(part, wishes.context, wishes.policy.block_size, kv_item)
    window_bytes = costs.ring_tokens(wishes.residual_window) * costs.kv_bytes_per_token(part, weights.itemsize)
    budget = int(gpu.memory_gb * 1e9 * wishes.memory_share)
    limits = step_limits(part, weights, kv_token, budget - part_weights, gpu)
    chunks = prompt_parts(wishes.context, stages, limits.tokens, wishes.residual_window)
    prompt = Passes(*(chunk_of(costs.prefill(one, wishes.context, **sizes), chunks) for one in (all_stages, part)))
    return Plan(
        wishes=wishes,
        parameters=costs.parameter_count(config),
        active_parameters=costs.active_parameters(config),
        touched_experts=touched_experts(config, together.tokens) if config.num_experts else None,
        all_weight_bytes=costs.weight_bytes(config, weights.itemsize, weight_format=weights),
        weight_bytes=part_weights,
        all_kv_bytes_per_token=costs.kv_bytes_per_token(config, kv_item),
        ungrouped_kv_bytes_per_token=costs.ungrouped_kv_bytes_per_token(config, kv_item),
        kv_bytes_per_token=kv_token,
        kv_bytes=wishes.batch * (sequence_bytes + window_bytes),
        window_bytes=window_bytes,
        sliding_window=window,
        kv_wasted_share=1 - held_bytes / sequence_bytes,
        max_num_seqs=limits.sequences,
        max_num_batched_tokens=limits.tokens,
        activation_bytes=forward_bytes(part, wishes.batch, weights.itemsize, limits.tokens),
        memory_bytes=int(gpu.memory_gb * 1e9),
        budget_bytes=budget,
        largest_batch=largest_batch(part, budget - part_weights, sequence_bytes + window_bytes, weights.itemsize, limits.tokens),
        bandwidth_tb_s=gpu.ceiling_tb_s,
        bandwidth_source=gpu.ceiling_source,
        tflops=tflops,
        tflops_source=tflops_source,
        ridge_batch=ridge_batch(config, weights.matrix_itemsize, tflops, gpu.ceiling_tb_s),
        decode=step_floor(decode, together, together.tokens, together.tokens, wishes.batch, **machine),
        prefill=step_floor(prompt, chunks, chunks.tokens, 1, wishes.context, **machine),
    )


def chunk_of(prompt: costs.Cost, chunks: MicroBatches) -> costs.Cost:
    """The average cost of a prompt's micro-batches: each reads the weights, and they divide the arithmetic."""
    return replace(prompt, flops=prompt.flops // chunks.count)


def ridge_batch(config: ModelConfig, itemsize: float, tflops: float, bandwidth_tb_s: float) -> float:
    """The batch from which multiplying by the layers' weights takes longer than reading them, all experts included."""
    matrices = costs.layer_matrix_parameters(config)
    multiplied = matrices - (config.num_experts - config.num_experts_per_tok) * expert_parameters(config)
    return itemsize * tflops / (2 * bandwidth_tb_s) * matrices / multiplied


def forward_bytes(config: ModelConfig, batch: int, itemsize: int, tokens: int) -> int:
    """Bytes of activations and logits of a forward with `tokens` tokens, or `batch` tokens if that is more."""
    widest = costs.widest_activation(config)
    return activation_bytes(max(tokens, batch), batch, config.hidden_size, widest, config.vocab_size, itemsize)


def largest_batch(config: ModelConfig, room: int, sequence_bytes: int, itemsize: int, tokens: int) -> int:
    """The largest number of sequences with `sequence_bytes` of cache each that fits in `room` bytes, in steps of `tokens` tokens."""
    fixed = forward_bytes(config, 0, itemsize, tokens)
    logits = forward_bytes(config, 1, itemsize, tokens) - fixed
    batch = (room - fixed) // (sequence_bytes + logits)
    if batch > tokens:  # every sequence then also needs the activations of one token
        batch = max(tokens, room // (sequence_bytes + logits + fixed // tokens))
    return max(0, batch)
