#!/usr/bin/env bash
# peft 0.19.1 with transformers 5.24.0 and torch 2.13.0 on the CPU: layers_to_transform of a LoraConfig.
#
# Input: T5 with four blocks in its encoder and in its decoder, target_modules=["q", "wi"], layers_to_transform=[0], [1] or [3]; and a plain
# mixture of experts, whose modules are layers.0.experts.1.w1 and so on.
# Expected: adapters in block 0, 1 or 3 and nowhere else: without layers_pattern, the index of a layer is looked for.
# Seen: the last number in a module's name counts. In T5 that is the place within a block: [0] adapts self-attention of every block, [1] the
# encoder's feed-forward layers and the decoder's cross-attention of every block, and [3] raises an error that names the target modules.
# Of the mixture [1] adapts expert 1 of all layers. layers_pattern="block" gives the block.
# Exits 0 while this holds.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.19.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from peft import LoraConfig, get_peft_model
from torch.nn import Linear, Module, ModuleDict, ModuleList
from transformers import T5Config, T5ForConditionalGeneration


def adapted(model, targets, layers, **pattern):
    """Names of the modules that get an adapter."""
    model = get_peft_model(model, LoraConfig(target_modules=targets, layers_to_transform=layers, r=1, **pattern))
    end = ".lora_A.default.weight"
    names = [name.removeprefix("base_model.model.").removesuffix(end) for name, _ in model.named_parameters() if name.endswith(end)]
    print(layers, pattern, *names)
    return names


def t5():
    return T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=4, num_heads=2))


TARGETS = ["q", "wi"]
first = adapted(t5(), TARGETS, [0])
assert first == [f"{half}.block.{block}.layer.0.SelfAttention.q" for half in ("encoder", "decoder") for block in range(4)]
second = adapted(t5(), TARGETS, [1])
assert second == [f"encoder.block.{block}.layer.1.DenseReluDense.wi" for block in range(4)] + [
    f"decoder.block.{block}.layer.1.EncDecAttention.q" for block in range(4)
]
try:
    adapted(t5(), TARGETS, [3])
except ValueError as error:
    print("[3]:", str(error).split(".")[0])
else:
    raise AssertionError
by_pattern = adapted(t5(), TARGETS, [3], layers_pattern="block")
assert len(by_pattern) == 5 and all(".block.3." in name for name in by_pattern)
mixture = Module()
mixture.layers = ModuleList([ModuleDict({"experts": ModuleList([ModuleDict({"w1": Linear(2, 2)}) for _ in range(3)])}) for _ in range(3)])
assert adapted(mixture, ["w1"], [1]) == [f"layers.{layer}.experts.1.w1" for layer in range(3)]
PYTHON
