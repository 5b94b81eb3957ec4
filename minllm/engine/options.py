"""The options of LLM(): their names, types, defaults and meanings. They are checked before anything is loaded.

Options that vLLM has too have vLLM's names, and mostly its defaults.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from minllm.engine.option_checks import FLAG, Allowed, Rule, check_rules, check_values, either, integer, none_or, one_of, option
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.speculative_config import A_SPECULATIVE_CONFIG, SpeculativeConfig, speculative_config
from minllm.errors import DeviceError
from minllm.kernels.quantization.formats import ALIASES, CHANNEL_FORMATS, KV_FORMATS, default_window
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.ops.own_kernels import OwnKernel

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
ONE_RANK = "1 with batch_invariant=True: the sum over ranks may change its order with the number of rows"
BLOCK_SIZE = 16  # tokens per block unless the option says otherwise


def _quantizations() -> Allowed:
    from minllm.weights.formats import quantizations  # it needs NumPy, and the help of commands does without

    return none_or(one_of(*quantizations()), "None or {}")


def _allocations() -> Allowed:
    from minllm.runtime.memory import ALLOCATIONS

    return none_or(one_of(*ALLOCATIONS), "None (MINLLM_ALLOCATION, or pool) or {}")


def _is_variant(item: tuple[Any, Any]) -> bool:
    """Whether (stage, variant) may be an entry of kernel_variants: a name, a launcher, or a module with attention."""
    stage, variant = item
    return isinstance(stage, str) and (isinstance(variant, str | OwnKernel) or callable(variant) or hasattr(variant, "attention"))


def _is_path(given: object) -> bool:
    return given is None or isinstance(given, Path) or (isinstance(given, str) and given != "")


def _is_share(given: Any) -> bool:
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    return is_number and 0 < given <= 1


def _is_window(given: Any) -> bool:
    return given is None or (integer(0).allows(given) and given % TOKEN_GROUP == 0)


def _is_table(given: object) -> bool:
    return given is None or (isinstance(given, dict) and all(map(_is_variant, given.items())))


def _without_tree(holds: Callable[[Any], bool], allowed: str, why: str, name: str = "") -> Rule:
    """The rule of an option that a tree of drafts restricts, including that of lookahead decoding."""
    says = f"{allowed} with a speculative_token_tree or lookahead decoding: {why}"
    return Rule(lambda options: options.speculation is None or options.speculation.tree is None or holds(options), says, name)


def _fewer_drafts_than(limit: str) -> Rule:
    """The rule that a step holds the drafts of a sequence and two tokens more."""
    holds = lambda o: getattr(o, limit) is None or not o.speculation or o.num_speculative_tokens <= getattr(o, limit) - 2  # noqa: E731
    return Rule(holds, f"at most {limit} - 2, here {{{limit}}} - 2", name="num_speculative_tokens")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The options of LLM(). Raises InvalidOptionError for a value or a combination of values that is not allowed."""

    model: str | Path | None = option(
        None, Allowed("the path of a model directory or of a GGUF file, or None for the bundled model", _is_path)
    )
    """A Hugging Face model directory or a GGUF file; by default the small model of Python code that comes with minllm."""

    device: str = option("auto", one_of(*DEVICES))
    """Where to compute: "cuda", "cpu" (NumPy), or "auto": a GPU if one can be used."""

    dtype: str = option("auto", one_of(*DTYPES, *DTYPE_ALIASES))
    """The type of weights and activations: "float32" (also "float", "fp32"), "float16" ("half", "fp16"), "bfloat16" ("bf16"), or "auto",
    the type that the checkpoint has; float16 for a bfloat16 checkpoint on a GPU without bfloat16 (before compute capability 8.0)."""

    quantization: str | None = option(None, _quantizations)
    """Format to which the layers' matrices are quantised while a 16-bit checkpoint is loaded, by rounding to the nearest code: "int8" and
    "fp8" (activations too, token by token), "int4" in groups of 32 ("int4_g64", "int4_g128" in larger ones, each also with "_zeros" behind
    it, for zero points), or "nf4". Embeddings and head stay as they are, and by default all weights."""

    load_format: str = option("auto", one_of(*LOAD_FORMATS))
    """Where weights come from: "auto" reads the directory's; "dummy" makes random ones for its config.json, to measure speed alone."""

    allow_nonfinite_weights: bool = option(False, FLAG)
    """Load weights that hold NaN or infinity too, which are otherwise refused by the name of their tensor."""

    seed: int = option(0, integer(0, 2**64 - 1, "an integer from 0 to 2**64 - 1"))
    """Seeds the requests that have no seed of their own."""

    tensor_parallel_size: int = option(
        1, integer(1), _without_tree(lambda o: o.num_ranks == 1, "1", "trees are verified by one process", name="num_ranks"),
        Rule(lambda o: not o.batch_invariant or o.tensor_parallel_size == 1, ONE_RANK),
    )  # fmt: skip
    """Number of ranks, each a process that computes with its part of the model's heads, inner width and vocabulary; 1 splits nothing. On a
    CPU they share its cores (parallel/tensor_parallel.py)."""

    pipeline_parallel_size: int = option(1, integer(1), Rule(lambda o: not o.batch_invariant or o.pipeline_parallel_size == 1, ONE_RANK))
    """Number of stages, each with an equal number of the model's layers on tensor_parallel_size ranks; the tokens of a large step pass
    through them in micro-batches (parallel/pipeline.py)."""

    decode_context_parallel_size: int = option(
        1, integer(1),
        Rule(
            lambda o: o.tensor_parallel_size % o.decode_context_parallel_size == 0,
            "a divisor of tensor_parallel_size={tensor_parallel_size}, whose ranks share contexts",
        ),
    )  # fmt: skip
    """Number of tensor ranks that share each context of a KV head which all of them hold: each caches a part of its tokens
    (parallel/context_parallel.py)."""

    distributed_executor_backend: str | None = option(None, none_or(one_of(*EXECUTOR_BACKENDS)))
    """Who starts the ranks: None or "mp", this LLM, on one host; "external_launcher", torchrun, mpirun or srun, on one host or on several:
    every process makes the same calls, and all get the outputs (engine/ranks/launched.py)."""

    # these two are None until build/plan.py has chosen numbers, which all later code sees
    max_num_seqs: int = option(None, none_or(integer(1)))
    """The most sequences computed together; by default 256, with 8-bit weights 512, fewer on a GPU with little memory
    (costs/step_limits.py)."""

    max_num_batched_tokens: int = option(None, none_or(integer(1)))
    """The token budget of a step: the tokens of all that decode, and prompt tokens up to this sum; by default 2,048,
    fewer on a GPU with little memory."""

    scheduling_policy: str = option("split_fuse", one_of(*SCHEDULING_POLICIES))
    """Which tokens a step computes: "split_fuse" (all decodes, then prompts in chunks up to the budget), "in_flight" (decodes and whole
    prompts), "prefill_first" (whole prompts, or else decodes) or "static" (a batch ends before the next begins)."""

    preemption: str = option("recompute", one_of(*PREEMPTIONS))
    """What happens to the newest sequence when the KV cache is full: "recompute" it later, "swap" it to the host's memory, "auto" whichever
    is predicted to be faster, or "drop" it with an error."""

    swap_space_bytes: int = option(4 << 30, integer(1))
    """Host memory for swapped sequences; it is locked at the start, and only if preemption may swap."""

    speculative_config: dict[str, Any] | None = option(
        None, Allowed(A_SPECULATIVE_CONFIG, lambda given: True),  # speculative_config() checks it
        Rule(
            lambda o: not (o.speculation and o.kv_cache_residual_window),
            "None with a residual window, whose newest tokens rejected drafts would overwrite",
        ),
        Rule(
            lambda o: o.kv_cache_policy != "virtual" or o.speculation is None or o.speculation.method != "draft_model",
            "of a method without a model with the virtual policy: a draft model shares the block tables of a paged or contiguous cache",
        ),
        _fewer_drafts_than("max_num_batched_tokens"), _fewer_drafts_than("max_model_len"),
    )  # fmt: skip
    """Guess tokens and verify several per step: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}, or with a draft
    model {"model": path, "num_speculative_tokens": 4}, as a tree of drafts {"speculative_token_tree": "[(0,), (1,)]"} with it, or without
    any {"method": "lookahead"} (engine/speculative_config.py); by default tokens are decoded one at a time. Greedy text stays the same, and
    the distribution of sampled text."""

    length_prediction: str = option("none", one_of(*PREDICTIONS))
    """How much of the KV cache is kept for the answers of running sequences: "none", "limit" (all of max_tokens, so nobody is preempted) or
    "mean" (of past answers to prompts of such a length)."""

    max_model_len: int | None = option(None, none_or(integer(1)))
    """The most tokens of prompt and output together; by default what model and memory allow."""

    gpu_memory_utilization: float = option(0.9, Allowed("the share of the GPU's memory to use, above 0 and at most 1", _is_share))
    """The share of the GPU's memory to use in all: weights, activations, and the KV cache, which takes the rest."""

    kv_cache_memory_bytes: int | None = option(None, none_or(integer(1)))
    """Bytes for the KV cache, on a GPU or a CPU, whatever gpu_memory_utilization says; by default what that leaves."""

    kv_cache_dtype: str = option(
        "auto", one_of(*KV_CACHE_DTYPES),
        Rule(
            lambda o: o.kv_cache_policy != "virtual" or o.kv_cache_dtype == "auto",
            '"auto" with kv_cache_policy="virtual", which keeps numbers as they are',
        ),
        _without_tree(lambda o: o.kv_cache_dtype == "auto", '"auto"', "an accepted path moves in a cache that keeps numbers as they are"),
        Rule(
            lambda o: not o.batch_invariant or o.kv_cache_dtype == "auto",
            '"auto" with batch_invariant=True: attention has a fixed order over plain caches only',
        ),
    )  # fmt: skip
    """How keys and values are cached: "auto", which is dtype, or in fewer bits, "int8", "int4", "fp8_e4m3" (also "fp8"), "fp8_e5m2" or
    "kivi_int4" (kernels/quantization/formats.py)."""

    kv_cache_residual_window: int | None = option(
        None, Allowed(f"a number of tokens, a multiple of {TOKEN_GROUP}, or 0 for no window", _is_window),
        Rule(
            lambda o: not o.kv_cache_residual_window or o.kv_cache_dtype != "auto",
            'for a quantised cache: kv_cache_dtype="auto" keeps all as it is',
        ),
        Rule(
            lambda o: o.kv_cache_residual_window or not o.quantises_by_channel,
            f"at least {TOKEN_GROUP} with {{kv_cache_dtype}}, whose codes are made by groups",
        ),
    )  # fmt: skip
    """This number of each sequence's newest tokens, a multiple of 32, is kept unquantised; by default 128 for kivi_int4, which needs a
    window, and 0, no window, for the others."""

    kv_cache_policy: str = option(
        "paged", one_of(*KV_CACHE_POLICIES),
        _without_tree(
            lambda o: o.kv_cache_policy != "virtual", '"paged" or "contiguous"', "an accepted path moves between slots of one array"
        ),
    )  # fmt: skip
    """How the KV cache is shared out: "paged" in blocks as tokens come, "contiguous" with room for max_model_len tokens for every sequence,
    "virtual" with addresses for max_model_len tokens and memory for those that exist."""

    block_size: int | None = option(
        None, none_or(integer(1)),
        Rule(
            lambda o: not o.quantises_by_channel or o.kv_cache_policy != "paged" or o.block_size % TOKEN_GROUP == 0,
            f"a multiple of {TOKEN_GROUP} with kv_cache_dtype={{kv_cache_dtype!r}}",
        ),
    )  # fmt: skip
    """Tokens per block of the paged cache; by default 16, or 32 for kivi_int4."""

    enable_prefix_caching: bool | str = option(
        False, either(FLAG, one_of(*PREFIX_INDEXES), says='False, True, "hash" (which True means) or "radix"'),
        Rule(
            lambda o: o.kv_cache_policy == "paged" or not o.enable_prefix_caching,
            'False with kv_cache_policy="{kv_cache_policy}": prefixes are shared in blocks, which kv_cache_policy="paged" has',
        ),
        Rule(
            lambda o: not (o.kv_cache_residual_window and o.enable_prefix_caching),
            "False with a residual window, whose tokens are not in the blocks that prompts could share",
        ),
    )  # fmt: skip
    """What a prompt has in common with earlier ones is not computed again; True or "hash" finds it by hashes, "radix" in a tree."""

    kernel_variants: dict[str, Any] | None = option(
        None, Allowed('a table such as {"matmul": "tiled"}, or with launchers of your own instead of names', _is_table),
        Rule(
            lambda o: "all_reduce" not in (o.kernel_variants or ()) or o.tensor_parallel_size > 1,
            "without all_reduce unless tensor_parallel_size is above 1: one GPU adds nothing up",
        ),
        Rule(lambda o: not (o.batch_invariant and o.kernel_variants), "None with batch_invariant=True, which chooses the kernels"),
    )  # fmt: skip
    """{stage: variant} overrides the choice of kernels on a GPU. A launcher of your own instead of a variant's name (ops/own_kernels.py)
    also runs on a CPU, in the simulator."""

    batch_invariant: bool = option(
        False, FLAG, _without_tree(lambda o: not o.batch_invariant, "False", "attention of a tree adds up in an order of its own")
    )  # fmt: skip
    """The logits of a request are the same bits alone, in any batch, in prompt chunks of any size and with drafts to verify: every sum has
    one order, which costs speed. It excludes kernel_variants, several ranks, a quantised KV cache, and on a GPU quantised weights."""

    enforce_eager: bool = option(False, FLAG)
    """On a GPU, launch every kernel of a decode step by itself rather than replay them as one CUDA graph."""

    allocation: str | None = option(None, _allocations)
    """How GPU memory for temporaries is allocated, to compare: "pool" (ours), "synchronous" or "stream_ordered" (the driver's, see
    runtime/memory.py); by default the environment's MINLLM_ALLOCATION, or pool."""

    pinned: bool = option(True, FLAG)
    """Read results through page-locked host memory."""

    def __post_init__(self) -> None:
        check_values(self)
        size, window = self.block_size, self.kv_cache_residual_window
        chosen = dict(
            dtype=DTYPE_ALIASES.get(self.dtype, self.dtype), speculative_config=speculative_config(self.speculative_config),
            block_size=size or (TOKEN_GROUP if self.quantises_by_channel else BLOCK_SIZE),
            kv_cache_residual_window=default_window(self.kv_cache_dtype) if window is None else window,
        )  # fmt: skip
        for name, value in chosen.items():
            object.__setattr__(self, name, value)  # frozen for users; defaults that depend on other options are set here
        check_rules(self)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """speculative_config, which may be given as a dictionary, as a SpeculativeConfig."""
        return speculative_config(self.speculative_config)

    @property
    def num_speculative_tokens(self) -> int:
        """The most drafts that a step verifies of each sequence; 0 for none."""
        return 0 if self.speculation is None else self.speculation.num_drafts

    @property
    def quantises_by_channel(self) -> bool:
        """Whether the cache quantises groups of keys by channel; such a group must lie in one block."""
        return self.kv_cache_dtype in CHANNEL_FORMATS

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
        return min(self.max_num_seqs * (1 + self.num_speculative_tokens), max(self.max_num_seqs, self.max_num_batched_tokens))

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
