"""The predicted times of a plan's steps on the GPUs whose kernels costs/step_time.py is fitted to: Hopper's.

    decode step    costs/step_time.py of one GPU's part, and the all-reduces between the GPUs of a stage
    prefill        t = t_request + stages / E + all-reduces
    in a pipeline  one micro-batch through all layers, and each of the others through the last stage (costs/pipeline.py)

All-reduces take the times that were measured between as many such GPUs, of the kernel that the engine chooses, of NCCL, or of what takes
their place if ranks divide the rows of a prompt, whichever is shortest. Every kernel of a prefill takes longer than step_time.py says,
which is fitted to kernels that run alone and briefly; E is that share, and t_request what the engine adds to a single prompt. Both are
fitted to prompts of 2,048 tokens of the 8B shape on one and two H200s (docs/results/h200_ranks.json).
"""

from collections.abc import Callable

from minllm import costs
from minllm.costs.measured_all_reduces import all_reduce_microseconds, kernels_microseconds
from minllm.costs.parallel import all_reduces
from minllm.costs.pipeline import MicroBatches, last_stage, micro_batches, prompt_parts
from minllm.costs.stages import forward_stages, visible_pairs
from minllm.costs.step_time import COMPARED, HEAD, LAUNCH, StepRates, decode_step_seconds, stage_seconds
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Sizes
from minllm.planning.formats import WEIGHT_FORMATS
from minllm.planning.plan import Wishes

HOPPERS = ("h100", "h200")  # beginnings of short names
SIXTEEN_BITS = ("bfloat16", "float16")
REQUEST_MS, SHARE_IN_PREFILL = 1.6, 0.88  # t_request and E


def step_rates(gpu: Gpu) -> StepRates | None:
    """The rates of a Hopper GPU; None for others, whose kernels were not measured."""
    if not gpu.short_name.startswith(HOPPERS):
        return None
    return StepRates.of(gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops)


def predicted_step_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> float | None:
    """Milliseconds of a decode step on Hopper GPUs, with a cache in 16 bits.

    None for other GPUs, caches and weights, and for as many GPUs as all-reduces were not measured between.
    """
    rates, parts = step_rates(gpu), micro_batches(wishes.batch, wishes.pipeline_parallel)
    if rates is None or not is_predicted(config, gpu, wishes, (*SIXTEEN_BITS, *COMPARED)):
        return None
    given = {} if wishes.dtype in SIXTEEN_BITS else dict(weight_format=WEIGHT_FORMATS[wishes.dtype])
    sums_alone = wishes.tensor_parallel > 1 and parts.tokens > 1  # no GEMM after a sum computes the norm

    def milliseconds(layers: ModelConfig) -> float:
        """Of a micro-batch in these layers."""
        seconds = decode_step_seconds(costs.shard(layers, wishes.tensor_parallel), parts.tokens, wishes.context, rates, **given)
        norms = 2 * layers.num_hidden_layers * LAUNCH if sums_alone else 0
        return 1e3 * (seconds + norms) + all_reduces_ms(layers, gpu, wishes, parts.tokens)

    return through_stages(config, parts, milliseconds)


def predicted_prefill_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> float | None:
    """Milliseconds from one prompt of `wishes.context` tokens to its token, with weights in 16 bits; None as for predicted_step_ms."""
    rates, parts = step_rates(gpu), prompt_parts(wishes.context, wishes.pipeline_parallel)
    if rates is None or not is_predicted(config, gpu, wishes, SIXTEEN_BITS):
        return None
    tokens, context = parts.tokens, wishes.context

    def milliseconds(layers: ModelConfig) -> float:
        """Of a micro-batch in these layers, with as many keys before it as the average."""
        part = costs.shard(layers, wishes.tensor_parallel)
        visible = sum(visible_pairs(context, window) for window in part.sliding_windows) // parts.count
        stages = forward_stages(part, Sizes(tokens, 1, visible=visible, read=context * part.num_hidden_layers))
        given = part, rates, WEIGHT_FORMATS["bfloat16"]
        seconds = sum(stage_seconds(stage, 1 if stage.name in HEAD else tokens, *given) for stage in stages)
        return 1e3 * seconds / SHARE_IN_PREFILL + all_reduces_ms(layers, gpu, wishes, tokens)

    return REQUEST_MS + through_stages(config, parts, milliseconds)


def through_stages(config: ModelConfig, parts: MicroBatches, milliseconds: Callable[[ModelConfig], float]) -> float:
    """Milliseconds of a step. milliseconds: of a micro-batch in some layers, which are a model of their own."""
    others = parts.count - 1
    return milliseconds(config) + (others * milliseconds(last_stage(config, parts.stages)) if others else 0)


def is_predicted(config: ModelConfig, gpu: Gpu, wishes: Wishes, weights: tuple[str, ...]) -> bool:
    """Whether steps are predicted for these weights, this cache and so many GPUs. Experts were measured in 16 bits on one GPU."""
    unmeasured = config.num_experts and (wishes.gpus > 1 or wishes.dtype not in SIXTEEN_BITS)
    reduces = wishes.tensor_parallel == 1 or all_reduce_times(config, gpu, wishes, 1)
    return wishes.dtype in weights and wishes.kv_dtype in SIXTEEN_BITS and not unmeasured and bool(reduces)


def all_reduces_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes, tokens: int) -> float:
    """Milliseconds of the all-reduces of a step of this number of tokens."""
    return 0.0 if wishes.tensor_parallel == 1 else 1e-3 * all_reduces(config) * min(all_reduce_times(config, gpu, wishes, tokens))


def all_reduce_times(config: ModelConfig, gpu: Gpu, wishes: Wishes, tokens: int) -> list[float]:
    """Microseconds of an all-reduce by NCCL and by the kernels; empty if they were not measured between these GPUs."""
    name, ranks = gpu.short_name, wishes.tensor_parallel
    nccl = all_reduce_microseconds(name, ranks, tokens * config.hidden_size * 2)
    return [one for one in (nccl, kernels_microseconds(config, name, ranks, tokens)) if one is not None]
