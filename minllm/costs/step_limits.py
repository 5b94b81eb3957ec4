"""The most sequences and tokens of a step: the defaults of max_num_seqs and max_num_batched_tokens.

A step of T tokens is long enough for its GEMMs if it exceeds their ridge, from which on multiplying takes longer than reading weights of b
bytes, and then takes

    t = F T / C        if T > b C / (2 B)        F FLOPs per token, C FLOPs and B bytes per second

A larger step hardly raises throughput, and every sequence that decodes in it waits longer for its token. So T is a fixed number for 16-bit
weights, 2,048, four times the ridge or more on every GPU of machine/hardware.py, and in proportion to C for others: their steps take as
long. Weights whose codes 8-bit tensor cores multiply have a larger C. Weights of 4 bits are widened first, and have that of 16 bits. So do
experts: in 8 bits their GEMMs were measured to be no faster than in 16 (docs/results.md).

    T = 2048 C / C_16            in multiples of 512
    N = T / 8                    sequences: a step of decodes alone is near the ridge, and a full step is mostly prompts

On a GPU with little memory beside the weights, M bytes, activations take at most a quarter of it, and each sequence must find room for 64
tokens of k bytes of keys and values:

    T <= M / (4 a)               a activation bytes per token, with an eighth of a row of logits; but at least 512
    N <= M / (64 k)              but at least 32

16-bit weights were measured with 2,048 tokens and 256 sequences. In fp8 on an H200, the 8B shape reached 28,796 tokens/s with 512 sequences
and 2,048 tokens, and 2.8 % more with 1,024 and 16,384, while the 99th percentile of the time between tokens grew from 33 to 229 ms
(docs/serving-metrics.md).

Source of the ridge: Pope et al. 2023, "Efficiently Scaling Transformer Inference", section 2.
"""

from typing import NamedTuple

from minllm.cache.capacity import activation_bytes
from minllm.costs.parameters import widest_activation
from minllm.costs.step_time import CODES_OF_GEMM, OF_GEMM
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.weights.format import WeightFormat
from minllm.weights.formats import SIXTEEN_BITS

EIGHT_BITS = ("fp8_tflops", "int8_tops")
TOKENS_PER_SEQUENCE = 8
TOKEN_STEP = 512
FEWEST_SEQUENCES = 32
SHORTEST_CONTEXT = 64  # tokens for which each sequence must have room
ACTIVATION_SHARE = 4  # activations take at most 1 / ACTIVATION_SHARE of the memory beside the weights


class StepLimits(NamedTuple):
    """The most sequences and tokens of a step."""

    sequences: int
    tokens: int


STEP_LIMITS = StepLimits(256, 2048)  # of 16-bit weights, and on a CPU


def step_limits(config: ModelConfig, weight_format: WeightFormat, kv_token_bytes: int, room: int, gpu: Gpu | None = None) -> StepLimits:
    """The limits of a step on one GPU, by the module's equations.

    config: of one GPU's part of the model. kv_token_bytes: bytes of a token's keys and values there. room: bytes beside the weights; if
    the weights do not fit, the limits are those of ample memory. gpu: None for a GPU that machine/hardware.py lacks.
    """
    speed = CODES_OF_GEMM / OF_GEMM if not config.num_experts and multiplies_codes(weight_format, gpu) else 1
    tokens = round(STEP_LIMITS.tokens * speed / TOKEN_STEP) * TOKEN_STEP
    if room <= 0:
        return StepLimits(tokens // TOKENS_PER_SEQUENCE, tokens)
    sizes = config.hidden_size, widest_activation(config), config.vocab_size, weight_format.itemsize
    fitting = room * TOKENS_PER_SEQUENCE // (ACTIVATION_SHARE * activation_bytes(TOKENS_PER_SEQUENCE, 1, *sizes))
    tokens = max(TOKEN_STEP, min(tokens, fitting // TOKEN_STEP * TOKEN_STEP))
    sequences = room // (SHORTEST_CONTEXT * kv_token_bytes) // TOKENS_PER_SEQUENCE * TOKENS_PER_SEQUENCE
    return StepLimits(max(FEWEST_SEQUENCES, min(tokens // TOKENS_PER_SEQUENCE, sequences)), tokens)


def multiplies_codes(weight_format: WeightFormat, gpu: Gpu | None) -> bool:
    """Whether 8-bit tensor cores multiply the weights' codes. An unknown GPU counts as one that has them."""
    rate = (*weight_format.rates, *SIXTEEN_BITS)[0]
    return rate in EIGHT_BITS and (gpu is None or getattr(gpu, rate) is not None)
