"""What loading asks of a rank: its part of the model, its operations, and a memory budget that all ranks agree on."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minllm.cache.capacity import CacheBudget
from minllm.costs.parallel import shard
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.rank_runner import LeadingRunner, RankRunner
from minllm.models.config import ModelConfig
from minllm.parallel.grid import Grid
from minllm.parallel.pipeline import PipelineNumpyOps
from minllm.parallel.processes import Rank
from minllm.parallel.split_weights import SplitReader
from minllm.parallel.tensor_parallel import TensorParallelNumpyOps


class RankShare:
    """A rank's share of a model that is split by tensor parallelism, into the stages of a pipeline, or both."""

    def __init__(self, rank: Rank, options: EngineOptions):
        self.rank, self.grid = rank, Grid(rank.rank, options.tensor_parallel_size, options.pipeline_parallel_size)

    def part(self, config: ModelConfig) -> ModelConfig:
        """The rank's part as a model of its own, which memory and cache are planned for."""
        return replace(shard(config, self.grid.tensor), num_hidden_layers=len(self.grid.layers(config.num_hidden_layers)))

    @property
    def make_reader(self) -> Callable[..., SplitReader]:
        """What reads the rank's part of the weights."""
        return functools.partial(SplitReader, grid=self.grid)

    @property
    def runner(self) -> type[RankRunner]:
        """The class of the rank's runner."""
        return RankRunner if self.rank.rank else LeadingRunner

    def make_ops(self, device: str, dtype: str, options: EngineOptions, config: ModelConfig) -> Any:
        """The rank's operations, with the communicators that they use. config: the whole model's."""
        if device == "cuda":
            return self._cuda_ops(dtype, options, config)
        if self.grid.pipeline == 1:
            return TensorParallelNumpyOps(dtype, self.rank.host, config.vocab_size)
        stage = self.rank.host.group(self.grid.stage_ranks)
        return PipelineNumpyOps(dtype, self.grid, self.rank.host, stage, config.vocab_size, config.hidden_size)

    def _cuda_ops(self, dtype: str, options: EngineOptions, config: ModelConfig) -> Any:
        """The same on the rank's own GPU, connected by NCCL."""
        from minllm.parallel.cuda_ranks import PipelineCudaOps, TensorParallelCudaOps
        from minllm.parallel.nccl import NcclCommunicator
        from minllm.runtime.device import current_device, use_device

        use_device(self.rank.gpu)
        current_device()
        made = dict(kernel_variants=options.kernel_variants, allocation=options.allocation, pinned=options.pinned)
        kind = TensorParallelCudaOps if self.grid.pipeline == 1 else PipelineCudaOps
        ops = kind(dtype, self.grid, config.vocab_size, config.hidden_size, **made)
        ops.communicator = ops.world = NcclCommunicator.connect(self.rank.host, ops.stream)
        self.rank.at_failure.append(ops.world.abort)
        if self.grid.pipeline > 1:
            ops.communicator = NcclCommunicator.connect(self.rank.host.group(self.grid.stage_ranks), ops.stream)
            self.rank.at_failure.append(ops.communicator.abort)
        return ops

    def agreed(self, budget: CacheBudget, device: str, options: EngineOptions) -> CacheBudget:
        """The smallest budget of all ranks; on a CPU they divide one memory."""
        num_bytes = budget.num_bytes
        if device == "cpu" and options.kv_cache_memory_bytes is None:
            num_bytes //= self.rank.world_size
        of_ranks = np.empty((self.rank.world_size, 1), np.int64)
        self.rank.host.all_gather(np.array([num_bytes], np.int64), of_ranks)
        return replace(budget, num_bytes=int(of_ranks.min()))
