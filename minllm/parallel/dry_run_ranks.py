"""A dry run of one of several ranks: its operations and its part of the weights, without peers and without contents."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minllm.cache.kv_cache import CacheShape
from minllm.kernels.all_reduce.choice import BY_SIZE, DEFAULT, LIBRARY, memory_bytes
from minllm.kernels.all_reduce.peers import Peers, allocate
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory
from minllm.models.config import ModelConfig
from minllm.ops.dry_run_ops import DryRun
from minllm.parallel.cuda_context_parallel import ContextParallelCuda
from minllm.parallel.cuda_ranks import TensorParallelCudaOps
from minllm.parallel.grid import Grid
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.parallel.sequence_memory import sequence_bytes
from minllm.parallel.split_weights import VocabularyPart


class Split(NamedTuple):
    """A rank's number among those that share a model, and the whole model's configuration; it can be pickled."""

    rank: int
    ranks: int
    config: ModelConfig

    @property
    def vocabulary(self) -> VocabularyPart:
        """The part of the vocabulary on this rank."""
        return VocabularyPart(self.config.vocab_size, self.rank, self.ranks)


class SilentLibrary:
    """A communicator that does nothing: NCCL's kernels are compiled already."""

    def __init__(self, split: Split):
        self.rank, self.world_size = split.rank, split.ranks

    def all_reduce(self, *_: object, **__: object) -> None:
        """Does nothing, like all operations here."""

    all_gather = broadcast = barrier = send = recv = close = all_reduce


class DryRunRankOps(DryRun, TensorParallelCudaOps):
    """TensorParallelCudaOps of a rank on the assumed GPU."""

    def __init__(self, dtype: DTypeLike, kernel_variants: Mapping[str, Any] | None, split: Split):
        grid, config = Grid(split.rank, split.ranks), split.config
        super().__init__(dtype, grid, config.vocab_size, config.hidden_size, kernel_variants=kernel_variants, simulated=True)
        self.assume_gpu()
        self.communicator, name = SilentLibrary(split), self.variants.get("all_reduce", DEFAULT)
        if name == LIBRARY:
            return
        most, of_inbox = memory_bytes(split.ranks)
        memories = [allocate(split.ranks, most, lambda size, dtype: self.zeros((size,), dtype), of_inbox) for _ in range(split.ranks)]
        peers = Peers(split.rank, tuple(memories))
        sequence = silent_sequence(split, self.dtype, self.zeros) if name == BY_SIZE else None
        self.communicator = PeerCommunicator(
            self.communicator, peers, name, lambda launch: launch.launch(self.stream), sequence=sequence
        )  # fmt: skip


def silent_sequence(split: Split, dtype: np.dtype, zeros: Callable) -> SequenceMemory | None:
    """The memory for rows that a rank divides with peers that do nothing."""
    found = sequence_bytes(split.config, dtype, split.ranks)
    if found is None:
        return None
    group_bytes, nbytes = found
    rows, own = zeros((nbytes,), np.uint8), zeros((nbytes // split.ranks,), np.uint8)
    return SequenceMemory(group_bytes, rows, (own,) * split.ranks, (rows,) * split.ranks)


class DryRunContextOps(ContextParallelCuda, DryRunRankOps):
    """ContextParallelCudaOps of a rank on the assumed GPU."""

    def __init__(self, dtype: DTypeLike, kernel_variants: Mapping[str, Any] | None, split: Split, cache: CacheShape):
        super().__init__(dtype, kernel_variants, split)
        ranks = cache.context_ranks
        alone = SilentLibrary(split._replace(rank=split.rank % ranks, ranks=ranks))
        self.share_contexts(self.communicator if ranks == split.ranks else alone, cache.block_size)
