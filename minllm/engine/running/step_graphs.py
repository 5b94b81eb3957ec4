"""Steps as replays of CUDA graphs, captured for some sizes.

A launch costs the host about 0.1 ms of checks and look-ups, and a step has hundreds of launches. So a step is padded to the next size that
has a graph, and the replay of a graph is one launch:

    tokens    powers of two up to 256, then multiples of 256; if all sequences decode, their number: 1, 2, 4 and multiples of 8; steps of
              more than 2,048 tokens, or 256 decodes, double these distances, so that the number of graphs does not grow; if sequences
              verify drafts, 4, 5 or 6 times a power of two
    decodes   sequences that decode, which come first; beside prompts up to 32, up to 128, or all; with drafts a power of two
    prompts   the other sequences: one alone, or up to 32 beside those that decode
    columns   block tables for contexts of 1k, 4k, 16k ... tokens, because kernels choose by the longest context possible
    kind      which kernels choose the tokens (SamplingKind); with structured outputs and in a pipeline the graph ends with the logits
    query_len with speculation, the most rows of a sequence that decodes: its newest token and drafts
    makes_drafts  False while a draft model pauses; decode steps are then plain ones, of query_len 0

Padding decodes and prompts costs little, so few graphs serve all steps with prompts, and all of them are captured before the first request.

Padding writes no keys and values, is in no context, and its tokens are dropped. The first kernel of a graph makes the rows of sequences
that decode from their slots, and the last one stores the new tokens there. So a step of decodes alone needs nothing from the host unless
the set of sequences changes; prompts come in one upload, and so do the numbers of rows that verify drafts.

One graph runs at a time, so all graphs share memory for temporaries and results, the size that the largest one needs. Source of the sizes:
vLLM's "cudagraph capture sizes".
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from minllm.engine.requests.sequence import NO_SLOT
from minllm.engine.running.host_copies import Uploads
from minllm.errors import CaptureError
from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.ops.batch import Batch, RecentTokens

SHORTEST_CONTEXT = 1024  # tokens that the narrowest block tables cover
DECODE_STEP, TOKEN_STEP = 8, 256  # above them, numbers of decodes and of tokens are multiples
MOST_DECODE_STEPS, MOST_TOKEN_STEPS = 32, 8  # numbers of multiples beyond which the distance doubles
MOST_PROMPTS = 32  # more prompts in one step are computed kernel by kernel
MIXED_SIZES = (32, 128)
ROW_FRACTIONS = (4, 5, 6)  # numbers of rows are these times a power of two, including 2, 3, 4 and 5 rows of 64 sequences


class GraphKey(NamedTuple):
    """The sizes and kind of a step for which a graph is captured."""

    tokens: int
    decodes: int
    prompts: int
    columns: int  # columns of the block tables
    kind: SamplingKind | None  # None: the graph ends with the logits
    query_len: int = 0  # maximum rows of a sequence that decodes, if the engine speculates
    makes_drafts: bool = True

    @property
    def sequences(self) -> int:
        """The number of rows of the block tables."""
        return self.decodes + self.prompts

    @property
    def sampled_rows(self) -> int:
        """The number of rows that get logits."""
        verified = self.tokens if not self.prompts else self.decodes * self.query_len
        return verified + self.prompts if self.query_len else self.sequences

    def layout(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array, all int32."""
        rows, tokens, sampled = (self.sequences,), (self.tokens,), (self.sampled_rows,)
        return dict(
            slots=sampled, logits_rows=sampled, token_ids=tokens, positions=tokens, slot_mapping=tokens, query_start=(self.sequences + 1,),
            context_lens=rows, **({"room": rows} if self.query_len else {}), block_tables=(self.sequences, self.columns),
        )  # fmt: skip


def decode_sizes(max_num_seqs: int) -> list[int]:
    """The numbers of sequences that decode for which graphs are captured."""
    sizes = powers_and_multiples(max_num_seqs, DECODE_STEP, MOST_DECODE_STEPS)
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def mixed_sizes(max_num_seqs: int) -> list[int]:
    """The numbers of sequences that decode, beside prompts, for which graphs are captured."""
    return [size for size in MIXED_SIZES if size < max_num_seqs] + [max_num_seqs]


def verification_sizes(max_num_seqs: int, query_len: int) -> dict[int, list[int]]:
    """{number of sequences: numbers of rows} of the verifications for which graphs are captured, both ascending.

    A padding sequence costs next to nothing, so numbers of sequences are powers of two. Numbers of rows lie closer: each row is computed in
    full, and sequences differ in how many drafts are worth verifying. query_len: the maximum number of rows per sequence.
    """
    decodes = sorted({1 << i for i in range((max_num_seqs - 1).bit_length())} | {max_num_seqs})
    rows = sorted({2, 3, *(fraction << i for fraction in ROW_FRACTIONS for i in range((max_num_seqs * query_len).bit_length()))})
    return {count: [size for size in rows if count < size < count * query_len] + [count * query_len] for count in decodes}


def token_sizes(most: int) -> list[int]:
    """The numbers of tokens, in steps with prompts, for which graphs are captured."""
    return powers_and_multiples(most, TOKEN_STEP, MOST_TOKEN_STEPS)


def powers_and_multiples(most: int, step: int, most_steps: int) -> list[int]:
    """Powers of two below `step`, and its multiples, the last of which is at least `most`.

    step: a power of two, which is doubled until at most `most_steps` multiples are needed.
    """
    while most > step * most_steps:
        step *= 2
    return [*(1 << i for i in range(step.bit_length() - 1)), *range(step, most + step, step)]


def table_widths(columns: int, block_size: int) -> list[int]:
    """The numbers of columns of block tables for which graphs are captured; the last is `columns`."""
    widths = [-(-SHORTEST_CONTEXT // block_size)]
    while widths[-1] < columns:
        widths.append(4 * widths[-1])
    return sorted({min(width, columns) for width in widths})


def next_size(count: int, sizes: Iterable[int]) -> int | None:
    """The smallest of the ascending sizes that is at least `count`; None if there is none."""
    # exercise: engine.next_size
    for size in sizes:
        if size >= count:
            return size
    return None
    # end exercise


class StepGraphs:
    """Graphs over arrays at fixed addresses. compute(slots, batch, kind): launches a step and returns (tokens, logits) on the device."""

    def __init__(
        self, ops, machine, *, max_num_seqs: int, max_tokens: int, columns: int, block_size: int, residual_window: int, compute: Callable,
        query_len: int = 0, pauses: bool = False,
    ):  # fmt: skip
        """max_tokens: the maximum per step. columns: the width of the widest block table. residual_window: the cache's.

        query_len: 1 plus the maximum number of drafts per sequence; 0 if the engine does not speculate. pauses: whether steps may skip
        making drafts.
        """
        self._pauses = pauses
        self.machine, self.block_size, self.compute, self.query_len = machine, block_size, compute, query_len
        self.decode_sizes, self.widths = decode_sizes(max_num_seqs), table_widths(columns, block_size)
        self.verification_sizes = verification_sizes(max_num_seqs, query_len) if query_len else {}
        self.mixed_sizes, self.most_prompts = mixed_sizes(max_num_seqs), min(MOST_PROMPTS, max_num_seqs)
        self.token_sizes = token_sizes(max(max_tokens, max_num_seqs * max(1, query_len) + 1))
        # The first launch of a user's own kernel, or of a source of drafts, may load modules or allocate, which a capture cannot do. Ranks
        # must launch the same kernels: if a capture failed on one rank alone, it would send messages once more than its peers expect.
        self._is_launched_first = bool(getattr(ops, "own", None)) or query_len > 0 or hasattr(ops, "communicator")
        self._graphs: dict[GraphKey, Any] = {}
        self._rows: list[int] = []  # slots of the last step, if all its sequences decoded
        largest = GraphKey(self.token_sizes[-1], max_num_seqs, self.most_prompts, columns, SamplingKind.GREEDY, query_len)
        self._words = ops.zeros((sum(map(math.prod, largest.layout().values())),), np.int32)
        self._recent = None
        if residual_window:
            slot_mapping, context_lens = (ops.zeros((max_num_seqs,), np.int32) for _ in range(2))
            self._recent = slot_mapping, context_lens, ops.zeros((max_num_seqs, ring_blocks(residual_window)), np.int32)

    @property
    def mixed_columns(self) -> int:
        """The fewest columns of block tables in steps with prompts beside other sequences."""
        return self.widths[:2][-1]

    @property
    def num_captured(self) -> int:
        """The number of captured graphs."""
        return len(self._graphs)

    def __contains__(self, key: GraphKey) -> bool:
        return key in self._graphs

    def key(
        self, num_decodes: int, num_prompts: int, num_tokens: int, context: int, kind: SamplingKind | None, makes_drafts: bool = True
    ) -> GraphKey | None:  # fmt: skip
        """The graph for a step with contexts of up to `context` tokens; None if no graph is large enough."""
        columns = next_size(-(-context // self.block_size), self.widths)
        if num_prompts + num_decodes == 1 and num_prompts:
            tokens = next_size(num_tokens, self.token_sizes)
            if tokens is None or columns is None:
                return None
            return GraphKey(tokens, 0, 1, columns, kind, self.query_len, makes_drafts)
        plain = num_prompts == 0 and num_tokens == num_decodes
        sizes = self.mixed_sizes if num_prompts else self.decode_sizes if plain else self.verification_sizes
        decodes = next_size(num_decodes, sizes)
        if decodes is None or columns is None:
            return None
        if plain:
            return GraphKey(decodes, decodes, 0, columns, kind, min(1, self.query_len) * makes_drafts, makes_drafts)
        # The padding rows of the decodes overlap the rows of prompts, so a graph has at least as many tokens as decodes.
        tokens = next_size(max(num_tokens, decodes), self.token_sizes if num_prompts else self.verification_sizes[decodes])
        if tokens is None or num_prompts > self.most_prompts:
            return None
        if not num_prompts:
            return GraphKey(tokens, decodes, 0, columns, kind, self.query_len)
        return GraphKey(tokens, decodes, self.most_prompts, max(columns, self.mixed_columns), kind, self.query_len, makes_drafts)

    def replay_decodes(self, key: GraphKey, slots: list[int], uploads: Uploads) -> Any:
        """Launch a step in which these slots decode; returns its results on the device, valid until the next replay."""
        graph = self._graph(key, uploads)
        rows = slots + [NO_SLOT] * (key.decodes - len(slots))
        if self._rows != rows:
            self._write_padding(key, rows, uploads)
        self._rows = rows
        graph.launch()
        return graph.result

    def replay(self, key: GraphKey, arrays: dict[str, np.ndarray], uploads: Uploads) -> Any:
        """Launch a step with these arrays, of the shapes of `key.layout`; returns its results, valid until the next replay."""
        graph = self._graph(key, uploads)
        self._rows = []
        # Block tables come last; those of sequences that decode are written on the device.
        packed = np.concatenate([arrays[name].reshape(-1) for name in key.layout() if key.prompts or name != "block_tables"])
        uploads.write(self._words[: packed.size], packed)
        graph.launch()
        return graph.result

    def capture(self, key: GraphKey, uploads: Uploads) -> None:
        """Capture a graph. If a kernel is not loaded yet, or an array not allocated, a step of padding is launched first."""
        self._rows = []
        slots, batch = self.batch(key)
        step = functools.partial(self.compute, slots, batch, key.kind)
        graph = None
        if not self._is_launched_first:
            with contextlib.suppress(CaptureError):
                graph = self.machine.capture(step)
        if graph is None:
            self._write_padding(key, [NO_SLOT] * key.sampled_rows, uploads)
            step()
            graph = self.machine.capture(step)
        self._graphs[key] = graph

    def keys(self, given: Iterable[SamplingKind]) -> list[GraphKey]:
        """The graphs that are captured before the first request, the largest first, because the others then fit into its memory.

        For greedy sampling they cover contexts of up to 4k tokens; for the other kinds only decode steps with contexts of up to 1k. Other
        graphs are captured when they are first needed. given: no kind if all graphs end with the logits.
        """
        kinds: list[SamplingKind | None] = [*sorted(given)] or [None]
        columns = self.widths[0]
        mixed = [(tokens, n) for tokens in reversed(self.token_sizes) for n in reversed(self.mixed_sizes) if n <= tokens]
        together = [GraphKey(tokens, n, self.most_prompts, self.mixed_columns, kinds[0], self.query_len) for tokens, n in mixed]
        prompts = [GraphKey(tokens, 0, 1, columns, kinds[0], self.query_len) for tokens in reversed(self.token_sizes)]
        widths = {kind: self.widths[: 2 if kind == kinds[0] else 1] for kind in kinds}
        sizes = [(n, n, min(1, self.query_len)) for n in self.decode_sizes]
        sizes += [(rows, n, self.query_len) for n, each in self.verification_sizes.items() for rows in each]
        decodes = [
            GraphKey(rows, n, 0, width, kind, query_len)
            for kind in kinds for width in widths[kind] for rows, n, query_len in sorted(sizes, reverse=True)
        ]  # fmt: skip
        drafting = ([] if self._recent else together + prompts) + decodes
        if not self._pauses:
            return drafting
        plain = [key._replace(query_len=0, makes_drafts=False) for key in decodes if key.query_len == 1]
        return drafting + [key._replace(makes_drafts=False) for key in drafting if key.prompts] + plain

    def batch(self, key: GraphKey) -> tuple[Any, Batch]:
        """The slots and the batch of a graph."""
        arrays, start = {}, 0
        for name, shape in key.layout().items():
            arrays[name] = self._words[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        slots, recent = arrays.pop("slots"), None
        if self._recent is not None and not key.prompts:
            slot_mapping, context_lens, tables = (array[: key.decodes] for array in self._recent)
            recent = RecentTokens(slot_mapping, context_lens, tables, rings=slots)
        longest = key.columns * self.block_size
        return slots, Batch(
            **arrays, max_context_len=longest, recent=recent,
            max_query_len=key.tokens if key.prompts else max(1, key.query_len),
            num_decodes=0 if key.query_len > 1 else key.decodes, num_verifications=key.decodes if key.query_len else 0,
            makes_drafts=key.makes_drafts,
        )  # fmt: skip

    def _graph(self, key: GraphKey, uploads: Uploads) -> Any:
        if key not in self:
            self.capture(key, uploads)
        return self._graphs[key]

    def _write_padding(self, key: GraphKey, slots: list[int], uploads: Uploads) -> None:
        """Write the arrays of a step in which only these slots decode, as far as `Ops.load_rows` does not write them."""
        arrays = {name: np.zeros(shape, np.int32) for name, shape in key.layout().items() if name != "block_tables"}
        arrays["slots"][:] = slots
        arrays["slot_mapping"][:] = -1
        if not key.prompts and key.query_len <= 1:  # sequences that verify have no rows here
            arrays["logits_rows"][:] = np.arange(key.sequences)
            arrays["query_start"][:] = np.arange(key.sequences + 1)
        packed = np.concatenate(list(arrays.values()))
        uploads.write(self._words[: packed.size], packed)
