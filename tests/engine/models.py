"""Model directories for the engine's tests: the random models of tests/models with a byte-level BPE tokenizer of the same vocabulary."""

import functools
import inspect
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
from tokenizers import decoders, pre_tokenizers, trainers

from tests.models import random_models

EOS = "<|endoftext|>"


@functools.cache
def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """Trained on the source of a test file, so that words are tokens while an emoji takes a token for each of its bytes."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=random_models.VOCAB_SIZE, special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([inspect.getsource(functools), inspect.getsource(inspect)], trainer)
    assert tokenizer.get_vocab_size() == random_models.VOCAB_SIZE
    return tokenizer


@functools.cache
def _temporary_directory(family: str, dtype: str) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix=f"minllm-{family}-")  # removed when the test run ends


@functools.cache
def model_directory(family: str, dtype: str = "float32") -> Path:
    """A directory with weights, tokenizer and generation_config.json (greedy unless asked otherwise, no end of sequence)."""
    directory = Path(_temporary_directory(family, dtype).name)
    random_models.save_random_model(family, directory, dtype)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False, "max_new_tokens": 12}))
    return directory


@functools.cache
def ending_model_directory(family: str = "small") -> Path:
    """The same model with an end of sequence, and sampled as parameters say."""
    directory = Path(_temporary_directory(family, "ending").name) / "model"
    shutil.copytree(model_directory(family), directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": byte_level_tokenizer().token_to_id(EOS)}))
    return directory


@functools.cache
def transformers_model(family: str):
    """The same weights in transformers, float32."""
    return random_models.random_model(family)


def transformers_greedy(family: str, token_ids: list[int], new_tokens: int, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """What transformers generates, without the prompt."""
    return list(_greedy(family, tuple(token_ids), new_tokens, stop_ids))


@functools.cache
def _greedy(family: str, token_ids: tuple[int, ...], new_tokens: int, stop_ids: tuple[int, ...]) -> tuple[int, ...]:
    import torch

    with torch.no_grad():
        out = transformers_model(family).generate(
            torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids), dtype=torch.long), do_sample=False,
            max_new_tokens=new_tokens, eos_token_id=list(stop_ids) or None, pad_token_id=0,
        )  # fmt: skip
    return tuple(out[0, len(token_ids) :].tolist())


def transformers_beams(
    family: str, token_ids: list[int], width: int, new_tokens: int, stop_id: int | None = None, **options
) -> list[list[int]]:  # fmt: skip
    """The sequences of transformers' beam search, with the prompt, best first."""
    import torch

    with torch.no_grad():
        out = transformers_model(family).generate(
            torch.tensor([token_ids]), attention_mask=torch.ones(1, len(token_ids), dtype=torch.long), do_sample=False, num_beams=width,
            num_return_sequences=width, max_new_tokens=new_tokens, eos_token_id=stop_id, pad_token_id=0, **options,
        )  # fmt: skip
    found = [row[len(token_ids) :] for row in out.tolist()]
    return [token_ids + (row[: row.index(stop_id) + 1] if stop_id in row else row) for row in found]
