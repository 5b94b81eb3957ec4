"""The options of LLM(): their names, types, defaults and meanings. They are checked before anything is loaded.

Options that vLLM has too have vLLM's names, and mostly its defaults.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.speculative_config import SpeculativeConfig, speculative_config
from minllm.errors import DeviceError, InvalidOptionError
from minllm.kernels.quantization.formats import ALIASES, CHANNEL_FORMATS, KV_FORMATS, default_window
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.ops.own_kernels import OwnKernel
from minllm.runtime.memory import ALLOCATIONS
from minllm.weights.formats import quantizations

DEVICES = ("auto", "cpu", "cuda")
LOAD_FORMATS = ("auto", "dummy")
EXTERNAL_LAUNCHER = "external_launcher"
EXECUTOR_BACKENDS = ("mp", EXTERNAL_LAUNCHER)
KV_CACHE_POLICIES = ("paged", "contiguous", "virtual")
SCHEDULING_POLICIES = tuple(POLICIES)
PREEMPTIONS = ("recompute", "swap", "auto", "drop")
PREDICTIONS = tuple(LENGTH_PREDICTIONS)
PREFIX_INDEXES = ("hash", "radix")
DTYPES = ("auto", "float32", "float16", "bfloat16")
DTYPE_ALIASES = {"float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bf16": "bfloat16"}
KV_CACHE_DTYPES = ("auto", *KV_FORMATS, *ALIASES)
FIXED_ORDER_VARIANTS = {"matmul": "fixed_order", "attention": "fixed_split"}  # for batch_invariant=True
BLOCK_SIZE = 16  # tokens per block unless the option says otherwise


def _check(allowed: bool, name: str, given, meaning: str) -> None:
    if not allowed:
        raise InvalidOptionError(f"{name}={given!r} is not allowed: {name} is {meaning}.")


def _is_name(given, names: tuple[str, ...]) -> bool:
    """Whether `given` is one of the names. An array is not: its == compares element by element."""
    return isinstance(given, str) and given in names


def _is_variant(item: tuple[Any, Any]) -> bool:
    """Whether (stage, variant) may be an entry of kernel_variants: a name, a launcher, or a module with attention."""
    stage, variant = item
    return isinstance(stage, str) and (isinstance(variant, str | OwnKernel) or callable(variant) or hasattr(variant, "attention"))


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of LLM(). Raises InvalidOptionError for a value or a combination of values that is not allowed."""

    model: str | Path | None = None
    """A Hugging Face model directory or a GGUF file; None is the small model of Python code that comes with minllm."""

    device: str = "auto"
    """Where to compute: "cuda", "cpu" (NumPy), or "auto": a GPU if one can be used."""

    dtype: str = "auto"
    """The type of weights and activations: "float32" (also "float", "fp32"), "float16" ("half", "fp16"), "bfloat16" ("bf16"), or "auto",
    the type that the checkpoint has; float16 for a bfloat16 checkpoint on a GPU without bfloat16 (before compute capability 8.0)."""

    quantization: str | None = None
    """Format to which the layers' matrices are quantised while a 16-bit checkpoint is loaded, by rounding to the nearest code: "int8" and
    "fp8" (activations too, token by token), "int4" in groups of 32 ("int4_g64", "int4_g128" in larger ones, each also with "_zeros" behind
    it, for zero points), or "nf4". Embeddings and head stay as they are. None leaves all weights as they are."""

    load_format: str = "auto"
    """Where weights come from: "auto" reads the directory's; "dummy" makes random ones for its config.json, to measure speed alone."""

    allow_nonfinite_weights: bool = False
    """Load weights that hold NaN or infinity too, which are otherwise refused by the name of their tensor."""

    seed: int = 0
    """Seeds the requests that have no seed of their own."""

    tensor_parallel_size: int = 1
    """Number of ranks, each a process that computes with its part of the model's heads, inner width and vocabulary; 1 splits nothing. On a
    CPU they share its cores (parallel/tensor_parallel.py)."""

    pipeline_parallel_size: int = 1
    """Number of stages, each with an equal number of the model's layers on tensor_parallel_size ranks; the sequences of a step pass through
    them in as many micro-batches (parallel/pipeline.py)."""

    decode_context_parallel_size: int = 1
    """Number of tensor ranks that share each context of a KV head which all of them hold: each caches a part of its tokens
    (parallel/context_parallel.py); on a CPU so far."""

    distributed_executor_backend: str | None = None
    """Who starts the ranks: None or "mp", this LLM, on one host; "external_launcher", torchrun, mpirun or srun, on one host or on several:
    every process makes the same calls, and all get the outputs (engine/ranks/launched.py)."""

    max_num_seqs: int = 256
    """The most sequences computed together."""

    max_num_batched_tokens: int = 2048
    """The token budget of a step: the tokens of all that decode, and prompt tokens up to this sum."""

    scheduling_policy: str = "split_fuse"
    """Which tokens a step computes: "split_fuse" (all decodes, then prompts in chunks up to the budget), "in_flight" (decodes and whole
    prompts), "prefill_first" (whole prompts, or else decodes) or "static" (a batch ends before the next begins)."""

    preemption: str = "recompute"
    """What happens to the newest sequence when the KV cache is full: "recompute" it later, "swap" it to the host's memory, "auto" whichever
    is predicted to be faster, or "drop" it with an error."""

    swap_space_bytes: int = 4 << 30
    """Host memory for swapped sequences; it is locked at the start, and only if preemption may swap."""

    speculative_config: dict[str, Any] | None = None
    """Guess tokens and verify several per step: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}, or with a draft
    model {"model": path, "num_speculative_tokens": 4}, as a tree of drafts {"speculative_token_tree": "[(0,), (1,)]"} with it, or without
    any {"method": "lookahead"} (engine/speculative_config.py); None decodes one at a time. Greedy text stays the same, and the distribution
    of sampled text."""

    length_prediction: str = "none"
    """How much of the KV cache is kept for the answers of running sequences: "none", "limit" (all of max_tokens, so nobody is preempted) or
    "mean" (of past answers to prompts of such a length)."""

    max_model_len: int | None = None
    """The most tokens of prompt and output together; None is what model and memory allow."""

    gpu_memory_utilization: float = 0.9
    """The share of the GPU's memory to use in all: weights, activations, and the KV cache, which takes the rest."""

    kv_cache_memory_bytes: int | None = None
    """Bytes for the KV cache, on a GPU or a CPU, whatever gpu_memory_utilization says; None takes what that leaves."""

    kv_cache_dtype: str = "auto"
    """How keys and values are cached: "auto", which is dtype, or in fewer bits, "int8", "int4", "fp8_e4m3" (also "fp8"), "fp8_e5m2" or
    "kivi_int4" (kernels/quantization/formats.py)."""

    kv_cache_residual_window: int | None = None
    """This number of each sequence's newest tokens, a multiple of 32, is kept unquantised; None is 128 for kivi_int4, which needs a window,
    and 0, no window, for the others."""

    kv_cache_policy: str = "paged"
    """How the KV cache is shared out: "paged" in blocks as tokens come, "contiguous" with room for max_model_len tokens for every sequence,
    "virtual" with addresses for max_model_len tokens and memory for those that exist."""

    block_size: int | None = None
    """Tokens per block of the paged cache; None is 16, or 32 for kivi_int4."""

    enable_prefix_caching: bool | str = False
    """What a prompt has in common with earlier ones is not computed again; True or "hash" finds it by hashes, "radix" in a tree."""

    kernel_variants: dict[str, Any] | None = None
    """{stage: variant} overrides the choice of kernels on a GPU. A launcher of your own instead of a variant's name (ops/own_kernels.py)
    also runs on a CPU, in the simulator."""

    batch_invariant: bool = False
    """The logits of a request are the same bits alone, in any batch, in prompt chunks of any size and with drafts to verify: every sum has
    one order, which costs speed. It excludes kernel_variants, several ranks, a quantised KV cache, and on a GPU quantised weights."""

    enforce_eager: bool = False
    """On a GPU, launch every kernel of a decode step by itself rather than replay them as one CUDA graph."""

    allocation: str | None = None
    """How GPU memory for temporaries is allocated, to compare: "pool" (ours), "synchronous" or "stream_ordered" (the driver's, see
    runtime/memory.py); None is the environment's MINLLM_ALLOCATION, or pool."""

    pinned: bool = True
    """Read results through page-locked host memory."""

    def __post_init__(self) -> None:
        is_path = self.model is None or isinstance(self.model, Path) or (isinstance(self.model, str) and self.model != "")
        _check(is_path, "model", self.model, "the path of a model directory or of a GGUF file, or None for the bundled model")
        for name, names in (("device", DEVICES), ("dtype", (*DTYPES, *DTYPE_ALIASES)), ("load_format", LOAD_FORMATS)):
            self._check_name(name, names)
        object.__setattr__(self, "dtype", DTYPE_ALIASES.get(self.dtype, self.dtype))
        if self.distributed_executor_backend is not None:
            self._check_name("distributed_executor_backend", EXECUTOR_BACKENDS)
        for name, names in (("scheduling_policy", SCHEDULING_POLICIES), ("preemption", PREEMPTIONS), ("length_prediction", PREDICTIONS)):
            self._check_name(name, names)
        self._check_quantization()
        self._check_cache()
        sizes = ("max_num_seqs", "max_num_batched_tokens", "block_size", "swap_space_bytes")
        for name in (*sizes, "tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"):
            self._check_positive(name)
        divides = self.tensor_parallel_size % self.decode_context_parallel_size == 0
        meaning = f"a divisor of tensor_parallel_size={self.tensor_parallel_size}, whose ranks share contexts"
        _check(divides, "decode_context_parallel_size", self.decode_context_parallel_size, meaning)
        for name in ("max_model_len", "kv_cache_memory_bytes"):
            if getattr(self, name) is not None:
                self._check_positive(name)
        self._check_window()
        self._check_speculation()
        share = self.gpu_memory_utilization
        is_share = isinstance(share, Real) and not isinstance(share, bool) and 0 < share <= 1
        _check(is_share, "gpu_memory_utilization", share, "the share of the GPU's memory to use, above 0 and at most 1")
        is_known = self.allocation is None or _is_name(self.allocation, ALLOCATIONS)
        _check(is_known, "allocation", self.allocation, f"None (MINLLM_ALLOCATION, or pool) or one of {', '.join(ALLOCATIONS)}")
        for name in ("allow_nonfinite_weights", "batch_invariant", "enforce_eager", "pinned"):
            _check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        variants = self.kernel_variants
        is_table = variants is None or (isinstance(variants, dict) and all(map(_is_variant, variants.items())))
        _check(is_table, "kernel_variants", variants, 'a table such as {"matmul": "tiled"}, or with launchers of your own instead of names')
        adds_up = variants is None or "all_reduce" not in variants or self.tensor_parallel_size > 1
        _check(adds_up, "kernel_variants", variants, "without all_reduce unless tensor_parallel_size is above 1: one GPU adds nothing up")
        self._check_batch_invariance()
        is_seed = isinstance(self.seed, Integral) and not isinstance(self.seed, bool) and 0 <= self.seed < 2**64
        _check(is_seed, "seed", self.seed, "an integer from 0 to 2**64 - 1")

    def _check_speculation(self) -> None:
        """Turn the option into a SpeculativeConfig, and check it against the other options."""
        config = speculative_config(self.speculative_config)
        object.__setattr__(self, "speculative_config", config)
        if config is None:
            return
        name, drafts = "num_speculative_tokens", config.num_drafts
        window, meaning = self.kv_cache_residual_window, "None with a residual window, whose newest tokens rejected drafts would overwrite"
        _check(not window, "speculative_config", config, meaning)
        has_blocks = config.method != "draft_model" or self.kv_cache_policy != "virtual"
        shared = "of a method without a model with the virtual policy: a draft model shares the block tables of a paged or contiguous cache"
        _check(has_blocks, "speculative_config", config, shared)
        if config.tree is not None:
            self._check_tree()
        for limit in ("max_num_batched_tokens", "max_model_len"):
            most = getattr(self, limit)
            _check(most is None or drafts <= most - 2, name, drafts, f"at most {limit} - 2, here {most} - 2")

    def _check_tree(self) -> None:
        """Check the options that exclude a tree of drafts, including that of lookahead decoding."""
        for name, allowed, why in (
            ("kv_cache_dtype", "auto", "an accepted path moves in a cache that keeps numbers as they are"),
            ("kv_cache_policy", ("paged", "contiguous"), "an accepted path moves between slots of one array"),
            ("batch_invariant", False, "attention of a tree adds up in an order of its own"),
            ("num_ranks", 1, "trees are verified by one process"),
        ):
            value, names = getattr(self, name), allowed if isinstance(allowed, tuple) else (allowed,)
            shown = " or ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in names)
            _check(value in names, name, value, f"{shown} with a speculative_token_tree or lookahead decoding: {why}")

    def _check_batch_invariance(self) -> None:
        """Check the options for which there are no kernels with a fixed order of summation."""
        if not self.batch_invariant:
            return
        variants = self.kernel_variants
        _check(not variants, "kernel_variants", variants, "None with batch_invariant=True, which chooses the kernels")
        alone = "1 with batch_invariant=True: the sum over ranks may change its order with the number of rows"
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            _check(getattr(self, name) == 1, name, getattr(self, name), alone)
        plain = '"auto" with batch_invariant=True: attention has a fixed order over plain caches only'
        _check(self.kv_cache_dtype == "auto", "kv_cache_dtype", self.kv_cache_dtype, plain)

    def _check_quantization(self) -> None:
        """Raise InvalidOptionError unless `quantization` is None or a weight format that can be loaded."""
        names = quantizations()
        meaning = f"None or one of {', '.join(names)}"
        _check(self.quantization is None or _is_name(self.quantization, names), "quantization", self.quantization, meaning)

    def _check_cache(self) -> None:
        """Check each cache option alone, then the combinations that are not allowed."""
        self._check_name("kv_cache_policy", KV_CACHE_POLICIES)
        self._check_name("kv_cache_dtype", KV_CACHE_DTYPES)
        self._set_defaults()
        policy, prefixes = self.kv_cache_policy, self.enable_prefix_caching
        is_choice = isinstance(prefixes, bool) or _is_name(prefixes, PREFIX_INDEXES)
        _check(is_choice, "enable_prefix_caching", prefixes, 'False, True, "hash" (which True means) or "radix"')
        is_plain = policy != "virtual" or self.kv_cache_dtype == "auto"
        _check(is_plain, "kv_cache_dtype", self.kv_cache_dtype, '"auto" with kv_cache_policy="virtual", which keeps numbers as they are')
        shares = f'False with kv_cache_policy="{policy}": prefixes are shared in blocks, which kv_cache_policy="paged" has'
        _check(policy == "paged" or not prefixes, "enable_prefix_caching", prefixes, shares)

    def _check_name(self, name: str, names: tuple[str, ...]) -> None:
        _check(_is_name(getattr(self, name), names), name, getattr(self, name), f"one of {', '.join(names)}")

    def _set_defaults(self) -> None:
        """Set sizes that depend on the cache's format: a group of keys quantised by channel must lie in one block."""
        by_channel = self.kv_cache_dtype in CHANNEL_FORMATS
        if self.block_size is None:
            object.__setattr__(self, "block_size", TOKEN_GROUP if by_channel else BLOCK_SIZE)
        if self.kv_cache_residual_window is None:
            object.__setattr__(self, "kv_cache_residual_window", default_window(self.kv_cache_dtype))

    def _check_window(self) -> None:
        """Check the residual window, and the options that exclude it."""
        name, window, by_channel = "kv_cache_residual_window", self.kv_cache_residual_window, self.kv_cache_dtype in CHANNEL_FORMATS
        is_size = isinstance(window, Integral) and not isinstance(window, bool) and window >= 0 and window % TOKEN_GROUP == 0
        _check(is_size, name, window, f"a number of tokens, a multiple of {TOKEN_GROUP}, or 0 for no window")
        _check(not window or self.kv_cache_dtype != "auto", name, window, 'for a quantised cache: kv_cache_dtype="auto" keeps all as it is')
        grouped = f"at least {TOKEN_GROUP} with {self.kv_cache_dtype}, whose codes are made by groups"
        _check(bool(window) or not by_channel, name, window, grouped)
        prefixes = "False with a residual window, whose tokens are not in the blocks that prompts could share"
        _check(not (window and self.enable_prefix_caching), "enable_prefix_caching", self.enable_prefix_caching, prefixes)
        is_whole = not by_channel or self.kv_cache_policy != "paged" or (self.block_size or 0) % TOKEN_GROUP == 0
        _check(is_whole, "block_size", self.block_size, f"a multiple of {TOKEN_GROUP} with kv_cache_dtype={self.kv_cache_dtype!r}")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        _check(isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1, name, value, "an integer of at least 1")

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """speculative_config, which may be given as a dictionary, as a SpeculativeConfig."""
        return speculative_config(self.speculative_config)

    @property
    def num_ranks(self) -> int:
        """The number of processes that compute together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def is_launched(self) -> bool:
        """Whether a launcher has started the ranks."""
        return self.distributed_executor_backend == EXTERNAL_LAUNCHER

    @property
    def prefix_index(self) -> str | None:
        """The index that finds shared prefixes, "hash" or "radix"; None if prefixes are not shared."""
        return "hash" if self.enable_prefix_caching is True else self.enable_prefix_caching or None

    @property
    def chosen_variants(self) -> dict[str, Any] | None:
        """{stage: variant} for the stages with kernels that are not chosen by shape; None if there are none."""
        return FIXED_ORDER_VARIANTS if self.batch_invariant else self.kernel_variants

    @property
    def max_num_logits(self) -> int:
        """The most rows of a step that get logits: one per sequence, and one per draft."""
        drafts = 0 if self.speculation is None else self.speculation.num_drafts
        return min(self.max_num_seqs * (1 + drafts), max(self.max_num_seqs, self.max_num_batched_tokens))

    def resolved_device(self) -> str:
        """The device to use, "cpu" or "cuda": "auto" is "cuda" if a GPU can be used. Raises DeviceError for "cuda" without a usable GPU."""
        if self.device == "cpu":
            return "cpu"
        from minllm.runtime.device import is_available

        if is_available():
            return "cuda"
        if self.device == "cuda":
            raise DeviceError('device="cuda" was asked for and no GPU can be used: run `minllm doctor` to see why, or take device="cpu".')
        return "cpu"
