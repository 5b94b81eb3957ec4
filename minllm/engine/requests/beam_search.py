"""Beam search: keep the beam_width likeliest continuations of a prompt, and extend them all by one token per step.

    candidates   Σ log p of a beam + log p(v | beam), for the likeliest tokens v of every beam
    completed    candidates that end the text, by their score
    beams        the beam_width best of the other candidates

    score = Σ log p / length ** length_penalty        length: tokens of prompt and output, without one that ends the text

A beam is a sequence of the scheduler. A step computes all beams, and each then waits (`is_held`) until the search has the candidates of
all. A beam with several children among the next beams is forked, and the children share its blocks; a beam without a child is freed. Beams
without room wait like other sequences, and the search waits for them.

The search ends after max_tokens, or when no beam can still beat the beam_width completed sequences: a sum of log-probabilities only falls,
so no score exceeds the present sum over the shortest or the longest possible length, whichever gives more.

Sources: Lowerre, "The HARPY speech recognition system", 1976; the score and the results are those of vLLM (vllm/beam_search.py).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.engine.requests.outputs import BeamSearchOutput, BeamSearchSequence, FinishReason, Logprob
from minllm.engine.requests.sequence import Sequence
from minllm.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minllm.engine.scheduling.queues import Queues


class Candidate(NamedTuple):
    """A beam and a token that may follow it."""

    logprob: float  # sum of the output tokens' log-probabilities
    beam: "Beam"
    token_id: int


class Completed(NamedTuple):
    """A continuation that has ended."""

    score: float
    logprob: float
    token_ids: list[int]  # output tokens
    finish_reason: FinishReason


@dataclass(eq=False, repr=False)
class Beam(Sequence):
    """A sequence with tokens that its `search` chooses."""

    candidates: dict[int, Logprob] | None = None  # likeliest next tokens; None before its first step

    def append(self, token_id: int, logprobs: dict[int, Logprob] | None = None, now: float | None = None) -> None:
        """Keep the likeliest tokens for the search, and hold the beam."""
        self.candidates, self.is_held = logprobs, True


class BeamSearch:
    """One search over beam_width `beams`: the first computes the prompt, and the others are forked from it."""

    def __init__(self, params: BeamSearchParams, beams: list[Beam]):
        self.params, self.beams = params, beams
        self.live = beams[:1]  # beams that the current step extends
        self.completed: list[Completed] = []  # at most beam_width, best first
        for beam in beams:
            beam.search, beam.is_held = self, beam is not beams[0]

    def advance(self, queues: "Queues") -> None:
        """Choose the next beams, once all live beams have their candidates."""
        if not all(beam.is_held for beam in self.live) or self.beams[0].is_finished:
            return
        found = [
            Candidate(beam.cumulative_logprob + token.logprob, beam, token_id)
            for beam in self.live for token_id, token in (beam.candidates or {}).items() if token.logprob > -np.inf
        ]  # fmt: skip
        found.sort(key=lambda candidate: -candidate.logprob)
        self._complete([one for one in found if one.token_id in one.beam.eos_token_ids], "stop")
        chosen = [one for one in found if one.token_id not in one.beam.eos_token_ids][: self.params.beam_width]
        if chosen and len(chosen[0].beam.output_token_ids) + 1 == chosen[0].beam.max_tokens:
            self._complete(chosen, "length")
            chosen = []
        if not chosen or self._is_decided(chosen):
            queues.end(self.beams[0], self.completed[0].finish_reason if self.completed else "stop")
        else:
            self._extend(chosen, queues)

    def output(self, tokenizer: Tokenizer) -> BeamSearchOutput:
        """The best completed sequences, best first."""
        prompt, sequences = self.beams[0].prompt_token_ids, []
        for one in self.completed:
            tokens, is_ended = prompt + one.token_ids, one.finish_reason == "stop"
            text = tokenizer.decode(tokens[:-1] if is_ended else tokens)
            if is_ended and self.params.include_stop_str_in_output:
                text += tokenizer.decode(tokens[-1:], skip_special_tokens=False)
            sequences.append(BeamSearchSequence(tokens, one.logprob, text, one.finish_reason))
        return BeamSearchOutput(sequences)

    def _complete(self, ended: list[Candidate], reason: FinishReason) -> None:
        """Keep the best beam_width of all ended candidates; among equals, those that ended first."""
        for logprob, beam, token_id in ended:
            length = beam.num_tokens + (reason == "length")
            score = logprob / length**self.params.length_penalty
            self.completed.append(Completed(score, logprob, [*beam.output_token_ids, token_id], reason))
        self.completed = sorted(self.completed, key=lambda one: -one.score)[: self.params.beam_width]

    def _is_decided(self, chosen: list[Candidate]) -> bool:
        """Whether no beam can still change the result."""
        if len(self.completed) < self.params.beam_width:
            return False
        beam, penalty = chosen[0].beam, self.params.length_penalty
        shortest, longest = beam.num_tokens + 1, beam.num_reserved_tokens
        bound = chosen[0].logprob / max(shortest**penalty, longest**penalty)
        return self.params.early_stopping or self.completed[-1].score >= bound

    def _extend(self, chosen: list[Candidate], queues: "Queues") -> None:
        """Continue each parent as its best child; its other children take over beams without a child."""
        parents = {one.beam for one in chosen}
        idle = [beam for beam in self.beams if beam not in parents]
        for beam in idle:
            queues.park(beam)
        children = []
        for logprob, parent, token_id in chosen:
            child = parent if parent in parents else idle.pop(0)
            parents.discard(parent)
            children.append((child, parent, logprob, [*parent.output_token_ids, token_id]))
        for child, _, logprob, token_ids in children:
            child.output_token_ids, child.cumulative_logprob = token_ids, logprob
        self.live = [child for child, *_ in children]
        for child, parent, *_ in sorted(children, key=lambda one: one[0] is one[1]):  # forks first, before a parent continues
            queues.resume(child, parent)


class Temperature:
    """Divides logits: a function for `Sequence.logits_processors`."""

    def __init__(self, temperature: float):
        self.temperature = np.float32(temperature)

    def __call__(self, output_token_ids: list[int], logits: np.ndarray) -> np.ndarray:
        """The logits divided by the temperature."""
        return logits / self.temperature
