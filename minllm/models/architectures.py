"""The model families that minllm runs, by their architecture name in config.json.

Defaults for missing keys are those of the family's configuration class in transformers, because the files that it writes omit keys with
default values.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.families.gemma import GEMMA2_KEYS, GEMMA3_KEYS, read_gemma2, read_gemma3
from minllm.models.families.gpt2 import GPT2_KEYS, read_gpt2
from minllm.models.families.llama import LLAMA_KEYS, MISTRAL_KEYS, read_llama, read_mistral
from minllm.models.families.qwen import QWEN2_KEYS, QWEN3_KEYS, read_qwen2, read_qwen3
from minllm.models.families.qwen_moe import QWEN2_MOE_KEYS, QWEN3_MOE_KEYS, read_qwen2_moe, read_qwen3_moe
from minllm.models.json_files import Fields


@dataclass(frozen=True)
class Architecture:
    """A family: its model_type in config.json, the function that reads the other keys, and these keys."""

    model_type: str
    read: Callable[[Fields], ModelConfig]
    keys: frozenset[str]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", read_llama, LLAMA_KEYS),
    "MistralForCausalLM": Architecture("mistral", read_mistral, MISTRAL_KEYS),
    "Qwen2ForCausalLM": Architecture("qwen2", read_qwen2, QWEN2_KEYS),
    "Qwen3ForCausalLM": Architecture("qwen3", read_qwen3, QWEN3_KEYS),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", read_qwen2_moe, QWEN2_MOE_KEYS),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", read_qwen3_moe, QWEN3_MOE_KEYS),
    "Gemma2ForCausalLM": Architecture("gemma2", read_gemma2, GEMMA2_KEYS),
    "Gemma3ForCausalLM": Architecture("gemma3_text", read_gemma3, GEMMA3_KEYS),
    "GPT2LMHeadModel": Architecture("gpt2", read_gpt2, GPT2_KEYS),
}

# {model_type: what minllm lacks for it}
LACKING = dict.fromkeys(
    ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    "keys and values of two head_dims, as Gemma 4's global layers have wider heads than those with a window, and layers that share them",
)
