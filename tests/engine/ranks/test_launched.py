"""Ranks as a launcher starts them: processes with RANK, WORLD_SIZE and LOCAL_RANK in their environment, on two hosts that are one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from minllm import LLM, AsyncLLM
from minllm.errors import InvalidOptionError
from tests.engine.ranks.launched_program import OPTIONS, computed
from tests.engine.ranks.models import save_model_of_eight_heads
from tests.parallel.test_rendezvous import free_port

END_S = 60.0
ONE_THREAD = dict(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MINLLM_RENDEZVOUS_SECONDS="30")
pytestmark = pytest.mark.usefixtures("forked_python")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_model_of_eight_heads(tmp_path_factory.mktemp("eight-heads"))


def launch(program, directory, ranks, per_host, options, of_rank=None):
    """(exit code, standard output, standard error) of each process, and the seconds from the first one's end to the last one's."""
    port, processes = str(free_port()), []
    for rank in range(ranks):
        launcher = dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank % per_host), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        own = json.dumps(options | (of_rank or {}).get(rank, {}))
        command = [sys.executable, "-m", "tests.engine.ranks.launched_program", program, str(directory), own]
        environment = {**os.environ, **ONE_THREAD, **launcher}
        streams = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(subprocess.Popen(command, env=environment, **streams))
    deadline, first = time.monotonic() + END_S, None
    while any(one.poll() is None for one in processes) and time.monotonic() < deadline:
        if first is None and any(one.poll() is not None for one in processes):
            first = time.monotonic()
        time.sleep(0.02)
    last = time.monotonic()
    for one in processes:
        one.kill()  # nothing, unless the test fails
    return [(one.wait(), *one.communicate()) for one in processes], last - (first or last)


def test_two_hosts_of_two_ranks_return_what_one_process_does(directory):
    """Two stages, each of two tensor ranks that share a host; every rank prints what its calls return."""
    results, _ = launch("compute", directory, 4, 2, dict(tensor_parallel_size=2, pipeline_parallel_size=2))
    with LLM(directory, **OPTIONS) as alone:
        wanted = computed(alone)
    for rank, (code, output, errors) in enumerate(results):
        assert code == 0, errors
        first, *rest = output.splitlines()
        assert json.loads(first) == wanted
        assert (
            rest[0].startswith("InvalidRequestError: Token id 1000000000 is outside")
            and rest[1] == "ZeroDivisionError: a fault of this test"
        )
        if rank == 0:
            assert "use generate() with external_launcher" in rest[2] and "the ranks meet in generate(), chat()" in rest[3]


def test_a_killed_rank_ends_all_within_five_seconds(directory):
    results, seconds = launch("stop", directory, 2, 1, dict(tensor_parallel_size=2))
    assert results[1][0] == -signal.SIGKILL and results[0][0] == 1 and seconds < 5
    assert "RankError: Rank 1 has ended without a word, and so have all ranks: it was killed, or its host was lost." in results[0][2]


FAULTS = {  # what rank 1 does, and the end of what both ranks say
    "raise": "TypeError: 'NoneType' object is not callable",
    "other call": "Rank 1 calls logits(), and rank 0 calls generate(): every rank must make the same calls in the same order.",
    "other prompts": "Rank 1 calls generate(), and rank 0 calls generate() with another first argument: every rank must make",
    "close": "Rank 1 has closed its LLM, or its program has ended.",
}


@pytest.mark.parametrize("program", FAULTS)
def test_a_rank_that_fails_ends_all_with_its_traceback(program, directory, request):
    if not request.config.option.exhaustive:
        pytest.skip("runs with --exhaustive")
    results, seconds = launch(program, directory, 2, 2, dict(tensor_parallel_size=2))
    assert FAULTS[program] in results[0][2] and results[0][0] == 1 and seconds < 5
    assert results[1][0] == (0 if program == "close" else 1)


def test_other_options_are_named_by_both(directory, request):
    if not request.config.option.exhaustive:
        pytest.skip("runs with --exhaustive")
    results, _ = launch("compute", directory, 2, 2, dict(tensor_parallel_size=2), of_rank={1: dict(max_num_seqs=2)})
    for code, _, errors in results:
        assert code == 1 and "Rank 1 disagrees about max_num_seqs: 2, and rank 0 has 3." in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(distributed_executor_backend="ray"), "distributed_executor_backend is one of mp, external_launcher"),
        (
            dict(tensor_parallel_size=2, distributed_executor_backend="external_launcher"),
            "RANK, WORLD_SIZE and LOCAL_RANK, which are not set",
        ),
    ],
)
def test_wrong_backends_are_refused(options, message, directory, monkeypatch):
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidOptionError) as error:
        LLM(directory, device="cpu", **options)
    assert message in str(error.value)


def test_a_launch_of_one_rank_is_one_process_and_async_is_refused(directory, monkeypatch):
    for name, value in dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1").items():
        monkeypatch.setenv(name, value)
    with LLM(directory, **OPTIONS, distributed_executor_backend="external_launcher") as llm:
        assert len(llm.generate([1, 2])) == 1 and llm.engine.processes is None
        with pytest.raises(InvalidOptionError, match="AsyncLLM does not take distributed_executor_backend"):
            AsyncLLM.of(llm)
