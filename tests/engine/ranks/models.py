"""Models that several ranks can share."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.engine.models import byte_level_tokenizer
from tests.models import random_models

ONE_KV_HEAD = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16
)  # fmt: skip
WIDE = dict(
    hidden_size=1024, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
    max_position_embeddings=4096,
)  # fmt: skip
EIGHT_HEADS = dict(num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, hidden_size=128, head_dim=32)


def save_model_of_eight_heads(directory: Path) -> Path:
    """A float32 Llama of eight heads, random, with an odd vocabulary."""
    family = dataclasses.replace(random_models.FAMILIES["llama2"], options={**random_models.FAMILIES["llama2"].options, **EIGHT_HEADS})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_models.MODELS, "eight heads", family)
        random_models.save_random_model("eight heads", directory)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def save_model_of_one_kv_head(directory: Path, shape: dict = ONE_KV_HEAD) -> Path:
    """The shape of a Llama of four query heads and one KV head, or another, for load_format="dummy"."""
    (directory / "config.json").write_text(json.dumps(dict(model_type="llama", vocab_size=random_models.VOCAB_SIZE, **shape)))
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    return directory
