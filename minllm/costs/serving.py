"""The arithmetic of batching: the time of a mixed step, and the load that a server can bear.

A step computes T tokens: one for each of n decodes, and chunks of prompts. Its kernels run one after another, so their floors add up.
Linear layers compute all tokens together, attention computes decodes and prompts separately. With W bytes of weights, F FLOPs per token,
k bytes of keys and values per token, B bytes per second and C FLOPs per second:

    t = max(W / B, F T / C)  +  k (sum of the decodes' contexts) / B  +  max(bytes / B, FLOPs / C) of the prompts' attention

While F T / C < W / B this is t = alpha + beta n, with alpha = W / B and beta = k context / B. Let lambda requests per second arrive, each
with a prompt that occupies the engine for S seconds, and an answer of o tokens. Prompts take lambda S of each second, so a token takes
TPOT = (alpha + beta n) / (1 - lambda S), and by Little's law n = lambda o TPOT sequences decode at a time. Solved for TPOT:

    rho = lambda (S + o beta)                     utilisation: seconds of work that arrive per second
    TPOT = alpha / (1 - rho)                      all decodes share the step: processor sharing
    wait = lambda E[S^2] / (2 (1 - lambda S))     prompts queue for the engine: the Pollaczek-Khinchine formula
    TTFT = wait + S + the rest of the running step + the steps planned ahead

The equations hold until n reaches N, the smallest of three numbers: the slots, the sequences that fit in the cache, and the tokens beyond
which linear layers are compute-bound. This is the knee: beyond lambda = 1 / (S + o (beta + alpha / N)) the queue grows without end.

They assume whole prompts in steps of their own. A prompt that shares its step with decodes costs less than S, by up to alpha, because the
weights are read anyway. Activations, launches and the host are not counted. So the results are floors. With experts W / B grows with T,
until all of them are read; the equations take that for every step.

Sources: Kleinrock, "Queueing Systems", volume 1 (1975), section 5.6 (Pollaczek-Khinchine), and volume 2 (1976), section 4.4 (processor
sharing); Little, "A Proof for the Queuing Formula L = lambda W", 1961; Yu et al., "Orca", OSDI 2022, section 3.2 (attention apart).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import fmean

from minllm.costs.parameters import expert_parameters
from minllm.costs.stages import forward_stages, visible_pairs
from minllm.costs.step_limits import STEP_LIMITS
from minllm.models.config import ModelConfig
from minllm.models.parts.experts import touched_experts
from minllm.models.parts.terms import Sizes


@dataclass(frozen=True)
class StepCosts:
    """The floor of a step's time as a function of its tokens, for one model on one machine; counts from stages.py."""

    fixed_bytes: int  # bytes of the weights
    token_bytes: int  # bytes per token: its row of the embedding, and its keys and values
    token_flops: int
    row_flops: int  # FLOPs of the LM head, per token that is sampled from
    read_bytes: int  # bytes per key and value that attention reads, in one layer
    pair_flops: int  # FLOPs per pair of a query and a key, in one layer
    windows: tuple[int, ...]  # each layer's sliding window, 0 for none
    bytes_per_s: float
    flops_per_s: float
    expert_bytes: int = 0  # bytes per expert that a step touches, over all layers
    touched: Callable[[float], float] = lambda tokens: 0  # experts per layer that this number of tokens touches

    @classmethod
    def of(
        cls, config: ModelConfig, bandwidth_tb_s: float, tflops: float, itemsize: int = 2, kv_itemsize: float = 2
    ) -> "StepCosts":  # fmt: skip
        """The costs of a model, from its stages, which are linear in the numbers of tokens, rows, pairs and keys."""

        def counts(tokens: int = 0, rows: int = 0, visible: int = 0, read: int = 0) -> tuple[int, int]:
            stages = forward_stages(config, Sizes(tokens, rows, visible, read, itemsize, itemsize, kv_itemsize))
            return sum(stage.weight_bytes + stage.kv_bytes for stage in stages), sum(stage.flops for stage in stages)

        fixed, experts = counts()[0], {}
        token_bytes, token_flops = counts(tokens=1)
        if config.num_experts:
            of_expert = config.num_hidden_layers * expert_parameters(config) * itemsize
            experts = dict(expert_bytes=of_expert, touched=partial(touched_experts, config))
            token_bytes -= of_expert * config.num_experts_per_tok
        return cls(
            fixed, token_bytes - fixed, token_flops, counts(rows=1)[1], counts(read=1)[0] - fixed, counts(visible=1)[1],
            tuple(config.sliding_windows), bandwidth_tb_s * 1e12, tflops * 1e12, **experts,
        )  # fmt: skip

    def seconds(self, contexts: Iterable[float] = (), chunks: Iterable[tuple[int, int]] = (), num_sampled: int | None = None) -> float:
        """The floor of a step, in seconds.

        contexts: for each decode, the keys that it sees, its own included. chunks: (start, length) of parts of prompts. num_sampled: the
        number of tokens that are sampled from, by default one per decode and one per chunk.
        """
        contexts, chunks = list(contexts), list(chunks)
        tokens = len(contexts) + sum(length for _, length in chunks)
        rows = len(contexts) + len(chunks) if num_sampled is None else num_sampled
        linear = self.linear_seconds(tokens, rows)
        keys = sum(self._keys(context) for context in contexts)
        return linear + self._attention_seconds(keys, keys) + self._attention_seconds(*self._prompt_keys(chunks))

    def linear_seconds(self, tokens: float, rows: float) -> float:
        """The floor of everything but attention: the longer of memory traffic and arithmetic."""
        moved = (self.fixed_bytes + self.expert_bytes * self.touched(tokens) + tokens * self.token_bytes) / self.bytes_per_s
        computed = (tokens * self.token_flops + rows * self.row_flops) / self.flops_per_s
        return max(moved, computed)

    def other_seconds(self, verifies: bool) -> float:
        """The floor of launches, with or without drafts to verify: 0."""
        return 0.0

    @property
    def weights_seconds(self) -> float:
        """The floor of a step that only reads the weights, of all experts if there are any."""
        return (self.fixed_bytes + self.expert_bytes * self.touched(inf)) / self.bytes_per_s

    @property
    def ridge(self) -> float:
        """The number of decodes per step beyond which linear layers are compute-bound."""
        arithmetic = (self.token_flops + self.row_flops) / self.flops_per_s
        return self.weights_seconds / (arithmetic - self.token_bytes / self.bytes_per_s)

    def _keys(self, context: float) -> float:
        """Keys that a query sees over all layers; context: the keys up to and including its own."""
        if not any(self.windows):
            return len(self.windows) * context
        return sum(min(context, window) if window else context for window in self.windows)

    def _prompt_keys(self, chunks: list[tuple[int, int]]) -> tuple[int, int]:
        """(keys read, pairs of a query and a key) of chunks (start, length) of prompts, over all layers."""
        read = pairs = 0
        for start, length in chunks:
            end = start + length
            read += len(self.windows) * end
            pairs += sum(visible_pairs(end, window) - visible_pairs(start, window) for window in self.windows)
        return read, pairs

    def _attention_seconds(self, read: int, pairs: int) -> float:
        return max(read * self.read_bytes / self.bytes_per_s, pairs * self.pair_flops / self.flops_per_s)


@dataclass(frozen=True)
class Load:
    """The load of requests on a server, by the module's equations.

    prompts, outputs: samples of their lengths, in tokens. max_num_seqs: the most sequences that decode at a time: the slots, or those that
    fit in the cache. steps_ahead: steps that are planned before the running step has ended; a request that arrives now cannot join them.
    """

    step: StepCosts
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    max_num_seqs: int = STEP_LIMITS.sequences
    steps_ahead: int = 1

    @property
    def output(self) -> float:
        """o: mean tokens of an answer."""
        return fmean(self.outputs)

    @property
    def context(self) -> float:
        """Mean keys that a decode sees: prompt and answer so far. Long answers decode more often."""
        return fmean(self.prompts) + fmean(tokens**2 for tokens in self.outputs) / (2 * self.output)

    @property
    def empty_step(self) -> float:
        """alpha: seconds of a step that only reads the weights."""
        return self.step.weights_seconds

    @property
    def per_decode(self) -> float:
        """beta: seconds that each decode adds to a step while memory bounds it."""
        attention = self.step.seconds([self.context]) - self.step.linear_seconds(1, 1)
        return attention + self.step.token_bytes / self.step.bytes_per_s

    @property
    def prefill_seconds(self) -> float:
        """S: mean seconds of a step that computes one prompt."""
        return fmean(self._prefills)

    @property
    def most_decodes(self) -> float:
        """N: the most decodes that share the reading of the weights: the slots or the ridge, whichever is smaller."""
        return min(self.max_num_seqs, self.step.ridge)

    @property
    def capacity(self) -> float:
        """Requests per second that the server can bear."""
        return 1 / (self.prefill_seconds + self.output * (self.per_decode + self.empty_step / self.most_decodes))

    def utilisation(self, rate: float) -> float:
        """rho: seconds of work that arrive per second, without reading the weights, which all decodes share."""
        return rate * (self.prefill_seconds + self.output * self.per_decode)

    def tpot(self, rate: float) -> float:
        """Mean seconds per output token at `rate` requests per second; inf beyond the knee."""
        return self.empty_step / (1 - self.utilisation(rate)) if rate < self.capacity else inf

    def num_running(self, rate: float) -> float:
        """n: mean number of sequences that decode at a time, by Little's law; inf beyond the knee."""
        return rate * self.output * self.tpot(rate)

    def wait(self, rate: float) -> float:
        """Mean seconds that a prompt waits for earlier prompts; inf beyond the knee."""
        squares = fmean(seconds**2 for seconds in self._prefills)
        return rate * squares / (2 * (1 - rate * self.prefill_seconds)) if rate < self.capacity else inf

    def ttft(self, rate: float) -> float:
        """Mean seconds to the first token: half a step, the steps planned ahead, earlier prompts, and its own prompt."""
        if rate >= self.capacity:
            return inf
        decode_step = self.empty_step + self.per_decode * self.num_running(rate)
        return (0.5 + self.steps_ahead) * decode_step + self.wait(rate) + self.prefill_seconds

    @property
    def _prefills(self) -> list[float]:
        return [self.step.seconds(chunks=[(0, tokens)]) for tokens in self.prompts]
