"""A model that several ranks can share."""

import dataclasses
from pathlib import Path

import pytest

from tests.engine.models import byte_level_tokenizer
from tests.models import random_models

SIZES = dict(num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, hidden_size=128, head_dim=32)


def save_model_of_eight_heads(directory: Path) -> Path:
    """A float32 Llama of eight heads, random, with an odd vocabulary."""
    family = dataclasses.replace(random_models.FAMILIES["llama2"], options={**random_models.FAMILIES["llama2"].options, **SIZES})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_models.MODELS, "eight heads", family)
        random_models.save_random_model("eight heads", directory)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    return directory
