"""The operations of an engine on its device, and the options that a device's operations refuse."""

from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig
from minllm.ops.protocol import Ops
from minllm.weights.format import WeightFormat
from minllm.weights.quantized import Int4Format


def make_ops(device: str, dtype: str, options: EngineOptions) -> Ops:
    """The operations of one rank without peers. Raises InvalidOptionError for options that this device does not have."""
    if device == "cpu":
        _check_no_memory_mode(options)
        if options.kernel_variants:
            return _simulated_stage_ops(dtype, options)
        return _numpy_ops(dtype, options.batch_invariant)
    from minllm.ops.cuda_ops import CudaOps

    return CudaOps(dtype, options.chosen_variants, allocation=options.allocation, pinned=options.pinned)


def _numpy_ops(dtype: str, batch_invariant: bool) -> Ops:
    if batch_invariant:
        from minllm.ops.numpy_fixed_order import FixedOrderNumpyOps

        return FixedOrderNumpyOps(dtype)
    from minllm.ops.numpy_ops import NumpyOps

    return NumpyOps(dtype)


def _simulated_stage_ops(dtype: str, options: EngineOptions) -> Ops:
    """NumPy operations, with the kernels of some stages run in the simulator."""
    from minllm.ops.own_kernels import own_kernels

    variants = options.kernel_variants or {}
    own = own_kernels(variants)
    if len(own) < len(variants):
        raise InvalidOptionError("kernel_variants chooses among GPU kernels by name, and this LLM runs on the CPU: leave names out.")
    from minllm.ops.simulated_stage import SimulatedStageOps

    return SimulatedStageOps(dtype, own)


def _check_no_memory_mode(options: EngineOptions) -> None:
    """Raises InvalidOptionError for options that change nothing on a CPU: comparing their values there would mean nothing."""
    for name, value, default in (("allocation", options.allocation, None), ("pinned", options.pinned, True)):
        if value != default:
            raise InvalidOptionError(f"{name}={value!r} is about the memory of a GPU, and this LLM runs on the CPU: leave it out.")


def check_soft_cap(device: str, config: ModelConfig, options: EngineOptions) -> None:
    """Raises InvalidOptionError for options for which attention with bounded scores has no kernels on a GPU."""
    drafts = options.speculation
    if device == "cpu" or not config.attention_soft_cap:
        return
    if options.kv_cache_dtype != "auto" or (drafts is not None and drafts.tree):
        what = f"kv_cache_dtype={options.kv_cache_dtype!r}" if options.kv_cache_dtype != "auto" else "a tree of drafts"
        raise InvalidOptionError(
            f"A {config.model_type} model bounds its attention's scores (attn_logit_softcapping = {config.attention_soft_cap}), for which "
            f'there are no kernels with {what} on a GPU: leave it out, or take device="cpu".'
        )


def check_own_kernels(options: EngineOptions, config: ModelConfig, weight_format: WeightFormat | None) -> None:
    """Raises InvalidOptionError for a user's kernel that would never run: no weight or expert of this model, or no draft, needs it."""
    stage, named = Int4Format.own_stage, weight_format is None or weight_format.is_option
    if stage in (options.kernel_variants or {}) and named and getattr(weight_format, "own_stage", None) != stage:
        raise InvalidOptionError(f'Your {stage} kernel multiplies 4-bit weights, and this model has none: add quantization="int4".')
    if "sort_by_expert" in (options.kernel_variants or {}) and not config.num_experts:
        raise InvalidOptionError("Your sort_by_expert kernel is for experts, and this model has no experts: take a Qwen2-MoE or Qwen3-MoE.")
    drafts = options.speculation
    if "accept" in (options.kernel_variants or {}) and (drafts is None or drafts.synthetic_acceptance_rate is not None or drafts.tree):
        what = "nothing is drafted" if drafts is None else "a path of a tree is accepted" if drafts.tree else "chance accepts the drafts"
        raise InvalidOptionError(
            f'Your accept kernel decides on drafts, and here {what}: give speculative_config={{"method": "ngram", '
            '"num_speculative_tokens": 4}, without synthetic_acceptance_rate.'
        )
