"""Pipeline parallelism: what a GPU of one of M stages holds, and the time of a step in micro-batches.

Each stage has an equal number of layers. A step of K micro-batches takes as long as one micro-batch through all stages, which is the whole
model's time for it. Then each of the other micro-batches takes the time of the last stage, which also has the head:

    step = whole(micro-batch) + (K - 1) last(micro-batch)          idle share of a stage: (M - 1) / (M - 1 + K), the bubble

A stage reads its weights once per micro-batch, and multiplies by them meanwhile. So micro-batches of few tokens only add reads: the engine
makes as many as there are stages if each has FEWEST_TOKENS, about half of what a Hopper GPU multiplies by 16-bit weights while it reads
them, and else fewer. Stages can hold a model that one GPU cannot, raise the throughput of large batches, and shorten long prompts, whose
parts, over all its steps, are micro-batches too, but no sequence's decode step. Source: Huang et al. 2019, "GPipe", section 2.3.
"""

from dataclasses import dataclass, replace

from minllm.costs.step_limits import STEP_LIMITS
from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig

FEWEST_TOKENS = 128  # per micro-batch, if there are several


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of a step, or of a prompt. count: how many; total: tokens of all of them."""

    count: int
    total: int
    stages: int

    @property
    def tokens(self) -> int:
        """The number of tokens of the largest one."""
        return -(-self.total // self.count)

    @property
    def bubble(self) -> float:
        """The share of the step, 0 to 1, in which a stage is idle, if all stages take equally long."""
        return (self.stages - 1) / (self.stages - 1 + self.count)


def micro_batches(tokens: int, stages: int) -> MicroBatches:
    """How the engine divides a step for its stages. tokens: those of the step, of which a sequence that decodes has one."""
    return MicroBatches(max(1, min(stages, tokens // FEWEST_TOKENS)), tokens, stages)


def prompt_parts(tokens: int, stages: int, step_tokens: int = STEP_LIMITS.tokens, residual_window: int = 0) -> MicroBatches:
    """The micro-batches of a prompt over all its steps; stages go on from one step to the next, since only the last one chooses a token.

    step_tokens: the most tokens of a step. residual_window: the cache's, with which a step does not cut its part of a prompt.
    """
    steps = -(-tokens // step_tokens) if stages > 1 else 1
    parts = 1 if residual_window else micro_batches(-(-tokens // steps), stages).count
    return MicroBatches(steps * parts, tokens, stages)


def last_stage(config: ModelConfig, stages: int) -> ModelConfig:
    """The last stage as a model of its own. Raises InvalidOptionError if layers do not divide evenly.

    It includes the embedding, for which every stage's memory is planned, though only the first stage uses it.
    """
    if config.num_hidden_layers % stages:
        allowed = ", ".join(str(one) for one in range(1, config.num_hidden_layers + 1) if config.num_hidden_layers % one == 0)
        raise InvalidOptionError(f"{stages} pipeline stages do not divide {config.num_hidden_layers} layers: take one of {allowed}.")
    layers = config.num_hidden_layers // stages
    return replace(config, num_hidden_layers=layers, sliding_windows=config.sliding_windows[-layers:])


def handed_over_bytes(config: ModelConfig, tokens: int, stages: int, itemsize: int) -> int:
    """Bytes of hidden states passed from stage to stage for one micro-batch of `tokens` tokens, over all stages."""
    return (stages - 1) * tokens * config.hidden_size * itemsize
