"""Several GPUs: tensor and pipeline parallelism over NCCL against one GPU. Skipped below two GPUs, or without nccl4py."""

import importlib.util
import os
import signal
import time

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.ranks.serve import STATE
from minllm.parallel.processes import RankError
from minllm.runtime.device import device_names
from tests.engine.models import model_directory

pytestmark = [
    pytest.mark.skipif(len(device_names()) < 2, reason="there are fewer than two GPUs"),
    pytest.mark.skipif(importlib.util.find_spec("nccl") is None, reason="nccl4py is not installed"),
    pytest.mark.xdist_group("several GPUs"),
]
PROMPTS = [[5, 6, 7], [11] * 40, [2, 3], list(range(60, 90))]
FORMS = {"two tensor ranks": dict(tensor_parallel_size=2), "three stages": dict(pipeline_parallel_size=3)}


@pytest.fixture(scope="module")
def directory():
    """A random Llama of 6 heads, 2 KV heads, 3 layers."""
    return model_directory("llama3")


def options(dtype):
    return dict(device="cuda", dtype=dtype, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=32, gpu_memory_utilization=0.3)


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_one_gpu_and_ranks_agree_bitwise(form, directory):
    if form == "three stages" and len(device_names()) < 3:
        pytest.skip("there are fewer than three GPUs")
    requests = [SamplingParams(temperature=0, max_tokens=16), SamplingParams(temperature=0.9, top_p=0.8, seed=4, logprobs=2, max_tokens=16)]
    with LLM(directory, **options("float32")) as alone:
        wanted = [[one.outputs[0].token_ids for one in alone.generate(PROMPTS, params)] for params in requests]
        scores = alone.logits(PROMPTS[1])
    with LLM(directory, **options("float32"), **FORMS[form]) as ranks:
        for params, tokens in zip(requests, wanted, strict=True):
            assert [one.outputs[0].token_ids for one in ranks.generate(PROMPTS, params)] == tokens
            ranks.engine.processes.send(STATE)
            for words in ranks.engine.processes.replies():
                np.testing.assert_array_equal(words, ranks.engine.ops.to_host(ranks.engine.runner.slots.state.words))
        np.testing.assert_allclose(ranks.logits(PROMPTS[1]), scores, atol=1e-3)


def test_logits_in_bfloat16_agree(directory):
    with LLM(directory, **options("bfloat16")) as alone:
        wanted = alone.logits(PROMPTS[1])
    with LLM(directory, **options("bfloat16"), tensor_parallel_size=2) as ranks:
        found = ranks.logits(PROMPTS[1])
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)


def test_a_killed_rank_ends_all_within_five_seconds(directory):
    """Rank 0's GPU may be waiting for the dead one in NCCL, which is aborted."""
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with LLM(directory, **options("bfloat16"), tensor_parallel_size=2) as ranks:
        stream = ranks.stream(PROMPTS[0], params)
        next(stream)
        start = time.monotonic()
        os.kill(ranks.engine.processes.children[0].pid, signal.SIGKILL)
        with pytest.raises(RankError, match="Rank 1 was ended by SIGKILL"):
            for _ in stream:
                pass
        assert time.monotonic() - start < 5
