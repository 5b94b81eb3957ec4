"""The weights of one rank: its heads and its part of the inner width, in its stage's layers, and its part of the vocabulary.

    q, k, v; gate, up     split by outputs, heads or rows: no rank needs the others' results
    output, down          split by inputs: results are partial sums, which an all-reduce adds up
    embedding, head       the vocabulary is split into equal parts of consecutive ids; norms and learned positions are whole on every rank

If there are fewer KV heads than ranks, several ranks hold the same one. A quantised matrix is split between groups. The vocabulary's last
part is padded with NaN, which argmax skips and which is dropped when logits are gathered. The first stage has the embedding, the last one
the head. Each rank reads only its part of a mapped safetensors file; a GGUF file's tensors are dequantised whole before splitting.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from minllm.errors import CheckpointError
from minllm.models.checkpoint import Checkpoint
from minllm.models.finite import all_finite
from minllm.models.layout import Layout
from minllm.models.weights import Progress, WeightReader
from minllm.ops.batch import AttentionConfig
from minllm.ops.protocol import Ops
from minllm.parallel.grid import Grid
from minllm.runtime.array_protocol import Array
from minllm.weights.linear import Linear
from minllm.weights.shard import OUTPUTS, Shard
from minllm.weights.stored import StoredLinear, StoredTensor, StoredWeights


class VocabularyPart(NamedTuple):
    """The consecutive token ids on rank `rank` of `ranks`, of a vocabulary of vocab_size."""

    vocab_size: int
    rank: int
    ranks: int

    @property
    def size(self) -> int:
        """Rows of the embedding and of the head on every rank; on the last ranks some of them may be padding."""
        return -(-self.vocab_size // self.ranks)

    @property
    def first(self) -> int:
        """The first token id of this rank."""
        return self.rank * self.size

    @property
    def columns(self) -> int:
        """The number of token ids on this rank."""
        return min(max(self.vocab_size - self.first, 0), self.size)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """This rank's rows of a matrix [vocab, hidden], padded with NaN: [size, hidden]."""
        own = rows[self.first : self.first + self.size]
        if len(own) == self.size:
            return own
        padding = np.full((self.size - len(own), *rows.shape[1:]), np.nan, rows.dtype)
        return np.concatenate([own, padding])


class SplitEmbedding(NamedTuple):
    """A rank's rows of the embedding."""

    rows: Array  # the machine's array [part.size, hidden]
    part: VocabularyPart


class MappedTensors:
    """A Checkpoint that does not read whole tensors to look for NaN: each rank checks its own part (SplitReader.check)."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.tensor = checkpoint, checkpoint.array

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checkpoint, name)

    def __contains__(self, name: str) -> bool:
        return name in self.checkpoint


class SplitReader(WeightReader):
    """A WeightReader that loads the part of one rank."""

    def __init__(self, ops: Ops, checkpoint: StoredWeights, layout: Layout, progress: Progress | None = None, grid: Grid = Grid(0)):  # noqa: B008 - a constant
        own = grid.layers(layout.config.num_hidden_layers)
        layout = replace(layout, model=replace(layout.model, layers=layout.model.layers[own.start : own.stop]))
        made_here = layout.weight_format.is_plain or layout.weight_format.is_option  # made of floating-point numbers, which `check` checks
        mapped = isinstance(checkpoint, Checkpoint) and made_here
        super().__init__(ops, MappedTensors(checkpoint) if mapped else checkpoint, layout, progress)
        self.grid, self.rank, self.ranks = grid, grid.tensor_rank, grid.tensor
        self.vocabulary = VocabularyPart(layout.config.vocab_size, self.rank, self.ranks)

    def read(self, value: object) -> Any:
        """The rank's part of a value, with every leaf loaded; attention computes the rank's heads."""
        if isinstance(value, AttentionConfig):
            value = attention_of_rank(value, self.ranks)
        return super().read(value)

    def tensor(self, stored: StoredTensor) -> Any:
        """A whole array; for the embedding, split among ranks, the rank's rows; None if the rank's stage does not need it."""
        if stored is not self.layout.model.embedding:
            return super().tensor(stored)
        if not (self.grid.is_first or (self.grid.is_last and self.layout.config.tie_word_embeddings)):
            return None  # only other stages need it
        rows = self.ops.weight(self._own_rows(stored.name))
        self._report([stored.name])
        return rows if self.ranks == 1 else SplitEmbedding(rows, self.vocabulary)

    def linear(self, stored: StoredLinear, rank: int | None = None, ranks: int | None = None) -> Linear | None:
        """The rank's part of a Linear; None for the head unless the rank is in the last stage."""
        if stored is self.layout.model.lm_head and not self.grid.is_last:
            return None
        if stored is self.layout.model.lm_head and self.layout.format_of(stored).is_plain:
            return self._head(f"{stored.projections[0].name}.weight")
        return super().linear(stored, self.rank, self.ranks)

    def tied_head(self, embedding: Any) -> Linear | None:
        """The head that multiplies by the rank's rows of the embedding."""
        rows = embedding.rows if isinstance(embedding, SplitEmbedding) else embedding
        return self._head_of(rows) if self.grid.is_last else None

    def check(self, host: np.ndarray, name: str) -> None:
        """Raise CheckpointError also for NaN and infinity."""
        self.check_finite(host, name)
        super().check(host, name)

    def check_finite(self, host: np.ndarray, name: str) -> None:
        """Raise CheckpointError for NaN and infinity, which MappedTensors has not looked for."""
        mapped = self.checkpoint
        if isinstance(mapped, MappedTensors) and not (mapped.allow_nonfinite_weights or all_finite(np.ascontiguousarray(host))):
            raise CheckpointError(
                f"{mapped.directory}: tensor {name!r} holds NaN or infinity, which spread to the results; the file is damaged, copy it "
                "again, or load it all the same with allow_nonfinite_weights=True."
            )

    def _head(self, name: str) -> Linear:
        weight = self.ops.weight(self._own_rows(name))
        self._report([name])
        return self._head_of(weight)

    def _head_of(self, weight: Array) -> Linear:
        shape = self.vocabulary.size, self.layout.model.lm_head.shape[1]
        return Linear(weight, None, self.plain, shape, Shard(OUTPUTS, self.rank, self.ranks))

    def _own_rows(self, name: str) -> np.ndarray:
        """The rank's rows of a matrix over the vocabulary, checked before they are padded."""
        tensor, part = self.checkpoint.tensor(name), self.vocabulary
        self.check(tensor[part.first : part.first + part.size], name)
        return part.of(tensor)


def attention_of_rank(config: AttentionConfig, ranks: int) -> AttentionConfig:
    """The AttentionConfig of one rank's heads."""
    return replace(config, heads=config.heads // ranks, kv_heads=max(1, config.kv_heads // ranks))
