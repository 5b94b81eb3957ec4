"""What an engine will be, decided by its options, the model's headers and the device, before anything is allocated."""

from dataclasses import dataclass, replace

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape
from minllm.engine.build.cache_format import cache_shape, check_cache_dtype, check_shape, with_sliding_layers
from minllm.engine.build.compute_dtype import compute_dtype
from minllm.engine.build.max_model_len import wanted_model_len
from minllm.engine.build.memory_budget import cache_budget, check_sizes_fit, check_weights_fit
from minllm.engine.build.ops import check_own_kernels, check_soft_cap, make_ops
from minllm.engine.build.step_limits import with_step_limits
from minllm.engine.build.weights import check_expert_widths, chosen_format, model_source, open_model
from minllm.engine.options import BLOCK_SIZE, EngineOptions
from minllm.engine.ranks.share import RankShare
from minllm.models.config import ModelConfig
from minllm.models.generation_config import GenerationConfig
from minllm.models.source import ModelSource
from minllm.models.tokenizer import Tokenizer
from minllm.ops.protocol import Ops
from minllm.parallel.dry_run_ranks import Split
from minllm.weights.format import WeightFormat
from minllm.weights.stored import StoredWeights


@dataclass(frozen=True)
class Plan:
    """The decisions that all parts of an engine share."""

    options: EngineOptions  # max_num_seqs and max_num_batched_tokens are numbers
    share: RankShare | None  # this rank's share of the model; None for a single rank
    source: ModelSource
    config: ModelConfig  # the whole model's
    part: ModelConfig  # this rank's part as a model of its own
    checkpoint: StoredWeights
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    device: str  # "cpu" or "cuda"
    weight_format: WeightFormat | None  # the layers' matrices are quantised to it; None leaves them as they are
    ops: Ops
    shape: CacheShape
    wanted_len: int = 0  # tokens of the longest sequence, if the cache can hold it

    def budget(self) -> CacheBudget:
        """The memory that is left for the KV cache now; if several ranks share the model, that of the rank with the least."""
        budget = cache_budget(self.device, self.ops, self.part, self.options, self.weight_format)
        return budget if self.share is None else self.share.agreed(budget, self.device, self.options)

    def split(self) -> Split | None:
        """The rank's part for a dry run; None if it has the whole model."""
        return None if self.share is None else self.share.split(self.config)


def plan_engine(options: EngineOptions, share: RankShare | None) -> Plan:
    """Read the model's headers, open the device, and check every option. share: see load_engine, whose errors this raises."""
    source = model_source(options)
    config, checkpoint = open_model(source, options)
    generation_config, tokenizer = source.generation_config(), source.tokenizer()
    device = options.resolved_device()
    weight_format = chosen_format(device, options, source, config, checkpoint)
    dtype = compute_dtype(options.dtype, str(checkpoint.dtype(quantized=weight_format is not None)), device)
    check_own_kernels(options, config, weight_format)
    check_cache_dtype(device, dtype, options)
    check_soft_cap(device, config, options)
    ops = make_ops(device, dtype, options) if share is None else share.make_ops(device, dtype, options, config)
    part = config if share is None else share.part(config)
    check_expert_widths(device, part, weight_format)
    shape = cache_shape(part, ops.dtype, options.block_size or BLOCK_SIZE, options.kv_cache_dtype, options.kv_cache_residual_window or 0)
    shape = with_sliding_layers(shape, part, options) if share is None else share.shared(shape, ops)
    check_shape(device, shape)
    options = with_step_limits(options, device, ops, part, weight_format, shape, share)
    plan = Plan(options, share, source, config, part, checkpoint, tokenizer, generation_config, device, weight_format, ops, shape)
    plan = replace(plan, wanted_len=wanted_model_len(options, config, shape, plan.budget()))
    check_weights_fit(device, ops, part, weight_format)
    check_sizes_fit(device, ops, part, options, plan.wanted_len)
    return plan
