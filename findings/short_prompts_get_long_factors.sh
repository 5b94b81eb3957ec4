#!/usr/bin/env bash
# mlx-lm 0.32.2 with mlx 0.32.4 on the CPU, and transformers 5.24.0: RoPE scaling of types "longrope" and "yarn".
#
# Input: random weights and one config.json that both read, in the form of published checkpoints. "longrope" as in Phi-3.5, with
# short_factor 1 and long_factor 4, an original length of 64, and 20 or 100 tokens; "yarn" with "truncate": false, as gpt-oss has it, or
# with "attention_factor": 1.5.
# Expected: logits that differ by less than 1e-3, as without these keys; mlx-lm documents short_factor, for "sequences of length lesser
# than original_max_position_embeddings".
# Seen: 100 tokens agree, and 20 differ by 11: short_factor is a parameter that nothing reads, so every prompt gets the long factors.
# Of "yarn", neither key is read: the ramp begins and ends at whole dimensions, and the attention's factor is 0.1 ln(factor) + 1. No message
# says so. gpt-oss's published numbers give frequencies up to 76% higher than transformers gives, and its model takes them from here.
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
from mlx_lm.models.rope_utils import initialize_rope
from mlx_lm.utils import load_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

mx.set_default_device(mx.cpu)
CONFIG = dict(
    model_type="llama", vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rope_theta=10000.0, rms_norm_eps=1e-6, tie_word_embeddings=True,
)  # fmt: skip
ORIGINAL = {"factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", **ORIGINAL, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
YARN = {"rope_type": "yarn", **ORIGINAL}


def difference(name, scaling, length):
    """The largest difference of the two libraries' logits."""
    folder = Path(name)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "rope_scaling": scaling}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.3)
        ids = torch.randint(0, 64, (1, length))
        logits = model(ids).logits.numpy()
    state = {key: value for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    found = np.array(load_model(folder)[0](mx.array(ids.numpy())))
    print(f"{name}, {length} tokens: largest difference {abs(found - logits).max():.5f}, standard deviation {logits.std():.2f}")
    return abs(found - logits).max()


assert difference("longrope", LONGROPE, 100) < 1e-3 and difference("longrope short", LONGROPE, 20) > 1
assert difference("yarn", YARN, 100) < 1e-3 and difference("yarn truncate", {**YARN, "truncate": False}, 100) > 1
assert difference("yarn attention_factor", {**YARN, "attention_factor": 1.5}, 100) > 1

published = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
theta = {"rope_theta": 150000.0, "truncate": False}
config = AutoConfig.for_model("llama", head_dim=64, max_position_embeddings=131072, rope_parameters={**published, **theta})
inverse, _ = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
found = 1 / np.array(initialize_rope(64, 150000.0, False, {**published, "truncate": False}, 131072)._freqs)
ratio = found / inverse.numpy()
print(f"gpt-oss: frequencies of mlx-lm divided by those of transformers: {ratio.min():.4f} to {ratio.max():.4f}")
assert 0.99 < ratio.min() and ratio.max() > 1.5
PYTHON
