"""Many requests of all kinds, a fifth of which are left: every one ends in one state, and the server is empty afterwards."""

import asyncio
import gc
import random
import re
import tracemalloc

import httpx
import pytest

from tests.server.serving import serving


def counted(address):
    """{reason: completions that ended with it}."""
    text = httpx.get(f"{address}/metrics").text
    found = re.findall(r'vllm:request_success_total\{finished_reason="(\w+)"[^}]*\} (\S+)', text)
    return {reason: float(count) for reason, count in found}, text


async def one(http, rng):
    """One request; returns how it ended for its client."""
    body = {"prompt": [rng.randrange(10, 4000) for _ in range(rng.randrange(1, 40))], "max_tokens": rng.randrange(1, 12)}
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


@pytest.mark.timeout(600)
def test_every_request_ends_in_one_state(llm, request):
    total, rng = 5_000 if request.config.option.exhaustive else 150, random.Random(1)

    async def run(address):
        limits = httpx.Limits(max_connections=24)
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as http:
            room = asyncio.Semaphore(24)

            async def next_one():
                async with room:
                    return await one(http, rng)

            return await asyncio.gather(*[next_one() for _ in range(total)])

    with serving(llm) as served:
        before = llm.stats()
        ends = asyncio.run(run(served.address))
        while served.server.admission.open or llm.stats().num_running or llm.stats().num_waiting:
            pass
        reasons, text = counted(served.address)
        assert ends.count("left") > total / 12 and llm.stats().kv_cache_usage == 0 and not served.server.engine.client.num_open
        assert reasons["length"] >= sum(end for end in ends if end != "left") and set(reasons) <= {"length", "abort"}
        assert llm.stats().num_steps > before.num_steps
        for name in ("request_queue_time_seconds_count", "iteration_tokens_total_count"):
            assert float(re.search(rf"vllm:{name}{{[^}}]*}} (\S+)", text)[1]) > 0


def test_memory_stays_flat(llm, request):
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
