"""The families that minllm runs, and how each says in config.json what it is.

Defaults for missing keys are those of the family's own configuration class in transformers, because the files that it writes omit keys
that equal them. An option that would change the result and that minllm does not compute is refused, never ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minllm.errors import UnsupportedModelError
from minllm.models.config import ModelConfig
from minllm.models.families.gpt2 import read_gpt2
from minllm.models.families.llama import read_llama, read_mistral
from minllm.models.families.qwen import read_qwen2, read_qwen3
from minllm.models.json_files import Fields

# Options of other families (and of quantised checkpoints), each with the values that do not change the result.
NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "use_qk_norm": (False,),
    "alibi": (False,),
    "attention_sink": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}


@dataclass(frozen=True)
class Architecture:
    """A family: its model_type in config.json, and the function that reads the rest."""

    model_type: str
    read: Callable[[Fields], ModelConfig]


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", read_llama),
    "MistralForCausalLM": Architecture("mistral", read_mistral),
    "Qwen2ForCausalLM": Architecture("qwen2", read_qwen2),
    "Qwen3ForCausalLM": Architecture("qwen3", read_qwen3),
    "GPT2LMHeadModel": Architecture("gpt2", read_gpt2),
}


def refuse_unknown_options(fields: Fields) -> None:
    """Raises UnsupportedModelError if an option is set that no architecture here computes."""
    for key, neutral in NEUTRAL_OPTIONS.items():
        if key in fields and fields.values[key] not in neutral:
            value = fields.values[key]
            shown = value.get("quant_method", "set") if isinstance(value, dict) else value
            raise UnsupportedModelError(f"{fields.source} sets {key} ({shown}), which minllm does not compute.")
