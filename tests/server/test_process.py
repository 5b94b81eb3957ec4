"""The command with its two processes: kill -9 of the engine, restart, SIGTERM while an answer is on its way."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from tests.server.two_processes import engine_of, started

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes in /proc"),
    pytest.mark.usefixtures("forked_python"),
]
LONG = {"prompt": "def f(x):", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}


def is_gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while os.path.exists(f"/proc/{pid}") and "zombie" not in open(f"/proc/{pid}/status").read():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_engine_that_is_killed_is_said_and_started_again():
    with started("--restart-engine") as (process, address), httpx.Client(base_url=address, timeout=20) as http:
        engine = engine_of(process)
        with http.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(engine, signal.SIGKILL)
            rest = list(lines)
        assert response.status_code == 200 and '"engine_dead"' in rest[-4] and rest[-2] == "data: [DONE]"
        refused = http.post("/v1/completions", json=LONG)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_dead" and "retry-after" in refused.headers
        assert http.get("/health").status_code == 503
        end = time.monotonic() + 30
        while http.get("/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert http.post("/v1/completions", json=LONG | {"max_tokens": 2, "stream": False}).status_code == 200
        again = engine_of(process)
        assert again != engine
        process.send_signal(signal.SIGKILL)  # a server that dies takes its engine with it
        is_gone(again)


def test_sigterm_lets_answers_finish():
    with started() as (process, address), httpx.Client(base_url=address, timeout=20) as http:
        engine = engine_of(process)
        with http.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 150}) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" and '"finish_reason":"length"' in "".join(rest)
        assert process.wait(20) == 0
        is_gone(engine)


def test_an_address_that_is_taken_is_said_before_a_model_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "minllm", "serve", "/no/model", f"--port={taken.getsockname()[1]}"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "Address already in use" in found.stderr and len(found.stderr.splitlines()) == 1
