#!/usr/bin/env bash
# mlx-lm 0.32.2 with mlx 0.32.4 on the CPU, and transformers 5.24.0: models with a sliding window.
#
# Input: random weights and one config.json that both read, of five families whose published checkpoints have had windows: Mistral, Phi-3,
# StarCoder 2, Gemma 2 and Qwen2. The window is 8, or none; 40 tokens.
# Expected: logits that differ by less than 0.02 in both cases, or a message; mlx-lm has masks and caches for windows.
# Seen: with a window they differ by 5 to 11, as mlx-lm attends to all tokens: of these five it does not read "sliding_window". Without one
# they agree. Up to the window's length they agree as well, so that no short test shows it: 4,096 tokens of Mistral 7B v0.1.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    "mlx[cpu]==0.32.4" mlx-lm==0.32.2 transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
HF_HUB_OFFLINE=1 venv/bin/python -W ignore - <<'PYTHON'
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

mx.set_default_device(mx.cpu)
SIZES = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    rope_theta=10000.0, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=0,
)  # fmt: skip
GEMMA = dict(head_dim=16, attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=16)
FAMILIES = {
    "mistral": {},
    "phi3": {"rope_scaling": None, "original_max_position_embeddings": 256},
    "starcoder2": {"norm_epsilon": 1e-5},
    "gemma2": GEMMA,
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
}
WINDOW, LENGTH = 8, 40
for family, keys in FAMILIES.items():
    for window in (1000, WINDOW):
        folder = Path(f"{family}-{window}")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": family, **SIZES, **keys, "sliding_window": window}))
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager").eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.normal_(0, 0.3)
            ids = torch.randint(1, 64, (1, LENGTH))
            logits = model(ids).logits.numpy()
        state = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        differences = abs(np.array(load_model(folder)[0](mx.array(ids.numpy()))) - logits).max(axis=(0, 2))
        inside, beyond = differences[:WINDOW].max(), differences[WINDOW:].max()
        print(f"{family}, window {window}: largest difference {inside:.5f} in the first {WINDOW} tokens, {beyond:.5f} beyond")
        assert inside < 0.02 and (beyond > 1 if window == WINDOW else beyond < 0.02)
PYTHON
