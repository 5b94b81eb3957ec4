"""batch_invariant=True on a GPU: 1,000 random companies leave every score as it is alone, to the last bit, with and without graphs."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.errors import InvalidOptionError
from tests.engine.models import model_directory
from tests.engine.test_batch_invariant import NGRAMS, scores
from tests.gpu.agreement import KV_CACHE_BYTES
from tests.models.random_models import prompt

COMPANIES = 1000
BUDGETS = (6, 16, 64, 300, 2048)  # tokens per step: a prompt comes whole, or in chunks of about so many
GPU = dict(device="cuda", max_model_len=400, max_num_seqs=64, kv_cache_memory_bytes=KV_CACHE_BYTES, batch_invariant=True)
PROMPTS = [prompt(1 + 37 * i % 300, seed=i) for i in range(24)]
PARAMS = [
    SamplingParams(temperature=(0.0, 0.9)[i % 2], seed=i, max_tokens=1 + 5 * i % 17, logprobs=3, ignore_eos=True)
    for i in range(len(PROMPTS))
]  # fmt: skip


@pytest.mark.parametrize("drafts", [None, NGRAMS], ids=["plain", "ngram"])
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_random_companies(dtype, enforce_eager, drafts):
    """COMPANIES divides over the 8 cases and the budgets of each; a company has 1 to 64 requests."""
    generator = np.random.default_rng([dtype == "float32", enforce_eager, drafts is not None])
    with LLM(model_directory("llama3"), dtype=dtype, **GPU) as llm:
        alone = [scores(llm.generate([one], params)[0]) for one, params in zip(PROMPTS, PARAMS, strict=True)]
    for budget in BUDGETS:
        options = GPU | dict(dtype=dtype, enforce_eager=enforce_eager, speculative_config=drafts, max_num_batched_tokens=budget)
        with LLM(model_directory("llama3"), **options) as llm:
            for _ in range(COMPANIES // 8 // len(BUDGETS)):
                chosen = generator.integers(0, len(PROMPTS), generator.choice([1, 2, 8, 32, 64]))
                found = llm.generate([PROMPTS[i] for i in chosen], [PARAMS[i] for i in chosen])
                for output, i in zip(found, chosen, strict=True):
                    assert scores(output) == alone[i], f"request {i} among {len(chosen)}, {budget} tokens per step"


def test_the_bundled_model_with_its_draft_in_bfloat16():
    """Greedy text is token for token that of plain decoding, because verified rows have the bits of decode steps."""
    texts = ["def read_lines(path):", "class Stack:\n", "import os\n\n\ndef main", "for i in range(10):"] * 5
    params, found = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), []
    for config in (None, {"method": "draft_model", "num_speculative_tokens": 4}, {"method": "ngram", "num_speculative_tokens": 4}):
        with LLM(device="cuda", dtype="bfloat16", max_num_seqs=16, speculative_config=config, batch_invariant=True) as llm:
            found.append([output.outputs[0].token_ids for output in llm.generate(texts, params)])
    assert found[1] == found[0] and found[2] == found[0]


def test_quantised_weights_are_refused():
    with pytest.raises(InvalidOptionError, match="batch_invariant=True has no kernels for weights in int8"):
        LLM(model_directory("llama3"), quantization="int8", **GPU)
