"""The interface between a forward pass and a machine: the operations on batches (batch.py) as one protocol.

`models/decoder.py` is written against `Ops` alone. `numpy_ops.NumpyOps` implements it with the NumPy references of the kernels,
`cuda_ops.CudaOps` with the kernels themselves. An operation here is a fused step of a decoder (a normalisation with its residual addition;
a projection, rotation and cache write in one), not a primitive of an array library.

"Array" below is the machine's own array type: a NumPy array, or a device array. Only `array`, `weight` and `to_host` convert between them.
T is the number of tokens of a batch, B the number of its sequences, R the number of rows that get logits.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from minllm.ops.batch import Array, AttentionConfig, Batch, LayerCache, NormWeights, Routing
from minllm.weights.linear import Linear

if TYPE_CHECKING:  # a configuration is read without loading a compiler
    from minllm.kernels.sampling.log_probabilities import LogProbabilities
    from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
    from minllm.kernels.slots.state import SlotState
    from minllm.kernels.speculation.lookahead import LookaheadState
    from minllm.kernels.speculation.state import DraftState
    from minllm.weights.format import WeightFormat


class ForwardOps(Protocol):
    """The operations of a forward pass. Activations are stored in `dtype` (NumPy float32, float16 or ml_dtypes.bfloat16); every sum,
    statistic and softmax is float32. No operation changes an argument, except that `qkv_rope_append` (and `normed_qkv`, which contains it)
    and `copy_blocks` write the cache."""

    dtype: np.dtype

    def array(self, host_array: np.ndarray) -> Array:
        """The machine's array of the same shape and dtype: a copy on a GPU, the array itself in NumPy."""
        ...

    def to_host(self, array: Array) -> np.ndarray:
        """A NumPy array with the same contents. Waits until it is computed."""
        ...

    def copied(self, array: Array) -> Array:
        """A copy in new memory, made without waiting."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array with unspecified contents."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array of zeros."""
        ...

    def weight(self, host_array: np.ndarray) -> Array:
        """A parameter in the machine's own form, rounded to the activations' dtype.

        [out_features, in_features] for a matrix. The result is only passed to the operations below; the host array may be a view of a
        memory-mapped file and is not kept.
        """
        ...

    def uploads(self) -> AbstractContextManager:
        """A context within which `weight` and `stacked_weight` are fast for large arrays."""
        ...

    def stacked_weight(self, parts: Sequence[np.ndarray]) -> Array:
        """The `weight` of these matrices stacked by rows."""
        ...

    def encoded(self, weight_format: "WeightFormat", parts: Sequence[np.ndarray]) -> Any:
        """The weight of these floating-point matrices stacked by rows, in a quantised format: weight_format.encode, placed on the machine.

        The host arrays hold no NaN.
        """
        ...

    def embed(self, batch: Batch, embedding: Array, position_embedding: Array | None = None, scale: float = 1.0) -> Array:
        """The rows of `embedding` [vocab, hidden] at token_ids, plus those of `position_embedding` [positions, hidden] at positions, times
        `scale`, which is rounded to the activations' dtype. Returns [T, hidden]."""
        ...

    def add_norm(self, x: Array, residual: Array | None, norm: NormWeights) -> tuple[Array, Array]:
        """(normalised, residual): the new residual is x + residual (x alone if residual is None), normalised is its normalisation.
        All are [T, hidden]."""
        ...

    def linear(self, x: Array, linear: Linear) -> Array:
        """x @ weight.T (+ bias): [T, in] to [T, out]."""
        ...

    def qkv_rope_append(
        self,
        qkv: Array,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Array | None = None,
    ) -> Array:
        """Split qkv [T, (heads + 2 * kv_heads) * head_dim], write keys and values to the cache, return queries [T, heads, head_dim].

        Queries and keys are normalised head by head if the configuration has their norms, then rotated by the table cos_sin
        [positions, head_dim] (first half cosines, second half sines) if it is given. Values are stored as they are.
        """
        ...

    def copy_blocks(self, cache: Array, copies: Array, to: Array | None = None) -> None:
        """to[destination] = cache[source] for pairs (source, destination), int32 [P, 2]; cache [num_blocks, ...] of any dtype; `to` is
        the cache itself, or another such array. No pair may write a block that another pair reads or writes."""
        ...

    def copy_blocks_of_layers(self, caches: Array, copies: Array) -> None:
        """copy_blocks in every layer of caches [layers, num_blocks, ...]."""
        ...

    def write_words(self, words: Array, pairs: Array) -> None:
        """words[index] = word for pairs (index, word), int32 [n, 2]; words int32 [any]."""
        ...

    def local_blocks(self, batch: Batch, local_of: Array, block_size: int) -> tuple[Array, Array]:
        """The batch's (slot_mapping, block_tables) with local_of[block] in place of each block.

        A block without a local one, local_of[block] = 0, is not written: its slots become -1.
        """
        ...

    def quantize_groups(self, layer_cache: LayerCache, batch: Batch) -> None:
        """Writes codes of the groups of recent tokens that the batch has completed, in caches with keys quantised by channel."""
        ...

    def attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Array:
        """Softmax(scale * q . K) V over the cached context of each sequence, causal: [T, heads, head_dim] to [T, heads * head_dim]."""
        ...

    def gated_mlp(self, x: Array, gate_up: Linear, down: Linear, activation: str) -> Array:
        """(activation(x @ gate.T) * (x @ up.T)) @ down.T: gate_up [2 * intermediate, hidden] holds gate first; down
        [hidden, intermediate]; activation is "silu" or "gelu_tanh". Returns [T, hidden]."""
        ...

    def mlp(self, x: Array, up: Linear, down: Linear, activation: str) -> Array:
        """down(activation(up(x))); activation is "gelu" (exact) or "gelu_tanh". Returns [T, hidden]."""
        ...

    def experts(self, x: Array, router: Array, gate_up: Linear, down: Linear, routing: Routing) -> Array:
        """The sum of the outputs of each token's chosen experts, times their weights: [T, hidden] to [T, hidden].

        router [experts, hidden] gives a logit per expert. Expert e computes down_e(silu(gate_e(x)) * up_e(x)); gate_up
        [experts * 2 * intermediate, hidden] holds gate, then up, of expert 0, then of the next; down [experts * hidden, intermediate].
        """
        ...

    def gated_add(self, x: Array, y: Array, gate: Array) -> Array:
        """x + sigmoid(gate) * y: x and y [T, hidden], gate [T, 1]."""
        ...

    # The next four may be composed of those above (ops/composed.py). The residual stream is a pair (x, residual): the stream is their sum,
    # or x alone if residual is None.

    def normed_qkv(
        self,
        x: Array,
        residual: Array | None,
        norm: NormWeights,
        qkv: Linear,
        *,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Array | None = None,
    ) -> tuple[Array, Array]:
        """(queries, new residual): the new residual is x + residual, the queries are qkv_rope_append(linear(norm(new residual)))."""
        ...

    def linear_add(self, x: Array, linear: Linear, residual: Array, next_norm: NormWeights | None = None) -> tuple[Array, Array | None]:
        """The residual stream, as a pair, after adding linear(x). next_norm: the stream's next normalisation, which a machine may begin
        here; the x that it returns is then a private type that its normed operations, `add_norm` and `logits` take."""
        ...

    def normed_gated_mlp(
        self, x: Array, residual: Array | None, norm: NormWeights, gate_up: Linear, down: Linear, *, activation: str,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """The residual stream, as a pair, after adding gated_mlp of its normalisation; next_norm as in linear_add."""
        ...

    def normed_experts(
        self, x: Array, residual: Array | None, norm: NormWeights, router: Array, gate_up: Linear, down: Linear, routing: Routing,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """The residual stream, as a pair, after adding `experts` of its normalisation; next_norm as in linear_add."""
        ...

    def logits(
        self, x: Array, residual: Array | None, norm: NormWeights, lm_head: Linear, rows: Array | None, soft_cap: float = 0.0
    ) -> Array:  # fmt: skip
        """The logits of the next token: add_norm of these R rows only (None: of all rows), then the head [vocab, hidden].

        soft_cap: they become soft_cap * tanh(logit / soft_cap); 0 for none. Returns float32 [R, vocab].
        """
        ...


class SlotOps(Protocol):
    """The next tokens, and the state of the running sequences (kernels/slots). slots, int32 [R]: the slot of each row; -1 for padding."""

    def sample(self, logits: Array, sampling: "SamplingTensors", slots: Array) -> Array:
        """One token id per row, int32 [R], from float32 logits [R, vocab]; row r has the parameters of slots[r], and slot -1 gives token 0.

        `sampling.kind` selects the rules to apply: the largest kind of the rows' requests.
        """
        ...

    def mask_logits(self, logits: Array, indices: Array, masks: Array) -> Array:
        """The logits, float32 [R, vocab], with -inf for the tokens that a row's mask excludes; the argument stays.

        indices: int32 [R], the mask of each row, -1 for none. masks: int32 [M, words], bits of 32 tokens a word.
        """
        ...

    def log_probabilities(self, logits: Array, token_ids: Array, top: int) -> "LogProbabilities":
        """Log-probability and rank of one token per row, token_ids int32 [R], and of the row's `top` likeliest tokens, in the machine's
        arrays, from float32 logits [R, vocab] as the model computed them."""
        ...

    def write_slots(self, state: "SlotState", pairs: Array) -> None:
        """state.words[index] = word for pairs (index, word), int32 [n, 2], from `SlotState.pairs`; an index below 0 is skipped."""
        ...

    def load_rows(
        self, slots: Array, state: "SlotState", batch: Batch, block_size: int, residual_window: int = 0, pads: bool = True
    ) -> None:  # fmt: skip
        """Writes the arrays of a decode batch, one row per sequence: the newest token of each slot, which has no key and value yet.

        Overwrites token_ids, positions, slot_mapping, context_lens, block_tables (as far as the contexts reach) and, with a residual
        window, the arrays of batch.recent, in which rings are slots. query_start and logits_rows never change. pads: whether padding
        rows are overwritten too; in a batch with prompts, the prompts' rows begin there.
        """
        ...

    def advance(self, token_ids: Array, slots: Array, state: "SlotState") -> None:
        """Appends one new token, token_ids int32 [R], to the sequence of each slot: the newest token, the length, the sampler's step and
        counts."""
        ...


class DraftOps(Protocol):
    """Speculation (kernels/speculation). A run is the neighbouring rows of one slot: the newest token and its drafts."""

    def load_spans(
        self, slots: Array, state: "SlotState", drafts: "DraftState", batch: Batch, block_size: int, ahead: int = 0,
        room: Array | None = None,
    ) -> None:  # fmt: skip
        """Writes the arrays of a batch of verifications, one run per sequence: the newest token of each slot, then its drafts.

        Overwrites token_ids, positions, slot_mapping, context_lens, and block_tables as far as the contexts reach. ahead: tokens of each
        run to skip; room: int32 [B], tokens of each sequence for which there are blocks; no keys are written beyond them.
        """
        ...

    def row_sampling(
        self, slots: Array, state: "SlotState", drafts: "DraftState", kind: "SamplingKind", ahead: int = 0, salt: int = 0
    ) -> "tuple[SamplingTensors, Array]":
        """(parameters of R rows as if the drafts before each row were accepted, the slot of each row in them), for `sample`.

        ahead: drafts before the first row of each run. salt: changes the seeds.
        """
        ...

    def accept(self, chosen: Array, computed: Array, slots: Array) -> Array:
        """The number of new tokens of each run, in its first row, 0 in others: int32 [R]. chosen, int32 [R]: the result of `sample`;
        computed, int32 [T]: the input token of each row."""
        ...

    def accept_tree(self, chosen: Array, computed: Array, slots: Array, drafts: "DraftState") -> tuple[Array, Array, Array]:
        """(the new tokens of each run in its first rows, the row that yielded each, their number in its first row), int32 [R] each: the
        longest path of drafts.tree along which every draft is the token that `sample` chose. Arguments as in `accept`."""
        ...

    def compact_path(self, cache: Array, slot_mapping: Array, path: Array, counts: Array) -> None:
        """cache [layers, num_blocks, block_size, ...]: the token of row path[r] moves to the cache slot of row r, for the rows r of each
        run's new tokens in ascending order. slot_mapping int32 [T]; path, counts int32 [R]: results of `accept_tree`."""
        ...

    def accept_synthetic(self, slots: Array, sampling: "SamplingTensors", rate: float) -> Array:
        """The number of new tokens of each run, in its first row, 0 in others: int32 [R]. rate: probability of accepting a draft."""
        ...

    def distribution(self, logits: Array, sampling: "SamplingTensors", slots: Array) -> Array:
        """The log-probabilities from which `sample` samples each row, float32 [R, vocab]: a single 0 for greedy rows."""
        ...

    def reject(
        self, p: Array, chosen: Array, computed: Array, slots: Array, sampling: "SamplingTensors", drafts: "DraftState"
    ) -> tuple[Array, Array]:  # fmt: skip
        """(the new tokens of each run in its first rows, their number in its first row and 0 in others), int32 [R] both, for drafts
        sampled from drafts.log_q. p: `distribution` of the rows. chosen: tokens sampled from p."""
        ...

    def reject_tree(
        self, p: Array, chosen: Array, computed: Array, slots: Array, sampling: "SamplingTensors", drafts: "DraftState"
    ) -> tuple[Array, Array, Array, Array]:  # fmt: skip
        """(the token after each row, the new tokens of each run in its first rows, the row that yielded each, their number), int32 [R]
        each, for drafts of drafts.tree sampled from drafts.log_q. p: `distribution` of the rows, which is overwritten. chosen: tokens
        sampled from p."""
        ...

    def run_slots(self, slots: Array, count: int, each: int = 1) -> Array:
        """The slots of the first `count` runs of these rows, each repeated `each` times, int32 [count * each]; slot -1 for padding rows
        and missing runs."""
        ...

    def store_drafts(self, tokens: Array, slots: Array, index: int, drafts: "DraftState", log_q: Array | None = None) -> None:
        """Stores draft number `index` of each slot, tokens int32 [B], and the distributions from which they were sampled."""
        ...

    def perturb(self, log_q: Array, logits: Array, sampling: "SamplingTensors", slots: Array) -> Array:
        """Scores float32 [R, vocab]: the m largest of a row are m samples from log_q without replacement; for greedy rows the logits."""
        ...

    def store_children(
        self, tokens: Array, slots: Array, first_node: int, drafts: "DraftState", log_q: Array | None = None
    ) -> None:  # fmt: skip
        """Stores the drafts after neighbouring nodes of drafts.tree: tokens int32 [R, most], best first. slots int32 [R]: runs of rows,
        one per node from first_node on. log_q float32 [R, vocab]: the distributions from which the tokens were sampled."""
        ...

    def room_for_drafts(self, slots: Array, state: "SlotState", room: Array, drafts: "DraftState") -> Array:
        """The number of drafts for which a draft model has room, in the first row of each run, 0 in others: int32 [R]. room: int32
        [runs]."""
        ...

    def advance_spans(self, tokens: Array, counts: Array, slots: Array, state: "SlotState", drafts: "DraftState") -> None:
        """Appends the first `counts` tokens of each run to the sequence of the run's slot."""
        ...

    def prompt_lookup(self, slots: Array, state: "SlotState", drafts: "DraftState", longest: int, shortest: int) -> Array:
        """Writes as drafts the tokens after the last earlier occurrence of the newest tokens of each run's slot; returns their number in
        the first row, 0 in others: int32 [R]."""
        ...

    def lookahead(
        self, slots: Array, state: "SlotState", drafts: "DraftState", computed: Array, chosen: Array, pools: "LookaheadState"
    ) -> Array:  # fmt: skip
        """Adds the n-grams of each run's window to its slot's pool, and writes the next window and n-grams that begin with the newest token
        as drafts; returns their number in the first row, 0 in others: int32 [R]. computed int32 [T], chosen int32 [R]: the input token of
        each row, and the token that `sample` chose after it."""
        ...


class Ops(ForwardOps, SlotOps, DraftOps, Protocol):
    """All operations of an engine's machine. Implementations inherit from it, so that a type checker says what they lack."""
