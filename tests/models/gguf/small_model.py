"""The smallest chat model: a Llama of one layer with a vocabulary of bytes, as a GGUF file of mixed types."""

from typing import Any

import numpy as np
import tokenizers

from tests.models.gguf.writer import F16, Q4_0, Q8_0, Stored, float32

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 64, 96, 4, 2
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "1 2", "c a", "ca f"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
TOKENS = SPECIALS + sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]


def metadata(**changes: Any) -> dict[str, Any]:
    """All keys; a change of None leaves a key out. Dots in keys are written as two underscores."""
    found = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.context_length": 64,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": 1,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": np.array([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)), np.int32),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    found |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


def tensors() -> dict[str, Stored]:
    """Random weights; a tied head."""
    rng = np.random.default_rng(0)

    def q8_0(rows: int, columns: int) -> Stored:
        blocks = np.zeros((rows * columns // 32, 34), np.uint8)
        blocks[:, :2] = np.full((len(blocks), 1), 0.002, np.float16).view(np.uint8)
        blocks[:, 2:] = rng.integers(0, 256, (len(blocks), 32), np.uint8)
        return Stored(Q8_0, (rows, columns), blocks.tobytes())

    def q4_0(rows: int, columns: int) -> Stored:
        blocks = np.zeros((rows * columns // 32, 18), np.uint8)
        blocks[:, :2] = np.full((len(blocks), 1), 0.03, np.float16).view(np.uint8)
        blocks[:, 2:] = rng.integers(0, 256, (len(blocks), 16), np.uint8)
        return Stored(Q4_0, (rows, columns), blocks.tobytes())

    width = HIDDEN // HEADS
    half = rng.normal(0, 0.1, (HIDDEN, HIDDEN)).astype(np.float16)
    return {
        "token_embd.weight": q8_0(len(TOKENS), HIDDEN),
        "blk.0.attn_norm.weight": float32(np.ones(HIDDEN)),
        "blk.0.attn_q.weight": q4_0(HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": q4_0(KV_HEADS * width, HIDDEN),
        "blk.0.attn_v.weight": q4_0(KV_HEADS * width, HIDDEN),
        "blk.0.attn_output.weight": Stored(F16, half.shape, half.tobytes()),
        "blk.0.ffn_norm.weight": float32(np.ones(HIDDEN)),
        "blk.0.ffn_gate.weight": q4_0(INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": q4_0(INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": q4_0(HIDDEN, INTERMEDIATE),
        "output_norm.weight": float32(np.ones(HIDDEN)),
    }
