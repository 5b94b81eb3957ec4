"""The predicted times of a plan's steps on the GPUs whose kernels costs/step_time.py is fitted to: Hopper's.

    decode step    costs/step_time.py of one GPU's part, and the all-reduces between the GPUs of a stage
    prefill        t = t_request + stages / E + all-reduces

All-reduces take the times that were measured between as many such GPUs, of the kernel that the engine chooses or of NCCL, whichever is
shorter. Every kernel of a prefill takes longer than step_time.py says, which is fitted to kernels that run alone and briefly; E is that
share, and t_request what the engine adds to a single prompt. Both are fitted to prompts of 2,048 tokens of the 8B shape on one and two
H200s (docs/results/h200_ranks.json).
"""

from minllm import costs
from minllm.costs.measured_all_reduces import KERNELS, NCCL, all_reduce_microseconds
from minllm.costs.parallel import all_reduces
from minllm.costs.stages import forward_stages, visible_pairs
from minllm.costs.step_time import COMPARED, HEAD, LAUNCH, StepRates, decode_step_seconds, stage_seconds
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Sizes
from minllm.planning.formats import WEIGHT_FORMATS
from minllm.planning.plan import Wishes

HOPPERS = ("h100", "h200")  # beginnings of short names
SIXTEEN_BITS = ("bfloat16", "float16")
REQUEST_MS, SHARE_IN_PREFILL = 1.6, 0.855  # t_request and E


def step_rates(gpu: Gpu) -> StepRates | None:
    """The rates of a Hopper GPU; None for others, whose kernels were not measured."""
    if not gpu.short_name.startswith(HOPPERS):
        return None
    return StepRates.of(gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops)


def predicted_step_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> float | None:
    """Milliseconds of a decode step on Hopper GPUs, with a cache in 16 bits.

    None for other GPUs, caches and weights, for a pipeline, and for as many GPUs as all-reduces were not measured between.
    """
    rates, reduced = step_rates(gpu), all_reduces_ms(config, gpu, wishes, wishes.batch)
    if rates is None or reduced is None or not is_predicted(config, wishes, (*SIXTEEN_BITS, *COMPARED)):
        return None
    part, weights = costs.shard(config, wishes.tensor_parallel), WEIGHT_FORMATS[wishes.dtype]
    given = {} if wishes.dtype in SIXTEEN_BITS else dict(weight_format=weights)
    norms = 2 * config.num_hidden_layers if wishes.tensor_parallel > 1 and wishes.batch > 1 else 0  # no GEMM after a sum computes them
    return 1e3 * (decode_step_seconds(part, wishes.batch, wishes.context, rates, **given) + norms * LAUNCH) + reduced


def predicted_prefill_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> float | None:
    """Milliseconds from one prompt of `wishes.context` tokens to its token, with weights in 16 bits; None as for predicted_step_ms."""
    rates, reduced = step_rates(gpu), all_reduces_ms(config, gpu, wishes, wishes.context)
    if rates is None or reduced is None or not is_predicted(config, wishes, SIXTEEN_BITS):
        return None
    part, tokens = costs.shard(config, wishes.tensor_parallel), wishes.context
    stages = forward_stages(part, Sizes(tokens, 1, visible=visible_pairs(tokens, 0), read=tokens))
    given = part, rates, WEIGHT_FORMATS["bfloat16"]
    seconds = sum(stage_seconds(stage, 1 if stage.name in HEAD else tokens, *given) for stage in stages)
    return REQUEST_MS + 1e3 * seconds / SHARE_IN_PREFILL + reduced


def is_predicted(config: ModelConfig, wishes: Wishes, weights: tuple[str, ...]) -> bool:
    """Whether steps are predicted for these weights and this cache. Experts were measured in 16 bits on one GPU."""
    unmeasured = config.num_experts and (wishes.gpus > 1 or wishes.dtype not in SIXTEEN_BITS)
    return wishes.pipeline_parallel == 1 and wishes.dtype in weights and wishes.kv_dtype in SIXTEEN_BITS and not unmeasured


def all_reduces_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes, tokens: int) -> float | None:
    """Milliseconds of the all-reduces of a step of this number of tokens; None if they were not measured between these GPUs."""
    if wishes.tensor_parallel == 1:
        return 0.0
    message = tokens * config.hidden_size * 2
    times = [all_reduce_microseconds(gpu.short_name, wishes.tensor_parallel, message, by) for by in (NCCL, KERNELS)]
    known = [one for one in times if one is not None]
    return 1e-3 * all_reduces(config) * min(known) if known else None
