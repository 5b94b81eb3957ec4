"""The most sequences and tokens of a step: the defaults of max_num_seqs and max_num_batched_tokens.

A step of T tokens is long enough for its GEMMs if it exceeds their ridge, from which on multiplying takes longer than reading weights of b
bytes, and then takes

    t = F T / C        if T > b C / (2 B)        F FLOPs per token, C FLOPs and B bytes per second

A larger step hardly raises throughput, and every sequence that decodes in it waits longer for its token. So T is 2,048, four times the
ridge or more on every GPU of machine/hardware.py. Most steps only decode, one token for each of N sequences, and read all weights for them:
N is a number for 16-bit weights, near their ridge, and in proportion to C for others, whose steps then take as long. By the data sheets,
tensor cores multiply 8-bit codes at twice the rate of 16 bits (GeForce cards int8 at four times, which was not measured and counts as
twice). Weights of 4 bits are widened first, and have the C of 16 bits. So have experts, whose GEMMs were measured to be no faster in 8 bits
than in 16 (docs/results.md).

    T = 2048
    N = 256 C / C_16             512 for 8-bit codes

On a GPU with little memory beside the weights, M bytes, activations take at most a quarter of it, N shrinks as T does, and each sequence
must find room for 64 tokens of k bytes of keys and values:

    T <= M / (4 a)               a activation bytes per token, with an eighth of a row of logits; but at least 512
    N <= M / (64 k)              but at least 32

16-bit weights were measured with these numbers. docs/serving-metrics.md has what others gave for 8-bit weights.

Source of the ridge: Pope et al. 2023, "Efficiently Scaling Transformer Inference", section 2.
"""

from typing import NamedTuple

from minllm.cache.capacity import activation_bytes
from minllm.costs.parameters import widest_activation
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.weights.format import WeightFormat
from minllm.weights.formats import SIXTEEN_BITS

EIGHT_BITS = ("fp8_tflops", "int8_tops")
SPEED_OF_CODES = 2  # C of 8-bit codes, in C_16
TOKENS_PER_ROW = 8  # tokens per row of logits in a full step
TOKEN_STEP, SEQUENCE_STEP = 512, 8  # fewer tokens and sequences than usual are multiples
FEWEST_SEQUENCES = 32
SHORTEST_CONTEXT = 64  # tokens for which each sequence must have room
ACTIVATION_SHARE = 4  # activations take at most 1 / ACTIVATION_SHARE of the memory beside the weights


class StepLimits(NamedTuple):
    """The most sequences and tokens of a step."""

    sequences: int
    tokens: int


STEP_LIMITS = StepLimits(256, 2048)  # the limits with 16-bit weights, and those of a CPU


def step_limits(config: ModelConfig, weight_format: WeightFormat, kv_token_bytes: int, room: int, gpu: Gpu | None = None) -> StepLimits:
    """The limits of a step on one GPU, by the module's equations.

    config: of one GPU's part of the model. kv_token_bytes: bytes of a token's keys and values there. room: bytes beside the weights; if
    the weights do not fit, the limits are those of ample memory. gpu: None for a GPU that machine/hardware.py lacks.
    """
    sequences, tokens = STEP_LIMITS
    if not config.num_experts and multiplies_codes(weight_format, gpu):
        sequences *= SPEED_OF_CODES
    if room <= 0:
        return StepLimits(sequences, tokens)
    sizes = config.hidden_size, widest_activation(config), config.vocab_size, weight_format.itemsize
    fitting = room * TOKENS_PER_ROW // (ACTIVATION_SHARE * activation_bytes(TOKENS_PER_ROW, 1, *sizes))
    fewer = max(TOKEN_STEP, min(tokens, fitting // TOKEN_STEP * TOKEN_STEP))
    with_room = room // (SHORTEST_CONTEXT * kv_token_bytes) // SEQUENCE_STEP * SEQUENCE_STEP
    return StepLimits(max(FEWEST_SEQUENCES, min(sequences * fewer // tokens, with_room)), fewer)


def multiplies_codes(weight_format: WeightFormat, gpu: Gpu | None) -> bool:
    """Whether 8-bit tensor cores multiply the weights' codes. An unknown GPU counts as one that has them."""
    rate = (*weight_format.rates, *SIXTEEN_BITS)[0]
    return rate in EIGHT_BITS and (gpu is None or getattr(gpu, rate) is not None)
