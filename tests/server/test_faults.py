"""Clients that leave, stall or send nonsense harm nobody else, and leave nothing behind."""

import itertools
import json
import select
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from minllm.server.errors import error_of
from minllm.server.in_process import serving
from tests.server.answering import answering
from tests.server.test_soak import counted

BODY = {"prompt": "def f(x):", "temperature": 0, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def chat_model(bundled_chat_model):
    """Requests that take a while."""
    return bundled_chat_model


def connected(served):
    found = urlsplit(served.address)
    return socket.create_connection((found.hostname, found.port), timeout=20)


def request(path, body, length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


def is_idle(served, seconds=30):
    """Wait until no sequence runs or waits, and no block is held."""
    end = time.monotonic() + seconds
    while (stats := served.stats()).num_running or stats.num_waiting or stats.kv_cache_usage or served.server.admission.open:
        assert time.monotonic() < end, stats
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(served, stream):
    with connected(served) as client:
        client.sendall(request("/v1/completions", BODY | {"stream": stream, "max_tokens": 490}))
        while not served.stats().num_running:
            time.sleep(0.002)
    begun = served.stats().num_steps
    is_idle(served)
    assert served.stats().num_steps - begun <= 20  # 0 or 1 on a machine that does nothing else


def test_each_completion_that_is_left_is_counted(served):
    before = counted(served.address)[0].get("abort", 0)
    with connected(served) as client:
        client.sendall(request("/v1/completions", BODY | {"n": 3, "temperature": 1, "prompt": ["def f(x):", "import"]}))
        while served.stats().num_running < 6:
            time.sleep(0.002)
    is_idle(served)
    assert counted(served.address)[0]["abort"] == before + 6


def test_an_offer_of_another_protocol_is_ignored(served):
    """Java's client makes it with its first request, and sends the body at once."""
    head, _, body = request("/v1/completions", BODY | {"max_tokens": 2}).partition(b"\r\n\r\n")
    offer = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n\r\n"
    with connected(served) as client:
        for _ in range(2):
            client.sendall(head + offer + body)
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(1 << 16)
            assert b" 200 " in answer and b'"completion_tokens":2' in answer


def test_clients_that_leave_while_they_wait(served):
    clients = [connected(served) for _ in range(24)]
    for client in clients:
        client.sendall(request("/v1/completions", BODY))
    time.sleep(0.05)
    for client in clients:
        client.close()
    is_idle(served)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"{", 400),
        (b'{"prompt": "\xff\xfe"}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b"[" * 100_000, 400),
        (b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"prompt": "x", "temperature": NaN}', 400),
        (b'{"prompt": "x", "temperature": 1e999}', 400),
        (b"", 400),
    ],
)
def test_bodies_that_are_no_request(http, data, status):
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"):
        response = http.post(path, content=data, headers={"content-type": "application/json"})
        assert response.status_code == status and response.json()["error"]["message"]


def test_nested_messages_are_refused(http):
    deep = 1
    for _ in range(500):
        deep = [deep]
    response = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x", "extra": deep}], "max_tokens": 1})
    assert response.status_code == 400 and "nested" in response.json()["error"]["message"]


def test_large_bodies_and_other_types(llm):
    with serving(llm, max_body_bytes=10_000) as served, httpx.Client(base_url=served.address, timeout=20) as http:
        for size in (10_001, 150_000, 1_000_000):
            response = http.post("/v1/completions", json={"prompt": "x" * size})
            assert response.status_code == 413 and "10,000" in response.json()["error"]["message"]
        assert http.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_body_of_100_megabytes(served, http):
    def body():
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * 1_000_000
        yield b'"}'

    response = http.post("/v1/completions", content=body())
    assert response.status_code == 413 and http.post("/v1/completions", json=BODY | {"max_tokens": 1}).status_code == 200


def test_a_heavy_template_ends_its_own_request(llm):
    with serving(llm, trust_request_chat_template=True) as served, httpx.Client(base_url=served.address, timeout=20) as http:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template": "{{ 'a' * 10**9 }}"}
        response = http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400 and "chat_template was stopped" in response.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json=body | {"chat_template": "{{ messages[0].content }}"}).status_code == 200
        is_idle(served)


def test_a_clock_that_jumps_changes_nothing(http, monkeypatch):
    times = itertools.cycle((0.0, 4e9, 1e9))
    monkeypatch.setattr(time, "time", lambda: next(times))
    for _ in range(3):
        response = http.post("/v1/completions", json=BODY | {"max_tokens": 4, "deadline": 30})
        assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 4


def test_half_open_connections_and_bodies_that_stop(llm):
    with serving(llm, io_seconds=0.3) as served:
        silent, half, stopped = connected(served), connected(served), connected(served)
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: ")
        stopped.sendall(request("/v1/completions", b'{"prompt":', length=100))
        assert b" 408 " in stopped.recv(1000)
        for client in (silent, half):
            with pytest.raises(ConnectionResetError):
                assert client.recv(1000) == b""
                raise ConnectionResetError
        is_idle(served)


def test_a_reader_that_stalls_delays_nobody(served, http):
    with connected(served) as slow:
        slow.sendall(request("/v1/completions", BODY | {"stream": True, "max_tokens": 100}))
        assert http.post("/v1/completions", json=BODY | {"max_tokens": 4}).status_code == 200
        is_idle(served)
        text = b""
        while b"[DONE]" not in text:
            text += slow.recv(1 << 16)
    assert text.count(b'"finish_reason":"length"') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_reader_that_never_reads_is_given_up(llm, monkeypatch, stream):
    with serving(llm, io_seconds=0.3) as served:
        monkeypatch.setattr(served.server.engine.client, "submit", answering("x" * 20_000_000, size=1_000_000))
        with connected(served) as client:
            client.sendall(request("/v1/completions", {"prompt": "x", "stream": stream}))
            select.select([client], [], [], 20)  # an answer has begun
            assert stream is False or served.server.admission.open.total() == 1
            time.sleep(0.8)
            is_idle(served)
            received = 0
            while part := client.recv(1 << 20):  # what the system had buffered
                received += len(part)
            assert received < 15_000_000


def test_a_full_server_says_when_to_come_back(llm):
    with serving(llm, max_queued=1, max_completions=9) as served:  # beside 8 that run
        running = [connected(served) for _ in range(9)]
        for client in running:
            client.sendall(request("/v1/completions", BODY))
        while served.server.admission.open.total() < 9:
            time.sleep(0.002)
        refused = httpx.post(f"{served.address}/v1/completions", json=BODY)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        for client in running:
            client.close()
        is_idle(served)
        assert httpx.post(f"{served.address}/v1/completions", json=BODY | {"max_tokens": 1}, timeout=20).status_code == 200


def test_deadlines_end_requests(http):
    for stream in (False, True):
        response = http.post("/v1/completions", json=BODY | {"deadline": 0.0, "stream": stream})
        assert response.status_code == 504 and "deadline" in response.json()["error"]["message"].lower()


def test_open_answers_are_finished_before_the_server_ends(llm):
    texts = []
    with serving(llm) as served:
        asking = threading.Thread(
            target=lambda: texts.append(httpx.post(f"{served.address}/v1/completions", json=BODY | {"max_tokens": 100}, timeout=30).json())
        )
        asking.start()
        while not served.stats().num_running:
            time.sleep(0.002)
    asking.join(30)
    assert texts[0]["choices"][0]["finish_reason"] == "length" and texts[0]["usage"]["completion_tokens"] == 100


def test_answers_that_take_longer_end_with_an_error(llm):
    with serving(llm, drain_seconds=0.2) as served:
        client, silent = connected(served), connected(served)
        client.sendall(request("/v1/completions", BODY | {"stream": True}))
        silent.sendall(request("/v1/completions", BODY))
        answer = client.recv(1 << 16)  # the stream has begun
        while served.stats().num_running < 2:
            time.sleep(0.002)
    while part := client.recv(1 << 16):
        answer += part
    assert b'"engine_dead"' in answer and answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b" 503 " in silent.recv(1 << 16)


def test_a_request_that_gave_its_memory_to_others_may_be_sent_again():
    error = error_of("PreemptedError", "No room.")
    assert (error.status, error.code) == (503, "preempted") and "retry-after" in error.headers


def test_unknown_paths_and_methods(http):
    assert http.get("/v1/nothing").status_code == 404 and "POST /v1/completions" in http.get("/v1/nothing").json()["error"]["message"]
    assert http.get("/v1/completions").status_code == 405 and http.options("/v1/completions").status_code == 405
    assert not any(name.startswith("access-control") for name in http.get("/v1/models", headers={"origin": "http://x"}).headers)
