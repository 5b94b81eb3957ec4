"""Measure what HTTP costs: the same requests offline and over HTTP, on one device, one after the other, with random weights.

    python tools/measure_server.py                                                      # 8B shape on a GPU, within 3 minutes
    python tools/measure_server.py --model bundled --device cpu --requests 16 --streams 32 --prompt 32 --tokens 16 --rate 4

1. Offline, in a process of its own: `requests` prompts at once through LLM.generate (tokens/s), then requests that arrive at `rate` through
   AsyncLLM (TTFT).
2. `minllm serve` in two processes, and the clients in a third: the same prompts at once, the same arrivals, and `streams` streams at once
   for the lag of the server's event loop, which its /metrics has.

Prints a line per figure with its bound, and a line of JSON. Exit code 1 if a bound is missed.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
HOST = "127.0.0.1"


def main() -> int:
    """Run both parts and compare."""
    options = arguments().parse_args()
    if options.offline is not None:
        offline(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        first = Path(folder, "offline.json")
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--offline", str(first)], check=True, env=environment)
        alone = json.loads(first.read_text(encoding="utf-8"))
        served = asyncio.run(over_http(options, model_path(options.model, Path(folder, "model")), environment))
    return report(options, alone, served)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="What HTTP costs.")
    parser.add_argument("--model", default="llama-3.1-8b", help="a shape, random weights; or bundled")
    parser.add_argument("--device", default="auto")
    for name, value in dict(requests=256, streams=512, prompt=128, tokens=256, rate=16, arrivals=96, port=8765).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--offline", help=argparse.SUPPRESS)
    return parser


def engine_options(options) -> dict:
    """The options of both engines."""
    longest = options.prompt + options.tokens + 16
    return dict(device=options.device, max_num_seqs=max(options.requests, options.streams), max_model_len=longest)


def model_path(model: str, folder: Path) -> Path | None:
    """A directory with the shape; None for the bundled model."""
    from minllm.bench.generate import write_shape
    from minllm.models.shapes import SHAPES

    if model == "bundled":
        return None
    folder.mkdir()
    write_shape(folder, SHAPES[model])
    return folder


def prompts(options, kind: str, count: int) -> list[list[int]]:
    """Random prompts, others for each kind of load."""
    generator = random.Random(kind)
    return [[generator.randrange(10, 4000) for _ in range(options.prompt)] for _ in range(count)]


def arrivals(options) -> list[float]:
    """The seconds at which requests come: a Poisson process."""
    generator, now, times = random.Random(0), 0.0, []
    for _ in range(options.arrivals):
        now += generator.expovariate(options.rate)
        times.append(now)
    return times


def offline(options) -> None:
    """Part 1."""
    from minllm import LLM, AsyncLLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        path = model_path(options.model, Path(folder, "model"))
        llm = LLM(path, load_format="auto" if path is None else "dummy", **engine_options(options))
        params = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True)
        llm.generate(prompts(options, "warm-up", 8), params)
        start = time.perf_counter()
        outputs = llm.generate(prompts(options, "load", options.requests), params, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        burst = [output.metrics.time_to_first_token for output in outputs]
        few = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)

        async def first_token(engine, prompt, due) -> float:
            await asyncio.sleep(due)
            begun, found = time.perf_counter(), None
            async for _ in engine.generate(prompt, few):
                found = found or time.perf_counter() - begun
            return found

        async def paced() -> list[float]:
            engine = AsyncLLM.of(llm)
            try:
                pairs = zip(prompts(options, "paced", options.arrivals), arrivals(options), strict=True)
                return await asyncio.gather(*[first_token(engine, prompt, due) for prompt, due in pairs])
            finally:
                engine.shutdown()

        ttft = asyncio.run(paced())
    found = dict(tokens_per_second=tokens / seconds, burst_ttft=statistics.median(burst), ttft=statistics.median(ttft))
    found["device"] = device_name(llm)
    Path(options.offline).write_text(json.dumps(found), encoding="utf-8")


def device_name(llm) -> str:
    """The GPU's name, or cpu."""
    if llm.device == "cpu":
        return "cpu"
    from minllm.runtime.device import current_device

    return current_device().name


class Stream(asyncio.Protocol):
    """One request over a connection of its own, read with as little work as possible."""

    def __init__(self, body: dict):
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        self.request, self.done = head.encode() + data, asyncio.get_running_loop().create_future()
        self.first, self.tail, self.chunks = 0.0, b"", 0

    def connection_made(self, transport) -> None:
        self.transport, self.begun = transport, time.perf_counter()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b'"choices":[{')
        if self.chunks and not self.first:
            self.first = time.perf_counter()
        self.tail = (self.tail + data)[-400:]
        if b"[DONE]" in self.tail:
            self.transport.close()

    def connection_lost(self, error) -> None:
        if not self.done.done():
            self.done.set_result(None)

    @property
    def tokens(self) -> int:
        """The completion's tokens, by the usage of its last chunk. Raises ValueError if the stream ended early."""
        found = re.search(rb'"completion_tokens":(\d+)', self.tail)
        if found is None:
            raise ValueError(f"A stream ended with {self.tail!r}")
        return int(found[1])


async def streamed(options, prompt: list[int], tokens: int, due: float = 0.0) -> Stream:
    """One streamed completion."""
    await asyncio.sleep(due)
    more = dict(stream=True, stream_options={"include_usage": True}, ignore_eos=True)
    body = dict(prompt=prompt, max_tokens=tokens, temperature=0, **more)
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(body), HOST, options.port)
    await stream.done
    return stream


async def all_at_once(options, kind: str, count: int) -> tuple[float, list[Stream]]:
    """(seconds, streams) of requests that are sent together."""
    start = time.perf_counter()
    streams = await asyncio.gather(*[streamed(options, prompt, options.tokens) for prompt in prompts(options, kind, count)])
    return time.perf_counter() - start, streams


async def over_http(options, path: Path | None, environment: dict) -> dict:
    """Part 2."""
    engine = engine_options(options)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in engine.items()]
    flags += [] if path is None else [str(path), "--load-format=dummy"]
    serve = [sys.executable, "-m", "minllm", "serve", f"--port={options.port}", "--no-enable-prefix-caching", *flags]
    process = subprocess.Popen(serve, env=environment)
    try:
        await answers(options, process)
        await all_at_once(options, "warm-up", 8)
        seconds, load = await all_at_once(options, "load", options.requests)
        pairs = zip(prompts(options, "paced", options.arrivals), arrivals(options), strict=True)
        paced = await asyncio.gather(*[streamed(options, prompt, 32, due) for prompt, due in pairs])
        before = await lags(options)
        await all_at_once(options, "many", options.streams)
        after = await lags(options)
    finally:
        process.terminate()
        process.wait(60)
    return dict(
        tokens_per_second=sum(stream.tokens for stream in load) / seconds,
        burst_ttft=statistics.median(stream.first - stream.begun for stream in load),
        ttft=statistics.median(stream.first - stream.begun for stream in paced),
        lag_p99=quantile({bound: after[bound] - before[bound] for bound in after}, 0.99),
        lag_samples=after[float("inf")] - before[float("inf")],
    )


async def get(options, path: str) -> str:
    """A page of the server; "" while it does not answer."""
    try:
        reader, writer = await asyncio.open_connection(HOST, options.port)
    except OSError:
        return ""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def answers(options, process: subprocess.Popen) -> None:
    """Wait until the server serves."""
    while " 200 " not in await get(options, "/health"):
        if process.poll() is not None:
            raise SystemExit("The server has ended.")
        await asyncio.sleep(0.2)


async def lags(options) -> dict[float, float]:
    """{bound in seconds: measurements of the event loop's lag up to it}."""
    found = re.findall(r'event_loop_lag_seconds_bucket{le="([^"]+)"[^}]*} (\S+)', await get(options, "/metrics"))
    return {float(bound): float(count) for bound, count in found}


def quantile(counts: dict[float, float], share: float) -> float:
    """The smallest bound under which this share of the measurements lies."""
    return next(bound for bound, count in sorted(counts.items()) if count >= share * counts[float("inf")])


def report(options, alone: dict, served: dict) -> int:
    """Print the figures; 1 if a bound is missed."""
    share = served["tokens_per_second"] / alone["tokens_per_second"]
    later = (served["ttft"] - alone["ttft"]) * 1e3
    lines = (
        (f"tokens/s: offline {alone['tokens_per_second']:,.0f}, HTTP {served['tokens_per_second']:,.0f}, {share:.1%}", share >= 0.97),
        (f"TTFT p50 at {options.rate}/s: engine {alone['ttft'] * 1e3:.1f} ms, HTTP {served['ttft'] * 1e3:.1f} ms", later <= 3),
        (f"event loop lag p99 with {options.streams} streams: at most {served['lag_p99'] * 1e3:g} ms", served["lag_p99"] <= 0.01),
    )
    for text, is_met in lines:
        print(f"{'ok    ' if is_met else 'MISSED'} {text}")
    print(f"       TTFT p50 of {options.requests} at once: engine {alone['burst_ttft']:.3f} s, HTTP {served['burst_ttft']:.3f} s")
    print(json.dumps(dict(model=options.model, requests=options.requests, tokens=options.tokens, offline=alone, http=served)))
    return int(not all(is_met for _, is_met in lines))


if __name__ == "__main__":
    sys.exit(main())
