"""What a model is, read from its config.json: one dataclass for every family that minllm runs.

The keys of config.json differ from family to family and from version to version; `architectures.py` translates each family. What comes out
says everything that the forward pass depends on, so that nothing below this file asks which family a model is of.
"""

from dataclasses import dataclass

from minllm.models.rope import RopeConfig
from minllm.ops.protocol import AttentionConfig


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Names are config.json's where it has one."""

    model_type: str  # "llama", "mistral", "qwen2", "qwen3" or "gpt2"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm: str  # "rms_norm" or "layer_norm"
    norm_epsilon: float
    activation: str  # "silu" (gated), "gelu" or "gelu_tanh" (not gated)
    rope: RopeConfig | None  # None: positions are learned vectors, added to the embedding
    sliding_windows: tuple[int, ...]  # of each layer; 0 sees the whole context
    attention_scales: tuple[float, ...]  # of each layer: the factor of q . k
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # an RMS norm over each head of q and k
    tie_word_embeddings: bool = False
    dtype: str | None = None  # what config.json says the weights were stored in: "float32", "float16" or "bfloat16"
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()

    def attention(self, layer: int) -> AttentionConfig:
        """The attention of one layer as the operations take it."""
        return AttentionConfig(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.attention_scales[layer],
            sliding_window=self.sliding_windows[layer],
            epsilon=self.norm_epsilon,
        )
