"""Record docs/results/serving_runs.json, which lesson 22 and its page show: every request of runs of the server under load.

    python tools/record_serving_runs.py         the bundled model on a CPU, in about six minutes

Server, scheduler and model are the package's. A step of the engine is held to STEP seconds and PROMPT_TOKEN more per token of a prompt,
so that what else the machine does shows little. Each server of SERVERS gets the same arrivals, at LOADS times the rate that it can serve.
A request is [kind, arrival, first token, end], in milliseconds of the client's clock; the first token of one that is refused, or ended by
its deadline, is null.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
from measure_server import HOST, Stream

from minllm import AsyncLLM
from minllm.bench.record import new_record
from minllm.server.in_process import serving

RECORD = ROOT / "docs" / "results" / "serving_runs.json"
STEP, PROMPT_TOKEN = 0.06, 0.001
LOADS, COUNT, PLACES = (0.5, 0.8, 1.2, 2.0), 48, 4
PROMPT, TOKENS, DOCUMENT = 16, (6, 18), 448  # tokens; answers are of any length between the two
ANSWER = sum(TOKENS) / 2 * STEP + PLACES * PROMPT * PROMPT_TOKEN  # seconds for which an answer keeps its place, on average
RATE, DEADLINE = PLACES / ANSWER, 4 * ANSWER


@dataclass(frozen=True)
class Recorded:
    """A server and who asks it."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    budget: int = 512
    has_documents: bool = False
    has_two_users: bool = False
    has_deadlines: bool = False


KEYS = {"api_keys": ("a", "b")}
SERVERS = (
    Recorded("everybody waits"),
    Recorded("at most 4 wait", {"max_queued": 4}),
    Recorded("refuses who would be late", {"refuse_late": True}, has_deadlines=True),
    Recorded("documents, 512 tokens per step", has_documents=True),
    Recorded("documents, 32 tokens per step", budget=32, has_documents=True),
    Recorded("two users, one queue", KEYS, has_two_users=True),
    Recorded("two users, at most 3 open requests each", KEYS | {"max_per_key": 3}, has_two_users=True),
)


class Timed(Stream):
    """A stream that notes when it ended."""

    def __init__(self, body: dict, key: str):
        super().__init__(body)
        self.request = self.request.replace(b"\r\n", f"\r\nauthorization: Bearer {key}\r\nconnection: close\r\n".encode(), 1)

    def connection_lost(self, error) -> None:
        self.ended = time.perf_counter()
        super().connection_lost(error)


def held(execute):
    """Execute a step in no less than its time."""

    def run(step):
        end = time.perf_counter() + STEP + PROMPT_TOKEN * sum(span.length for span in step.spans if not span.decodes)
        results = execute(step)
        time.sleep(max(0.0, end - time.perf_counter()))
        return results

    return run


def requests(server: Recorded, load: float) -> list[tuple[float, str, int, int]]:
    """(seconds, kind, prompt tokens, tokens) of each request: a Poisson process; of two users the first sends three in four."""
    generator, now, found = random.Random(1), 0.0, []
    for number in range(COUNT):
        now += generator.expovariate(1.0) / (load * RATE)
        tokens, user = generator.randint(*TOKENS), "a" if generator.random() < 0.75 else "b"
        is_document = server.has_documents and number % 8 == 4
        kind = user if server.has_two_users else "document" if is_document else "question"
        found.append((now, kind, DOCUMENT if is_document else PROMPT, tokens))
    return found


async def run(address: str, planned: list, deadline: float | None = None) -> list[list]:
    """Send the requests when they are due; returns each one's times."""
    loop, start = asyncio.get_running_loop(), time.perf_counter() + 0.1

    async def one(number: int, due: float, kind: str, prompt: int, tokens: int) -> list:
        await asyncio.sleep(start + due - time.perf_counter())
        ids = [random.Random(number).randrange(10, 4000) for _ in range(prompt)]
        body = dict(prompt=ids, max_tokens=tokens, temperature=0, ignore_eos=True, stream=True, deadline=deadline)
        _, stream = await loop.create_connection(lambda: Timed(body, kind if kind in "ab" else "a"), HOST, int(address.rpartition(":")[2]))
        await stream.done
        first = round(1e3 * (stream.first - start)) if b'"finish_reason":"length"' in stream.tail else None
        return [kind, round(1e3 * due), first, round(1e3 * (stream.ended - start))]

    return await asyncio.gather(*[one(number, *request) for number, request in enumerate(planned)])


def record() -> dict:
    """All runs."""
    rows = []
    for server in SERVERS:
        options = dict(max_num_seqs=PLACES, max_num_batched_tokens=server.budget, max_model_len=512, enable_prefix_caching=False)
        llm = AsyncLLM(device="cpu", dtype="float32", **options)
        runner = llm._llm.llm_engine.core.runner
        runner.execute = held(runner.execute)
        with serving(llm, **server.options) as served:
            asyncio.run(run(served.address, requests(server, 1e3)[:8]))
            for load in LOADS:
                found = asyncio.run(run(served.address, requests(server, load), DEADLINE if server.has_deadlines else None))
                rows.append(dict(benchmark="serving run", case=server.name, load=load, requests=found))
                print(server.name, load, sum(first is None for _, _, first, _ in found), flush=True)
        llm.shutdown()
    measured = dict(step_ms=1e3 * STEP, prompt_token_ms=1e3 * PROMPT_TOKEN, places=PLACES)
    measured |= dict(requests_per_second=round(RATE, 2), deadline_ms=round(1e3 * DEADLINE), rows=rows)
    return dataclasses.asdict(new_record("cpu", {}, [])) | measured


def main() -> None:
    """Write the file, a run per line."""
    made = record()
    head = json.dumps({name: value for name, value in made.items() if name != "rows"}, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in made["rows"])
    RECORD.write_text(f'{head},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
