"""Many requests of all kinds, a fifth of which are left: every one ends in one state, and the server is empty afterwards.

With --exhaustive also for --soak-seconds, 20 minutes by default, on two processes, whose memory has to stay flat.
"""

import asyncio
import gc
import random
import re
import time
import tracemalloc
from pathlib import Path

import httpx
import pytest

from minllm.server.in_process import serving
from tests.server.two_processes import engine_of, started

CLIENTS = 24
GROWTH = 12 << 20  # bytes that each process may gain from a third of a soak to its end


def counted(address):
    """{reason: completions that ended with it}."""
    text = httpx.get(f"{address}/metrics").text
    found = re.findall(r'vllm:request_success_total\{finished_reason="(\w+)"[^}]*\} (\S+)', text)
    return {reason: float(count) for reason, count in found}, text


async def one(http, rng):
    """One request; returns how it ended for its client."""
    body = {"prompt": [rng.randrange(10, 1000) for _ in range(rng.randrange(1, 40))], "max_tokens": rng.randrange(1, 12)}
    body |= {"ignore_eos": True, "n": rng.choice([1, 1, 2]), "stream": rng.random() < 0.5, "priority": rng.randrange(3)}
    task = asyncio.create_task(http.post("/v1/completions", json=body))
    if rng.random() < 0.2:
        await asyncio.sleep(rng.random() * 0.05)
        task.cancel()
    try:
        response = await task
    except asyncio.CancelledError:
        return "left"
    assert response.status_code == 200 and (not body["stream"] or response.text.endswith("data: [DONE]\n\n"))
    return body["n"]


async def many(address, goes_on):
    """How requests ended, CLIENTS at a time, as long as goes_on(number of requests so far) is true."""
    ends, rng = [], random.Random(1)

    async def client(http):
        while goes_on(len(ends)):
            ends.append(None)
            place = len(ends) - 1
            ends[place] = await one(http, rng)

    async with httpx.AsyncClient(base_url=address, timeout=120, limits=httpx.Limits(max_connections=CLIENTS)) as http:
        await asyncio.gather(*[client(http) for _ in range(CLIENTS)])
    return ends


def test_every_request_ends_in_one_state(llm):
    with serving(llm) as served:
        before = llm.stats()
        ends = asyncio.run(many(served.address, lambda count: count < 150))
        while served.server.admission.open or llm.stats().num_running or llm.stats().num_waiting:
            pass
        reasons, text = counted(served.address)
        assert ends.count("left") > len(ends) / 12 and llm.stats().kv_cache_usage == 0 and not served.server.engine.client.num_open
        assert reasons["length"] >= sum(end for end in ends if end != "left") and set(reasons) <= {"length", "abort"}
        assert llm.stats().num_steps > before.num_steps
        for name in ("request_queue_time_seconds_count", "iteration_tokens_total_count"):
            assert float(re.search(rf"vllm:{name}{{[^}}]*}} (\S+)", text)[1]) > 0


def resident(*pids):
    """The bytes of memory that processes hold."""
    return [int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096 for pid in pids]


def gauge(text, name):
    """A gauge of /metrics."""
    return float(re.search(rf"vllm:{name}{{[^}}]*}} (\S+)", text)[1])


@pytest.mark.timeout(0)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of processes in /proc")
def test_a_long_soak(request):
    if not request.config.option.exhaustive:
        pytest.skip("20 minutes: only with --exhaustive")
    begun, seconds, memory = time.monotonic(), request.config.option.soak_seconds, []
    with started("--max-num-seqs=8") as (process, address):
        pids = process.pid, engine_of(process)

        def goes_on(count):
            passed = time.monotonic() - begun
            if not memory and passed > seconds / 3:
                memory.append(resident(*pids))
            return passed < seconds

        ends = asyncio.run(many(address, goes_on))
        memory.append(resident(*pids))
        end = time.monotonic() + 30
        while any(gauge(text := counted(address)[1], f"num_requests_{state}") for state in ("running", "waiting")):
            assert time.monotonic() < end
        reasons = counted(address)[0]
    print(f"{len(ends)} requests, {ends.count('left')} left, {reasons}; bytes of server and engine: {memory}")
    answered = sum(end for end in ends if end != "left")
    assert gauge(text, "kv_cache_usage_perc") == 0 and ends.count("left") > len(ends) / 12
    assert set(reasons) <= {"length", "abort"} and answered <= sum(reasons.values()) <= answered + 2 * ends.count("left")
    assert all(late - early < GROWTH for early, late in zip(*memory, strict=True)), memory


def test_memory_stays_flat(only_new_objects, llm, request):
    rounds, size = 3, 1_000 if request.config.option.exhaustive else 40
    with serving(llm) as served, httpx.Client(base_url=served.address, timeout=60) as http:
        sizes = []
        tracemalloc.start()
        for _ in range(rounds):
            for _ in range(size):
                assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[-1] - sizes[-2] < 150 * size + 50_000, sizes  # bytes
