"""The table of attention variants: one line per variant (minllm/kernels/variants.py); choice.py chooses among them.

If a variant cannot serve a call, because of its new tokens, dtype, GPU or arrays, its fallback does: the table shows all fallbacks.
"""

from minllm.kernels.variants import HALF_DTYPES as HALF
from minllm.kernels.variants import Variant, Variants
from minllm.runtime.device import HOPPER

ONE = 1  # the most new tokens per sequence in a decode step
ARRAYS, FLOAT32, QUANTIZED = "arrays", "float32 arrays", "quantized caches"
RESIDUAL_WINDOW = "quantized caches and recent keys"
TREE = "arrays and a tree of drafts"
SOFT_CAP = "arrays and a soft cap"

VARIANTS = Variants(
    "minllm.kernels.attention",
    Variant("materialized", ".ladder.materialized"),
    Variant("flash_attention_1", ".ladder.flash_attention_1"),
    Variant("flash_attention_2", ".flash_attention_2.flash_attention_2"),
    Variant("flash_attention_2_float32", ".flash_attention_2.float32", dtypes=("float32",), reads=FLOAT32),  # flash_attention_2 calls it
    Variant("fixed_split", ".fixed_split.fixed_split", dtypes=HALF, fallback="flash_attention_2"),  # verifications; batch_invariant=True
    Variant("flash_attention_3", ".flash_attention_3.prompts", "PLAIN", dtypes=HALF, capability=HOPPER, fallback="flash_attention_2"),
    Variant("split_kv", ".split_kv.split_kv", most_rows=ONE),
    Variant("split_tensor_core", ".split_tensor_core.decode_step", most_rows=ONE, dtypes=HALF, fallback="split_kv"),
    Variant("split_unified_maximum", ".ladder.unified_maximum", most_rows=ONE, dtypes=HALF, fallback="split_kv"),
    Variant(
        "split_cluster", ".split_tensor_core.cluster_step", most_rows=ONE, dtypes=HALF, capability=HOPPER, fallback="split_tensor_core"
    ),
    Variant("flash_attention_2_quantized", ".flash_attention_2.quantized", dtypes=HALF, reads=QUANTIZED),
    Variant(
        "flash_attention_3_float8",
        ".flash_attention_3.prompts",
        "CODES",
        dtypes=HALF,
        capability=HOPPER,
        fallback="flash_attention_2_quantized",
        reads=QUANTIZED,
    ),
    Variant("split_quantized", ".split_quantized.split_quantized", most_rows=ONE, dtypes=HALF, reads=QUANTIZED),
    Variant("residual_window", ".residual_window.residual_window", dtypes=HALF, reads=RESIDUAL_WINDOW),
    Variant("tree", ".tree.tree", reads=TREE),
    Variant("soft_capped", ".soft_capped.soft_capped", reads=SOFT_CAP),
)
