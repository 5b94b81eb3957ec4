"""Ranks: tensor and pipeline parallelism against one rank. On a machine with one GPU they share it (parallel/shared_gpu.py).

With several GPUs nccl4py is needed.
"""

import importlib.util
import json
import os
import signal
import time

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.ranks.serve import STATE
from minllm.errors import DeviceError
from minllm.kernels.all_reduce.choice import BY_SIZE, LIBRARY, names
from minllm.kernels.all_reduce.peers import MOST_RANKS
from minllm.parallel.processes import RankError
from minllm.parallel.ranks_per_gpu import RANKS_PER_GPU
from minllm.parallel.time_limits import STEP_S
from minllm.runtime.device import current_device, device_names
from minllm.runtime.exported_memory import ExportedMemory
from tests.engine.models import model_directory
from tests.engine.ranks.launched_program import GREEDY, OPTIONS
from tests.engine.ranks.launched_program import PROMPTS as LAUNCHED_PROMPTS
from tests.engine.ranks.models import WIDE, save_model_of_eight_heads, save_model_of_one_kv_head
from tests.engine.ranks.test_launched import launch

GPUS = len(device_names())
MOST = MOST_RANKS if GPUS == 1 else GPUS  # ranks
pytestmark = [
    pytest.mark.skipif(GPUS > 1 and importlib.util.find_spec("nccl") is None, reason="nccl4py is not installed"),
    pytest.mark.xdist_group("several GPUs"),
]
PROMPTS = [[5, 6, 7], [11] * 40, [2, 3], list(range(60, 90))]
ON_ONE_GPU = (  # without --exhaustive
    "test_tokens_of_two_hundred_prompts_are_those_of_one_gpu[2-1]",
    "test_tokens_of_two_hundred_prompts_are_those_of_one_gpu[1-2]",
    "test_prompts_whose_rows_ranks_divide_give_the_tokens_of_one_gpu[2-1-bfloat16]",
    "test_a_killed_rank_ends_all_within_five_seconds[by_size]",
)
FORMS = {
    "two tensor ranks": dict(tensor_parallel_size=2),
    "three stages": dict(pipeline_parallel_size=3),
    "three stages without graphs": dict(pipeline_parallel_size=3, enforce_eager=True),
    **{  # all-reduces of our own, in graphs of decode steps and kernel by kernel
        f"all-reduce {name}": dict(tensor_parallel_size=2, kernel_variants={"all_reduce": name}) for name in names() if name != LIBRARY
    },
    "all-reduce without graphs": dict(tensor_parallel_size=2, kernel_variants={"all_reduce": BY_SIZE}, enforce_eager=True),
}


@pytest.fixture(autouse=True)
def place(request, monkeypatch):
    """A GPU for each rank; or the only one for all, on which the ranks take turns, so that all tests would take minutes."""
    if GPUS == 1:
        monkeypatch.setenv(RANKS_PER_GPU, str(MOST))
        if request.node.name not in ON_ONE_GPU and not request.config.option.exhaustive:
            pytest.skip("ranks that share a GPU run this test with --exhaustive")
        current_device()
        try:
            ExportedMemory(1).close()
        except DeviceError as error:  # WSL cannot
            pytest.skip(f"processes cannot share this GPU's memory: {error}")


@pytest.fixture(scope="module")
def directory():
    """A random Llama of 6 heads, 2 KV heads, 3 layers."""
    return model_directory("llama3")


def options(dtype):
    return dict(device="cuda", dtype=dtype, max_model_len=128, max_num_seqs=4, max_num_batched_tokens=32, gpu_memory_utilization=0.3)


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_one_gpu_and_ranks_agree_bitwise(form, directory):
    if form.startswith("three stages") and MOST < 3:
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


@pytest.mark.parametrize(("tensor", "stages"), [(2, 1), (1, 2), (4, 1), (2, 2), (8, 1), (4, 2)])
def test_tokens_of_two_hundred_prompts_are_those_of_one_gpu(tensor, stages, tmp_path):
    """In batches of all sizes up to 48, through all kernels that the sizes choose; all ranks then have the same state."""
    if tensor * stages > MOST:
        pytest.skip(f"there are fewer than {tensor * stages} GPUs")
    model, rng = save_model_of_eight_heads(tmp_path), np.random.default_rng(7)
    prompts = [rng.integers(0, 256, length).tolist() for length in rng.integers(1, 60, 200)]
    given = options("float32") | dict(max_num_seqs=48, max_num_batched_tokens=256)
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with LLM(model, **given) as alone:
        wanted = [one.outputs[0].token_ids for one in alone.generate(prompts, params)]
    with LLM(model, **given, tensor_parallel_size=tensor, pipeline_parallel_size=stages) as ranks:
        assert ranks.engine.runner.graph_counts()["num_graphs"] > 0
        assert [one.outputs[0].token_ids for one in ranks.generate(prompts, params)] == wanted
        ranks.engine.processes.send(STATE)
        for words in ranks.engine.processes.replies():
            np.testing.assert_array_equal(words, ranks.engine.ops.to_host(ranks.engine.runner.slots.state.words))


@pytest.mark.parametrize(("tensor", "stages", "dtype"), [(2, 1, "float32"), (2, 1, "bfloat16"), (4, 1, "float32"), (2, 2, "float32")])
def test_prompts_whose_rows_ranks_divide_give_the_tokens_of_one_gpu(tensor, stages, dtype, tmp_path):
    """Whole groups of rows and others, in chunks, alone and together; in bfloat16 sums are rounded before they are added."""
    if tensor * stages > MOST:
        pytest.skip(f"there are fewer than {tensor * stages} GPUs")
    model, rng = save_model_of_one_kv_head(tmp_path, WIDE), np.random.default_rng(8)
    prompts = [rng.integers(0, 256, length).tolist() for length in (2048, 2047, 1100, 3, 1500, 3900)]
    given = options(dtype) | dict(load_format="dummy", max_model_len=4096, max_num_batched_tokens=2304)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(model, **given) as alone:
        wanted, scores = [one.outputs[0].token_ids for one in alone.generate(prompts, params)], alone.logits(prompts[-1][:2300])[-1]
    with LLM(model, **given, tensor_parallel_size=tensor, pipeline_parallel_size=stages) as ranks:
        rows = ranks.engine.ops.communicator.sequence.rows[ranks.engine.ops.communicator.rank]
        found = [one.outputs[0].token_ids for one in ranks.generate(prompts, params)]
        rows.fill_bytes(0)
        logits = ranks.logits(prompts[-1][:2300])[-1]
        assert ranks.engine.ops.to_host(rows).any()  # the ranks did divide them
    assert np.linalg.norm(logits - scores) < (1e-5 if dtype == "float32" else 0.03) * np.linalg.norm(scores)
    assert found == wanted or dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("count", "context"), [(2, 2), (4, 4), (4, 2)])
def test_ranks_that_share_contexts_agree_with_one_gpu(count, context, dtype, tmp_path):
    """Prompts in chunks, steps of all sizes, in graphs; in bfloat16 outputs are rounded before they are merged."""
    if count > MOST:
        pytest.skip(f"there are fewer than {count} GPUs")
    given = options(dtype) | dict(load_format="dummy")
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(save_model_of_one_kv_head(tmp_path), **given) as alone:
        wanted, scores = [one.outputs[0].token_ids for one in alone.generate(PROMPTS, params)], alone.logits(PROMPTS[1])
    with LLM(tmp_path, **given, tensor_parallel_size=count, decode_context_parallel_size=context) as ranks:
        assert ranks.engine.runner.graph_counts()["num_graphs"] > 0
        found, logits = [one.outputs[0].token_ids for one in ranks.generate(PROMPTS, params)], ranks.logits(PROMPTS[1])
        ranks.engine.processes.send(STATE)
        for words in ranks.engine.processes.replies():
            np.testing.assert_array_equal(words, ranks.engine.ops.to_host(ranks.engine.runner.slots.state.words))
    assert np.linalg.norm(logits - scores) < (1e-5 if dtype == "float32" else 0.03) * np.linalg.norm(scores)
    assert found == wanted or dtype == "bfloat16"


def test_logits_in_bfloat16_agree(directory):
    with LLM(directory, **options("bfloat16")) as alone:
        wanted = alone.logits(PROMPTS[1])
    with LLM(directory, **options("bfloat16"), tensor_parallel_size=2) as ranks:
        found = ranks.logits(PROMPTS[1])
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)


def test_all_reduces_of_our_own_are_launched(directory):
    """A fall-back to NCCL would make the same tokens. The counters count the all-reduces of graphs, too."""
    with LLM(directory, **options("float32"), tensor_parallel_size=2, kernel_variants={"all_reduce": BY_SIZE}) as ranks:
        peers = ranks.engine.ops.communicator.peers
        assert ranks.engine.runner.graph_counts()["num_graphs"] > 0
        before = int(ranks.engine.ops.to_host(peers.own.counters)[0])
        ranks.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
        assert int(ranks.engine.ops.to_host(peers.own.counters)[0]) >= before + 10 * (2 * 3 + 1)  # three layers and the embedding


def test_launched_ranks_return_what_one_gpu_does(directory):
    with LLM(directory, **{**OPTIONS, **options("float32")}) as alone:  # first, so that --compile-only launches nothing
        wanted = [list(one.outputs[0].token_ids) for one in alone.generate(LAUNCHED_PROMPTS, GREEDY)]
    given = dict(options("float32"), tensor_parallel_size=2)
    results, _ = launch("greedy", directory, 2, 2, given)
    for code, output, errors in results:
        assert code == 0, errors
        assert json.loads(output.splitlines()[-1]) == wanted


@pytest.mark.parametrize("all_reduce", [LIBRARY, BY_SIZE])
def test_a_killed_rank_ends_all_within_five_seconds(all_reduce, directory):
    """Rank 0's GPU may be waiting for the dead one in NCCL, which is aborted, or in a kernel of ours, which is told to give up."""
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    variants = {"all_reduce": all_reduce}
    with LLM(directory, **options("bfloat16"), tensor_parallel_size=2, kernel_variants=variants) as ranks:
        stream = ranks.stream(PROMPTS[0], params)
        next(stream)
        start = time.monotonic()
        os.kill(ranks.engine.processes.children[0].pid, signal.SIGKILL)
        with pytest.raises(RankError, match="Rank 1 was ended by SIGKILL"):
            for _ in stream:
                pass
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("all_reduce", [LIBRARY, BY_SIZE])
def test_a_rank_that_stands_still_ends_all_after_its_time_limit(all_reduce, directory):
    """Its GPU goes on, but it launches nothing more. A kernel of ours tells for whom it has waited; NCCL cannot."""
    params, variants = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), {"all_reduce": all_reduce}
    with LLM(directory, **options("bfloat16"), tensor_parallel_size=2, kernel_variants=variants) as ranks:
        stream = ranks.stream(PROMPTS[0], params)
        next(stream)
        start = time.monotonic()
        os.kill(ranks.engine.processes.children[0].pid, signal.SIGSTOP)
        with pytest.raises(RankError, match="rank 0 waited for rank 1" if all_reduce == BY_SIZE else "Rank 0 has waited 25 s"):
            for _ in stream:
                pass
        assert time.monotonic() - start < 2 * STEP_S


@pytest.mark.parametrize("all_reduce", [LIBRARY, BY_SIZE])
def test_a_closed_llm_leaves_room_for_the_next(all_reduce, directory):
    """Graphs and communicators are gone, in this order, or closing would wait for ever."""
    params, found = SamplingParams(temperature=0, max_tokens=8), []
    for _ in range(2):
        with LLM(directory, **options("float32"), tensor_parallel_size=2, kernel_variants={"all_reduce": all_reduce}) as ranks:
            found.append([one.outputs[0].token_ids for one in ranks.generate(PROMPTS, params)])
    assert found[0] == found[1]
