"""Parameters of a beam search, with vLLM's names and defaults."""

from dataclasses import dataclass

from minllm.engine.requests.parameter_checks import flag, integer, real
from minllm.engine.requests.sampling_params import MAX_LOGPROBS

MAX_BEAM_WIDTH = MAX_LOGPROBS // 2  # a step reads the 2 * beam_width likeliest continuations of each beam
MAX_LENGTH_PENALTY = 10.0  # a higher power of a long context's length overflows


@dataclass(frozen=True)
class BeamSearchParams:
    """The options of one beam search, all checked here; InvalidRequestError names the first wrong value.

    beam_width: sequences kept after every step, and returned at the end, likeliest first.
    max_tokens: the most tokens to generate.
    ignore_eos: continue past the model's end-of-sequence ids.
    temperature: divides the logits before their log-probabilities are taken; 0 leaves them as they are. Slow unless it is 0 or 1: the
        logits go to the host and back at every step.
    length_penalty: beams rank by their cumulative log-probability over their length, in tokens of prompt and output, to this power; above
        0 favours long ones.
    early_stopping: end as soon as beam_width sequences have ended, rather than when no other can beat them.
    include_stop_str_in_output: keep the text of the end-of-sequence token.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        most = MAX_LENGTH_PENALTY
        checked = {
            "beam_width": integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH, f"an integer from 1 to {MAX_BEAM_WIDTH}"),
            "max_tokens": integer("max_tokens", self.max_tokens, 1, None, "an integer of at least 1"),
            "ignore_eos": flag("ignore_eos", self.ignore_eos),
            "temperature": real("temperature", self.temperature, 0.0, 2.0, "a number from 0 (off) to 2"),
            "length_penalty": real("length_penalty", self.length_penalty, -most, most, f"a number from -{most:g} to {most:g}"),
            "early_stopping": flag("early_stopping", self.early_stopping),
            "include_stop_str_in_output": flag("include_stop_str_in_output", self.include_stop_str_in_output),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # frozen for users; values are normalised here
