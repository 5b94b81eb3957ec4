"""The configuration of a model, read from its config.json: one dataclass for every family that minllm runs.

The keys of config.json differ from family to family and from version to version; `architectures.py` and `families/` translate them.
ModelConfig holds everything that the forward pass depends on, so that no other code depends on the family.
"""

from dataclasses import dataclass

from minllm.models.rope import RopeConfig
from minllm.ops.batch import AttentionConfig, NormWeights
from minllm.weights.stored import StoredTensor


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a decoder-only transformer. Fields that config.json has bear the same names there."""

    model_type: str  # "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "gemma2", "gemma3_text" or "gpt2"
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # inner width of the feed-forward, or of each expert (moe_intermediate_size)
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm: str  # "rms_norm" or "layer_norm"
    norm_epsilon: float
    activation: str  # "silu", "gelu" or "gelu_tanh"
    gated_mlp: bool  # whether the feed-forward has a gate, as in SwiGLU and GeGLU
    rope: RopeConfig | None  # None: positions are learned vectors, added to the embedding
    sliding_windows: tuple[int, ...]  # per layer, the most keys that a query sees; 0 means the whole context
    attention_scales: tuple[float, ...]  # per layer, the factor of q . k
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMS norms over each head of q and k
    post_norms: bool = False  # norms of what attention and feed-forward add to the hidden state
    norm_offset: float = 0.0  # added to the stored weights of norms: 1 in Gemma, which stores their distance from 1
    local_rope: RopeConfig | None = None  # the rotation in layers with a sliding window, if it is another one
    embedding_scale: float = 1.0  # factor of the rows of the embedding
    attention_soft_cap: float = 0.0  # scores become cap * tanh(score / cap); 0 means none
    logit_soft_cap: float = 0.0  # the same for the logits
    num_experts: int = 0  # feed-forwards per layer among which a router chooses; 0: one, without a router
    num_experts_per_tok: int = 0  # experts that the router chooses for each token
    shared_expert_intermediate_size: int = 0  # inner width of the expert that every token takes; 0: there is none
    norm_topk_prob: bool = False  # whether the weights of the chosen experts sum to 1
    tie_word_embeddings: bool = False
    dtype: str | None = None  # dtype of the stored weights according to config.json: "float32", "float16" or "bfloat16"
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()

    @property
    def mixed_window(self) -> int:
        """The one sliding window of some layers if the others see the whole context, as in Gemma; else 0."""
        windows = set(self.sliding_windows)
        return max(windows) if len(windows) == 2 and 0 in windows else 0

    def attention(self, layer: int, q_norm: StoredTensor | None = None, k_norm: StoredTensor | None = None) -> AttentionConfig:
        """The AttentionConfig of one layer, for the attention operations of Ops."""
        return AttentionConfig(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.attention_scales[layer],
            sliding_window=self.sliding_windows[layer],
            soft_cap=self.attention_soft_cap,
            epsilon=self.norm_epsilon,
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def norm_of(self, name: str) -> NormWeights:
        """The normalisation that a checkpoint stores under this name; its tensors, [hidden], are not loaded yet."""
        size = (self.hidden_size,)
        bias = StoredTensor(f"{name}.bias", size) if self.norm == "layer_norm" else None
        return NormWeights(self.norm, StoredTensor(f"{name}.weight", size, self.norm_offset), bias, self.norm_epsilon)

    def post_norm_of(self, name: str) -> NormWeights | None:
        """The same for a norm of what a part adds to the hidden state; None if the model has none."""
        return self.norm_of(name) if self.post_norms else None
