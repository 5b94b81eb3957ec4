#!/usr/bin/env bash
# transformers 5.24.0, Gemma4TextConfig: head_dim is not the width of all heads.
#
# Input: the configuration of a small Gemma 4 with head_dim=32 and six layers, of which five have a sliding window.
# Expected: heads of 32 in every layer, as head_dim means in the other families' configurations, Gemma 3's among them; or a message.
# Seen: the layer that sees the whole context gets heads of 512, the default of global_head_dim, which is no field of the class and stands in
# none of its documented parameters; reading config.head_dim then raises an error. With global_head_dim=32 all heads are 32 wide. A small
# random checkpoint for a test is thus not small, and a reader of config.json that takes head_dim for all layers finds other shapes.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from transformers import Gemma3TextConfig, Gemma4TextConfig

sizes = dict(hidden_size=64, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1, head_dim=32)


def widths(config):
    """The width of the heads of each layer."""
    return [config.per_layer_config[layer].head_dim for layer in range(6)]


given, both = Gemma4TextConfig(**sizes), Gemma4TextConfig(**sizes, global_head_dim=32)
print("head_dim=32:", widths(given), " and global_head_dim=32:", widths(both), " Gemma 3:", Gemma3TextConfig(**sizes).head_dim)
assert widths(given) == [32] * 5 + [512] and widths(both) == [32] * 6 and Gemma3TextConfig(**sizes).head_dim == 32
assert "global_head_dim" not in Gemma4TextConfig.__doc__
try:
    given.head_dim
except Exception as error:
    print(type(error).__name__)
else:
    raise AssertionError("config.head_dim was read")
PYTHON
