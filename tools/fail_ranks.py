"""Let ranks fail at random moments, and check that nothing is left: no process, no memory of a GPU, and an error that names the cause.

    python tools/fail_ranks.py                              twelve failures of two ranks
    python tools/fail_ranks.py --failures 200 --at-once 6   several engines at a time
    python tools/fail_ranks.py --failures 200 --seconds 60  as many as begin within a minute
    python tools/fail_ranks.py --ranks 4 --stages 2         a pipeline of two stages, of two ranks each

Each failure has a program of its own, which generates tokens with a small random model on several ranks. At a random moment

    kill    a rank is ended by SIGKILL: any one, rank 0 included, while the ranks load or generate
    stop    a rank other than 0 is stopped by SIGSTOP while it generates; its GPU finishes what was launched
    stray   a rank other than 0 computes a forward that the others do not, while it generates

All processes of the program must then end within the time limit of a step and a few seconds more. Exit code 1 if something was left, or if
an error did not name its cause. Needs Linux.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from minllm.parallel.let_go import EXIT_CODE

KINDS = ("kill", "stop", "stray")
MARK = "MINLLM_FAILURE"  # an environment variable of all processes of a program, by which those that are left are found
LOAD_S, GRACE_S, LEFT_S = 120.0, 15.0, 3.0  # limits for loading, for ending beyond a step's limit, and for the last processes to end
CAUSES = {  # what errors say: a stopped rank and a stray one are waited for
    "kill": ("was ended by SIGKILL",),
    "stop": ("s for rank ", "waited for rank ", "s for the results of a step"),
    "stray": ("s for rank ", "waited for rank ", "s for the results of a step", "do not compute the same"),
}
SHAPE = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=128, intermediate_size=128, num_hidden_layers=2, head_dim=16,
    num_attention_heads=8, num_key_value_heads=8, vocab_size=301, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=1e4,
    hidden_act="silu", tie_word_embeddings=False,
)  # fmt: skip
CACHE_BYTES = 1 << 24  # on each rank
ENDED_WITH_ERROR = 3  # exit code of a program whose ranks have failed


class Failure(NamedTuple):
    """What goes wrong on which rank. seconds: after the other ranks have started ("kill"), or after the first token."""

    kind: str
    rank: int
    seconds: float


class Outcome(NamedTuple):
    """What became of a failure. seconds: from it to the end of the last process, None if it never came. faults: what is wrong.

    place: where rank 0 stood if it could not stop waiting and ended itself (parallel/let_go.py).
    """

    failure: Failure
    seconds: float | None
    faults: list[str]
    place: str | None = None


def chosen(number: int, ranks: int, seed: int) -> Failure:
    """Failure `number`: kinds take turns, everything else is random."""
    rng, kind = random.Random(1000 * seed + number), KINDS[number % len(KINDS)]
    return Failure(kind, rng.randrange(0 if kind == "kill" else 1, ranks), rng.uniform(0, 4 if kind == "kill" else 1))


def let_fail(failure: Failure, ranks: int, device: str, step_seconds: float, stages: int = 1) -> Outcome:
    """Run a program until the failure has ended it, and look for what is left."""
    command = [sys.executable, __file__, "--program", json.dumps(failure), "--device", device]
    command += ["--ranks", str(ranks), "--stages", str(stages)]
    mark = f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    environment = dict(os.environ, MINLLM_STEP_SECONDS=str(step_seconds)) | {MARK: mark}
    faults, limit = [], LOAD_S + failure.seconds + step_seconds + GRACE_S
    with tempfile.TemporaryFile("w+") as output:  # not a pipe, which a process that is left would keep open
        program = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            program.wait(limit)
        except subprocess.TimeoutExpired:
            faults.append(f"the program has not ended within {limit:g} s")
            program.kill()
            program.wait()
        faults += end_what_is_left(mark)
        ended = time.monotonic()
        output.seek(0)
        text = output.read()
    failed = next((float(line.split()[1]) for line in text.splitlines() if line.startswith("failed ")), None)
    seconds = None if failed is None else ended - failed
    if seconds is None:
        faults.append("the failure never came")
    elif seconds > step_seconds + GRACE_S:
        faults.append(f"the end took {seconds:.1f} s")
    place = re.search(r"has not stopped waiting .* It stands in (.*)\.$", text, re.MULTILINE)
    by_itself = -signal.SIGKILL if failure.kind == "kill" and failure.rank == 0 else ENDED_WITH_ERROR
    wanted = EXIT_CODE if place else by_itself
    if program.returncode != wanted:
        faults.append(f"exit code {program.returncode} instead of {wanted}")
    if place and "parallel/nccl.py" not in place[1]:  # which cannot be interrupted while it connects to a rank that has ended
        faults.append("it did not stop waiting for what can be interrupted")
    if wanted != -signal.SIGKILL and not any(cause in text for cause in CAUSES[failure.kind]):
        faults.append("the error does not name the cause")
    return Outcome(failure, seconds, [*faults, text[-2000:]] if faults else [], place[1] if place else None)


def end_what_is_left(mark: str) -> list[str]:
    """Wait a little for the processes with this mark, then kill those that remain; says which."""
    deadline = time.monotonic() + LEFT_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was left" for pid in left]


def marked(mark: str) -> list[int]:
    """The processes with this mark in their environment; a zombie has none."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def used_bytes() -> list[int]:
    """Bytes in use on every GPU, by nvidia-smi; empty without one."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return [int(line) << 20 for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]
    except (OSError, subprocess.CalledProcessError, ValueError):
        return []


def run(
    failures: int, ranks: int, device: str, seconds: float, at_once: int, seed: int, step_seconds: float, stages: int = 1
) -> list[Outcome]:  # fmt: skip
    """The outcomes of this number of failures, or of those that begin within `seconds`."""
    deadline = time.monotonic() + seconds

    def one(number: int) -> Outcome | None:
        return None if time.monotonic() > deadline else let_fail(chosen(number, ranks, seed), ranks, device, step_seconds, stages)

    with ThreadPoolExecutor(at_once) as pool:
        return [outcome for outcome in pool.map(one, range(failures)) if outcome is not None]


def program(failure: Failure, ranks: int, stages: int, device: str) -> int:
    """Generate on several ranks until the failure ends it. Returns the exit code."""
    from minllm import LLM, SamplingParams
    from minllm.bench.generate import write_shape
    from minllm.parallel.processes import RankError

    options = dict(device=device, max_model_len=256, max_num_seqs=2, max_num_batched_tokens=64, load_format="dummy")
    options |= dict(kv_cache_memory_bytes=CACHE_BYTES)  # not a share of a GPU, which other programs may be leaving
    if failure.kind == "kill":
        threading.Thread(target=kill, args=(failure, ranks), daemon=True).start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            write_shape(Path(directory), SHAPE)
            with LLM(directory, tensor_parallel_size=ranks // stages, pipeline_parallel_size=stages, **options) as llm:
                fails = threading.Thread(target=stop_or_stray, args=(failure, llm), daemon=True)
                for _ in llm.stream([1, 2, 3], SamplingParams(temperature=0, max_tokens=1)):
                    pass
                if failure.kind != "kill":
                    fails.start()
                deadline = time.monotonic() + LOAD_S
                while time.monotonic() < deadline:
                    llm.generate([[1, 2, 3], [4] * 40], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    except RankError as error:
        print(error, flush=True)
        return ENDED_WITH_ERROR
    return 0


def kill(failure: Failure, ranks: int) -> None:
    """Kill a rank some time after all other ranks have started."""
    while len(others := children()) < ranks - 1:
        time.sleep(0.01)
    time.sleep(failure.seconds)
    print("failed", time.monotonic(), flush=True)
    os.kill(others[failure.rank - 1] if failure.rank else os.getpid(), signal.SIGKILL)


def stop_or_stray(failure: Failure, llm) -> None:
    """Stop a rank, or let it compute a forward of 48 rows alone."""
    import numpy as np

    from minllm.engine.ranks.rank_runner import Score
    from minllm.ops.batch import Batch

    time.sleep(failure.seconds)
    print("failed", time.monotonic(), flush=True)
    if failure.kind == "stop":
        os.kill(children()[failure.rank - 1], signal.SIGSTOP)
        return
    rows = np.arange(48, dtype=np.int32)
    none, start, lengths = np.full_like(rows, -1), np.array([0, 48], np.int32), np.array([48], np.int32)
    batch = Batch(rows, rows, none, start, lengths, np.zeros((1, 16), np.int32), rows[-1:], 48, 48)
    llm.engine.processes.channels[failure.rank].send(Score(batch))


def children() -> list[int]:
    """The processes that this one has started: the other ranks in their order, then those that compile."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return sorted(int(pid) for one in found for pid in one.read_bytes().split())


def main() -> int:
    """Run the failures and print what was left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--failures", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, default=1, choices=(1, 2), help="stages of a pipeline; they divide the ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=2.0)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.program:
        return program(Failure(*json.loads(given.program)), given.ranks, given.stages, given.device)
    before = used_bytes()
    sizes = given.failures, given.ranks, given.device, given.seconds
    outcomes = run(*sizes, given.at_once, given.seed, given.step_seconds, given.stages)
    for outcome in outcomes:
        if outcome.faults:
            print(outcome.failure, *outcome.faults, sep="\n  ")
        elif outcome.place:
            print(outcome.failure, f"rank 0 ended itself in {outcome.place}", sep="\n  ")
    kept = [after - one for one, after in zip(before, used_bytes())]
    slowest = {kind: max((one.seconds or 0 for one in outcomes if one.failure.kind == kind), default=0.0) for kind in KINDS}
    count = {kind: sum(one.failure.kind == kind for one in outcomes) for kind in KINDS}
    for kind in KINDS:
        by_limit = sum(one.place is not None for one in outcomes if one.failure.kind == kind)
        print(f"{kind:6} {count[kind]:4} failures; the last process ended after {slowest[kind]:.1f} s at most; {by_limit} by its limit")
    print(f"memory of GPUs in use since the start, MiB: {[one >> 20 for one in kept]}")
    return int(any(outcome.faults for outcome in outcomes) or any(one > 64 << 20 for one in kept))


if __name__ == "__main__":
    sys.exit(main())
