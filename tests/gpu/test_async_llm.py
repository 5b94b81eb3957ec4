"""AsyncLLM on a GPU: another thread than the one that loaded the model launches its steps."""

import asyncio

import pytest

from minllm import LLM, AsyncLLM, SamplingParams
from tests.engine.models import model_directory
from tests.gpu.agreement import KV_CACHE_BYTES

TIMEOUT = 120  # seconds
PROMPTS = [[5 + i, 6, 7, 8 + i] for i in range(12)]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graph", "eager"])
def test_the_compute_thread_generates_what_llm_does(enforce_eager):
    params = SamplingParams(temperature=0.0, max_tokens=24)
    options = dict(max_model_len=256, max_num_seqs=8, kv_cache_memory_bytes=KV_CACHE_BYTES, enforce_eager=enforce_eager)

    async def generate(engine):
        async def last(prompt):
            async for output in engine.generate(prompt, params):
                found = output
            return found.outputs[0].token_ids

        cancelled = asyncio.create_task(last([9, 9, 9]))
        found = await asyncio.gather(*map(last, PROMPTS))
        cancelled.cancel()
        return found

    with LLM(model_directory("llama3"), device="cuda", **options) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
        engine = AsyncLLM.of(llm)
        try:
            assert asyncio.run(asyncio.wait_for(generate(engine), TIMEOUT)) == expected
        finally:
            engine.shutdown()
        assert llm.engine.cache_policy.usage().allocated == 0
