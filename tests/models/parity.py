"""How far our logits may lie from transformers', and the cases that both machines are tested with."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minllm.models.decoder import forward
from minllm.models.model import Model, load_model
from minllm.ops.protocol import Ops
from tests.models.batches import PagedSequences, logits_of
from tests.models.random_models import FAMILIES, prompt, random_model, reference_logits, save_random_model

PROMPT_LENGTHS = (1, 17, 130)
HALF_PRECISION_CASES = [*((family, "bfloat16") for family in FAMILIES), ("llama3", "float16"), ("gpt2", "float16")]


@functools.cache
def _saved(family: str, dtype: str) -> tempfile.TemporaryDirectory:
    directory = tempfile.TemporaryDirectory(prefix=f"minllm-{family}-")  # removed when the test run ends
    save_random_model(family, Path(directory.name), dtype)
    return directory


def saved_model(family: str, dtype: str = "float32") -> Path:
    """The directory of a random model; made once a test run."""
    return Path(_saved(family, dtype).name)


def loaded(ops: Ops, family: str, dtype: str = "float32") -> Model:
    """A random model in the arrays of `ops`; a rotary table of the 131,072 positions of some families takes longer than their logits."""
    return load_model(saved_model(family, dtype), ops, max_positions=512)


def check_float32(ops: Ops, family: str) -> None:
    """Our float32 logits agree with transformers' to 1e-4 of their scale, at every position of every prompt."""
    reference = random_model(family)
    model = loaded(ops, family)
    for length in PROMPT_LENGTHS:
        tokens = prompt(length)
        expected = reference_logits(reference, tokens)
        error = np.abs(logits_of(ops, model, tokens) - expected).max()
        assert error <= 1e-4 * np.abs(expected).max(), f"{family}, {length} tokens: off by {error}"


def check_greedy(ops: Ops, family: str, length: int = 7, count: int = 30) -> None:
    """The tokens of greatest probability after a prompt are transformers', decoded one by one."""
    tokens = prompt(length)
    theirs = random_model(family).generate(torch.tensor([tokens]), max_new_tokens=count, min_new_tokens=count, do_sample=False)
    model, new = loaded(ops, family), tokens
    sequences, ours = PagedSequences(ops, model.config, [length + count]), list(tokens)
    for _ in range(count):
        logits = ops.to_host(forward(ops, model, sequences.append([new], last_row_only=True), sequences.cache))
        new = [int(logits[-1].argmax())]
        ours += new
    assert ours == theirs[0].tolist()


def check_half_precision(ops: Ops, family: str, dtype: str) -> None:
    """Our error in a 16-bit dtype, against float32 arithmetic on the same rounded weights, is at most twice that of transformers."""
    theirs = random_model(family).to(getattr(torch, dtype))
    exact = _upcast(theirs, family)
    model = loaded(ops, family, dtype)
    for length in PROMPT_LENGTHS:
        tokens = prompt(length)
        expected = reference_logits(exact, tokens)
        our_error = root_mean_square(logits_of(ops, model, tokens) - expected)
        their_error = root_mean_square(reference_logits(theirs, tokens) - expected)
        assert our_error <= 2 * their_error, f"{family} {dtype}, {length} tokens: {our_error} and transformers {their_error}"


def _upcast(model: Any, family: str) -> Any:
    exact = random_model(family)
    exact.load_state_dict({name: values.float() for name, values in model.state_dict().items()})
    return exact


def root_mean_square(values: np.ndarray) -> float:
    """sqrt(mean(values ** 2)), in float64."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
