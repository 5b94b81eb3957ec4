"""The first rung as a pipeline: token after token, a batch of sequences of different lengths, one replaced on the way."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.first_rungs.materialized_projection import MaterializedDecoder
from minllm.kernels.attention.reference import attention_reference

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MAX_LEN = 12, 4, 2, 8, 20


class Pipeline:
    """A decoder under test, beside a list of every sequence's tokens, from which the reference starts anew at each step."""

    def __init__(self, device, dtype):
        self.rng, self.device, self.dtype = np.random.default_rng(0), device, dtype
        shapes = [(HEADS * HEAD_DIM, HIDDEN), (KV_HEADS * HEAD_DIM, HIDDEN), (KV_HEADS * HEAD_DIM, HIDDEN)]
        self.weights = [(self.rng.standard_normal(shape) / HIDDEN**0.5).astype(dtype) for shape in shapes]
        self.decoder = MaterializedDecoder(*self.weights, HEAD_DIM, batch=3, max_len=MAX_LEN, to_array=device.array)
        self.tokens = [None, None, None]

    def random(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)

    def insert(self, rows, lens):
        prompts = [self.random(n, HIDDEN) for n in lens]
        self.decoder.insert(rows, prompts)
        for row, prompt in zip(rows, prompts, strict=True):
            self.tokens[row] = prompt

    def step(self):
        """Decode one token everywhere and compare with the reference."""
        latest = self.random(3, HIDDEN)
        out = self.device.array(np.full((3, HEADS, HEAD_DIM), np.nan, self.dtype))
        self.decoder.decode(latest, out)
        result = np.asarray(self.device.host(out)).astype(np.float64)
        for row in range(3):
            if self.tokens[row] is None:
                assert (result[row] == 0).all()
                continue
            self.tokens[row] = np.concatenate([self.tokens[row], latest[row : row + 1]])
            np.testing.assert_allclose(result[row], self.expected(self.tokens[row]), rtol=0, atol=self.tolerance())

    def expected(self, tokens):
        """The last token's attention by the reference, from projections rounded to the dtype as the caches hold them."""
        query, keys, values = ((tokens.astype(np.float64) @ w.astype(np.float64).T).astype(self.dtype) for w in self.weights)
        cache = (1, len(tokens), KV_HEADS, HEAD_DIM)
        return attention_reference(
            query[-1].reshape(1, HEADS, HEAD_DIM).astype(np.float64),
            keys.reshape(cache), values.reshape(cache), [0, 1], [len(tokens)], np.zeros((1, 1), int), HEAD_DIM**-0.5,
        )[0]  # fmt: skip

    def tolerance(self):
        """A few roundings: a projection on the edge between two bfloat16 may fall to either side."""
        return 1e-5 if self.dtype == np.float32 else 0.03


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_decoding_token_after_token(device, dtype):
    pipeline = Pipeline(device, dtype)
    pipeline.insert([0, 2], [5, 1])
    pipeline.step()
    pipeline.step()
    pipeline.insert([0, 1], [3, 7])  # the first sequence is finished and gives its row to another
    pipeline.step()


def test_a_full_cache_is_refused(device):
    pipeline = Pipeline(device, np.float32)
    with pytest.raises(KernelArgumentError, match="21 tokens"):
        pipeline.insert([0], [MAX_LEN + 1])
    pipeline.insert([0], [MAX_LEN])
    with pytest.raises(KernelArgumentError, match="20 tokens already"):
        pipeline.step()
