"""A rank's share of loading: its part of the model, its operations, and a memory budget that all ranks agree on."""

import functools
import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape
from minllm.costs.parallel import shard
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.rank_runner import LeadingRunner, RankRunner
from minllm.kernels.all_reduce.choice import BY_SIZE, DEFAULT, LIBRARY, memory_bytes
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory
from minllm.models.config import ModelConfig
from minllm.parallel.communicator import Communicator
from minllm.parallel.context_parallel import ContextParallelNumpyOps, ContextParallelPipelineNumpyOps
from minllm.parallel.cuda_context_parallel import ContextParallelCudaOps, ContextParallelPipelineCudaOps
from minllm.parallel.cuda_ranks import PipelineCudaOps, TensorParallelCudaOps
from minllm.parallel.dry_run_ranks import Split
from minllm.parallel.grid import Grid
from minllm.parallel.let_go import left_at_failure
from minllm.parallel.nccl import NcclCommunicator
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.parallel.peer_memory import connect_peers, gpu_machine
from minllm.parallel.pipeline import PipelineNumpyOps
from minllm.parallel.processes import Rank
from minllm.parallel.ranks_per_gpu import ranks_per_gpu
from minllm.parallel.sequence_memory import connect_sequence, sequence_bytes
from minllm.parallel.shared_gpu import MailboxCommunicator
from minllm.parallel.sockets import SocketCommunicator
from minllm.parallel.split_weights import SplitReader
from minllm.parallel.tensor_parallel import TensorParallelNumpyOps

# the class of a rank's operations: {(whether there are several stages, whether ranks share contexts): class}
NUMPY_OPS = {
    (False, False): TensorParallelNumpyOps, (False, True): ContextParallelNumpyOps,
    (True, False): PipelineNumpyOps, (True, True): ContextParallelPipelineNumpyOps,
}  # fmt: skip
CUDA_OPS = {
    (False, False): TensorParallelCudaOps, (False, True): ContextParallelCudaOps,
    (True, False): PipelineCudaOps, (True, True): ContextParallelPipelineCudaOps,
}  # fmt: skip


class RankShare:
    """A rank's share of a model that is split by tensor parallelism, pipeline parallelism, or both."""

    def __init__(self, rank: Rank, options: EngineOptions):
        self.rank, self.grid = rank, Grid(rank.rank, options.tensor_parallel_size, options.pipeline_parallel_size)
        self.context_ranks = options.decode_context_parallel_size

    def part(self, config: ModelConfig) -> ModelConfig:
        """The configuration of the rank's part as a model of its own, by which memory and cache are planned."""
        return replace(shard(config, self.grid.tensor), num_hidden_layers=len(self.grid.layers(config.num_hidden_layers)))

    def split(self, config: ModelConfig) -> Split | None:
        """The rank's part for a dry run; None if each stage has one rank. config: the whole model's."""
        return Split(self.grid.tensor_rank, self.grid.tensor, config) if self.grid.tensor > 1 else None

    @property
    def make_reader(self) -> Callable[..., SplitReader]:
        """Makes the reader of the rank's part of the weights."""
        return functools.partial(SplitReader, grid=self.grid)

    @property
    def runner(self) -> type[RankRunner]:
        """The class of the rank's runner."""
        return RankRunner if self.rank.rank else LeadingRunner

    def make_ops(self, device: str, dtype: str, options: EngineOptions, config: ModelConfig) -> Any:
        """The rank's operations with their communicators. config: the whole model's."""
        if device == "cuda":
            return self._cuda_ops(dtype, options, config)
        kind: Any = NUMPY_OPS[self.grid.pipeline > 1, self.context_ranks > 1]
        if self.grid.pipeline == 1:
            return kind(dtype, self.rank.host, config.vocab_size)
        return kind(dtype, self.grid, self.rank.host, self.stage_host, config.vocab_size, config.hidden_size)

    def shared(self, shape: CacheShape, ops: Any) -> CacheShape:
        """The shape of the cache, adapted if ranks share contexts."""
        if self.context_ranks == 1:
            return shape
        ops.share_contexts(self.context_communicator(ops), shape.block_size)
        return replace(shape, context_ranks=self.context_ranks)

    def context_communicator(self, ops: Any) -> Communicator:
        """The communicator of the ranks that share contexts with this one: on GPUs the stage's, or one more of NCCL."""
        on_gpu, first = isinstance(ops, TensorParallelCudaOps), self.grid.tensor_rank // self.context_ranks * self.context_ranks
        if self.context_ranks == self.grid.tensor:
            return ops.communicator if on_gpu else self.stage_host
        host = self.stage_host.group(range(first, first + self.context_ranks))
        return self._linked(ops, host) if on_gpu else host

    def _cuda_ops(self, dtype: str, options: EngineOptions, config: ModelConfig) -> Any:
        """The operations on the rank's GPU, with NCCL as the communicator."""
        from minllm.runtime.device import current_device, use_device

        use_device(self.rank.gpu)
        current_device()
        gc.collect()  # what earlier engines left: freeing it waits for kernels, which the host must not do once they wait for peers
        made = dict(kernel_variants=options.kernel_variants, allocation=options.allocation, pinned=options.pinned)
        ops = CUDA_OPS[self.grid.pipeline > 1, self.context_ranks > 1](dtype, self.grid, config.vocab_size, config.hidden_size, **made)
        self.rank.at_failure.extend([current_device, ops.finish])  # then nothing waits for a peer any more
        ops.communicator = ops.world = self._linked(ops, self.rank.host)
        if self.grid.pipeline > 1:
            ops.communicator = self._linked(ops, self.stage_host)
        name = ops.variants.get("all_reduce", DEFAULT)
        if self.grid.tensor > 1 and name != LIBRARY:
            ops.communicator = self._with_peers(ops, name, config)
        return ops

    def _linked(self, ops: Any, host: Communicator) -> NcclCommunicator | MailboxCommunicator:
        """A communicator between the GPUs of the ranks of `host`, or between ranks that share one, which ends with the rank."""
        with left_at_failure(self.rank.at_failure):  # NCCL waits for ever for a rank that has ended before it has come
            connect = NcclCommunicator.connect if ranks_per_gpu() == 1 else MailboxCommunicator
            link = connect(host, ops.stream)
        ops.links.append(link)
        self.rank.at_failure.insert(0, link.abort)
        return link

    @functools.cached_property
    def stage_host(self) -> SocketCommunicator:
        """The communicator of the ranks of this stage, for NumPy arrays."""
        return self.rank.host if self.grid.pipeline == 1 else self.rank.host.group(self.grid.stage_ranks)

    def _with_peers(self, ops: Any, name: str, config: ModelConfig) -> Communicator:
        """A communicator with our own all-reduce kernels; the ops' own, with a warning, if the GPUs have no peer access."""
        found = connect_peers(self.stage_host, *memory_bytes(self.grid.tensor), gpu_machine())
        if isinstance(found, str):
            warnings.warn(f"All-reduces go through NCCL, because the GPUs do not share memory: {found}", stacklevel=2)
            return ops.communicator
        from minllm.runtime.graph import is_capturing

        ops.links.append(found)
        sequence = self._sequence_memory(ops, config) if name == BY_SIZE else None
        communicator = PeerCommunicator(
            ops.communicator, found.peers, name, lambda launch: launch.launch(ops.stream), is_capturing, sequence
        )  # fmt: skip
        self.rank.at_failure.insert(0, communicator.abort)
        return communicator

    def _sequence_memory(self, ops: Any, config: ModelConfig) -> SequenceMemory | None:
        """The memory for rows that the stage's ranks divide; None if they cannot, with a warning if the machine is why."""
        sizes = sequence_bytes(config, ops.dtype, self.grid.tensor)
        if sizes is None:
            return None
        found = connect_sequence(self.stage_host, *sizes)
        if isinstance(found, str):
            warnings.warn(f"Ranks do not divide the rows of prompts, because the GPUs do not share pages of memory: {found}", stacklevel=2)
            return None
        ops.links.append(found)
        return found.memory

    def agreed(self, budget: CacheBudget, device: str, options: EngineOptions) -> CacheBudget:
        """The smallest budget of all ranks; those that share a memory, as on a CPU, first divide it among them."""
        num_bytes = budget.num_bytes
        if options.kv_cache_memory_bytes is None:
            num_bytes //= self.rank.world_size if device == "cpu" else ranks_per_gpu()
        of_ranks = np.empty((self.rank.world_size, 1), np.int64)
        self.rank.host.all_gather(np.array([num_bytes], np.int64), of_ranks)
        return replace(budget, num_bytes=int(of_ranks.min()))


def captures_steps(options: EngineOptions) -> bool:
    """Whether a GPU's steps are captured as graphs: capturing steps with NCCL's all-reduces is not implemented yet."""
    return not options.enforce_eager and (options.kernel_variants or {}).get("all_reduce", DEFAULT) != LIBRARY
