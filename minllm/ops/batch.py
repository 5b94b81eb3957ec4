"""What operations are given besides activations: the batch, a layer's cache, and the settings of norms, attention and routing.

"Array" is the machine's own array type: a NumPy array, or a device array. T is the number of tokens of a batch, B the number of its
sequences, R the number of rows that get logits.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from minllm.errors import KernelArgumentError

if TYPE_CHECKING:  # a configuration is read without loading a compiler
    from minllm.kernels.speculation.token_tree import TreeArrays

Array = Any


@dataclass
class RecentTokens:
    """The location of the newest, unquantised tokens of a batch in a cache with a residual window: in scratch memory, or in rings.

    Arrays are int32. The recent tokens of a sequence begin with the first position that its first new token reads in full precision, and
    lie in blocks of TOKEN_GROUP tokens (kernels/attention/residual_window/reference.py).
    """

    slot_mapping: Array  # [T] block * TOKEN_GROUP + offset, where each token's K and V are written; -1 writes nothing
    context_lens: Array  # [B] recent tokens of the sequence, its new ones included; 0 marks a padding row
    block_tables: Array  # [B, blocks]
    loads: Array | None = None  # [P, 2] blocks to copy from rings to scratch memory before the new tokens are written; None for none
    stores: Array | None = None  # [P, 2] blocks to copy from scratch memory to rings afterwards; None: the batch works in the rings
    rings: Array | None = None  # [B] the ring of each sequence, for batches that work in the rings

    def arrays(self) -> dict[str, Array]:
        """The arrays that are not None, by name."""
        return {field.name: array for field in fields(self) if (array := getattr(self, field.name)) is not None}


@dataclass
class Batch:
    """The tokens of B sequences, flattened to T rows: a prefill chunk, a decode step and a verification differ only in these numbers.

    The arrays are int32, in the machine's own memory. Sequence b has Q = `query_start[b + 1] - query_start[b]` new tokens. Its query i
    has the absolute position `context_lens[b] - Q + i`, and attends to the cached keys at positions up to its own.
    """

    token_ids: Array  # [T]
    positions: Array  # [T] absolute position of each token in its sequence
    slot_mapping: Array  # [T] block * block_size + offset, where the token's K and V are written; -1 writes nothing
    query_start: Array  # [B + 1] first row of each sequence; the last entry is T
    context_lens: Array  # [B] keys of the sequence, its new tokens included; 0 marks a padding row
    block_tables: Array  # [B, max_blocks] the cache blocks of each sequence in order
    logits_rows: Array  # [R] the rows of the T that get logits
    max_query_len: int  # an upper bound of the new tokens of any sequence
    max_context_len: int  # an upper bound of context_lens
    recent: RecentTokens | None = None  # for caches with a residual window
    num_decodes: int = 0  # the first num_decodes sequences have one new token each; attention may compute them separately
    room: Array | None = None  # [runs] tokens of each sampled sequence for which there are blocks; only if the engine speculates
    num_verifications: int = 0  # the first num_verifications sequences verify drafts; Ops.load_spans makes their rows from their slots
    tree: "TreeArrays | None" = None  # the rows of verifications are nodes of this tree, and attend to their ancestors in it
    makes_drafts: bool = True  # whether the step makes drafts, if the engine speculates
    first_node: int = 0  # the tree's node in the first row of each verification; earlier nodes are in the cache

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.context_lens.shape[0]

    @property
    def num_runs(self) -> int:
        """The number of sampled sequences for which `room` is known."""
        return 0 if self.room is None else self.room.shape[0]

    @property
    def wanted_rows(self) -> Array | None:
        """The rows that get logits; None if all do, because all sequences decode."""
        return None if self.num_decodes == self.num_sequences else self.logits_rows

    @property
    def speculates(self) -> bool:
        """For an engine that speculates: False for a plain decode step. A draft model computes all prompts, even in a pause."""
        return self.makes_drafts or self.num_decodes < self.num_sequences

    @property
    def is_mixed(self) -> bool:
        """Whether some sequences decode and others have several new tokens."""
        return 0 < self.num_decodes < self.num_sequences and self.max_query_len > 1

    def decodes(self) -> "Batch":
        """The sequences that decode."""
        count = self.num_decodes
        return replace(
            self, token_ids=self.token_ids[:count], positions=self.positions[:count], slot_mapping=self.slot_mapping[:count],
            query_start=self.query_start[: count + 1], context_lens=self.context_lens[:count], block_tables=self.block_tables[:count],
            max_query_len=1,
        )  # fmt: skip

    def verifications(self) -> "Batch":
        """The sequences that verify drafts; the arrays over tokens are those of the whole batch."""
        count = self.num_verifications
        return replace(
            self, query_start=self.query_start[: count + 1], context_lens=self.context_lens[:count], block_tables=self.block_tables[:count]
        )

    def behind_verifications(self) -> "Batch":
        """The sequences that verify no drafts; query_start still counts rows of the whole batch."""
        first = self.num_verifications
        return replace(
            self, query_start=self.query_start[first:], context_lens=self.context_lens[first:], block_tables=self.block_tables[first:],
            num_decodes=0, num_verifications=0, tree=None,
        )  # fmt: skip

    def prompts(self) -> "Batch":
        """The sequences that do not decode; query_start still counts rows of the whole batch."""
        first = self.num_decodes
        return replace(
            self, query_start=self.query_start[first:], context_lens=self.context_lens[first:], block_tables=self.block_tables[first:],
            num_decodes=0,
        )  # fmt: skip


@dataclass
class RecentCache:
    """The newest tokens of one layer, unquantised; pairs (keys, values), each [blocks, TOKEN_GROUP, kv_heads, head_dim]."""

    window: int  # tokens, a multiple of TOKEN_GROUP
    rings: tuple[Array, Array]
    scratch: tuple[Array, Array]  # the same in every layer

    def of(self, recent: RecentTokens) -> tuple[Array, Array]:
        """The arrays in which a batch with these recent tokens works: rings or scratch memory."""
        return self.rings if recent.stores is None else self.scratch


@dataclass
class LayerCache:
    """Keys and values of one layer. The cache of a forward is a list of LayerCache, one per layer.

    In a quantised cache, key and value are each a kernels.quantization.cache.QuantizedCache of this shape.
    """

    key: Array  # [num_blocks, block_size, kv_heads, head_dim]
    value: Array  # [num_blocks, block_size, kv_heads, head_dim]
    recent: RecentCache | None = None  # with a residual window: attention reads the newest tokens here, not their codes
    local_of: Array | None = None  # int32 [blocks of the tables]: with local blocks (cache/window_blocks.py), those of the arrays above

    def window(self, batch: Batch) -> tuple[RecentCache, RecentTokens]:
        """The newest tokens of the layer, and where a batch has its own. Raises KernelArgumentError for a cache or batch without them."""
        if self.recent is None or batch.recent is None:
            raise KernelArgumentError("a residual window needs both a cache and a batch that have one")
        return self.recent, batch.recent


@dataclass
class NormWeights:
    """A normalisation: `kind` is "rms_norm" (no bias) or "layer_norm"."""

    kind: str
    weight: Array  # [hidden]
    bias: Array | None  # [hidden], or None for rms_norm
    epsilon: float


@dataclass(frozen=True)
class AttentionConfig:
    """One layer's attention: its shape, and the norms of its heads. Query head h reads KV head h // (heads // kv_heads)."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # factor of q . k, usually head_dim ** -0.5
    sliding_window: int = 0  # a query attends to at most this many keys, its own included; 0 for all keys before it
    interleaved: bool = False  # RoPE pairs neighbours (2i, 2i + 1) instead of the halves (i, i + head_dim / 2)
    q_norm: Array | None = None  # [head_dim] RMS norm over each head of q, in models that have it
    k_norm: Array | None = None  # [head_dim] the same for k
    epsilon: float = 1e-6  # added to the mean square before the root
    soft_cap: float = 0.0  # scores become soft_cap * tanh(score / soft_cap); 0 for none


@dataclass(frozen=True)
class Routing:
    """How a router chooses experts for a token: those with the largest logits, weighted by their softmax."""

    experts: int
    per_token: int  # experts chosen for each token
    normalized: bool  # whether the weights of the chosen experts are divided by their sum
