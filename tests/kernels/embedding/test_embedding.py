"""The mistakes of callers of the embedding lookup; its results: tests/kernels/test_launches.py."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError, SimulationError
from minllm.kernels.embedding.lookup import embedding

TOKENS, TABLE, OUT = np.zeros(2, np.int32), np.zeros((5, 8), np.float32), np.zeros((2, 8), np.float32)
MISTAKES = {
    "ids of 64 bits": (dict(token_ids=np.zeros(2, np.int64)), r"token_ids is int64 \[2\]; its dtype must be int32"),
    "one number": (dict(token_ids=np.array(0, np.int32)), r"token_ids is int32 \[\]; its shape must be \[tokens\]"),
    "table of integers": (dict(embedding=np.zeros((5, 8), np.int8)), "embedding is int8"),
    "another length": (dict(out=np.zeros((2, 9), np.float32)), r"out is float32 \[2, 9\]; its shape must be \[tokens=2, hidden=8\]"),
    "another dtype": (dict(out=np.zeros((2, 8), np.float16)), "out is float16 .* must be float32"),
    "positions alone": (dict(positions=TOKENS), "come together"),
    "shorter positions": (dict(positions=TOKENS, position_embedding=np.zeros((4, 7), np.float32)), r"position_embedding is float32 \[4, 7"),
}


@pytest.mark.parametrize("change, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        embedding(**dict(token_ids=TOKENS, embedding=TABLE, out=OUT.copy()) | change)


@pytest.mark.parametrize("hidden", [7, 8])
def test_the_simulator_finds_an_id_outside_the_table(hidden):
    with pytest.raises(SimulationError, match="out of bounds"):
        embedding(np.array([5], np.int32), np.zeros((5, hidden), np.float32), np.zeros((1, hidden), np.float32))
