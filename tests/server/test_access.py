"""Keys, hosts, limits: who may use the server, and how much of it."""

import httpx
import pytest

from minllm.errors import InvalidOptionError
from minllm.server.access import caller, check_host, salt
from minllm.server.admission import Admission
from minllm.server.deadline_admission import DeadlineAdmission
from minllm.server.errors import ApiError
from minllm.server.in_process import serving
from minllm.server.options import ServerOptions

BODY = {"prompt": "x", "max_tokens": 1}


def test_a_key_is_needed_for_all_but_the_status(llm):
    with serving(llm, api_keys=("secret", "other")) as served, httpx.Client(base_url=served.address) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"x-api-key": "é"}):
            headers = {name: value.encode() for name, value in headers.items()}
            response = http.post("/v1/completions", json=BODY, headers=headers)
            assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
        for headers in ({"authorization": "Bearer other"}, {"x-api-key": "secret"}):
            assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 200
        assert [http.get(path).status_code for path in ("/health", "/version", "/metrics", "/v1/models", "/v1/models/x")] == [
            200,
            200,
            200,
            401,
            401,
        ]
        error = http.post("/v1/messages", json={}).json()
        assert error["type"] == "error" and error["error"]["type"] == "authentication_error"


def test_each_key_has_cached_prefixes_of_its_own(llm):
    prompt = "import os\n" * 20
    with serving(llm, api_keys=("first", "second")) as served, httpx.Client(base_url=served.address) as http:

        def cached(key, **more):
            headers = {"authorization": f"Bearer {key}"}
            usage = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, **more}, headers=headers).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert cached("first") == 0 and cached("first") > 0
        assert cached("second") == 0 and cached("first", cache_salt="mine") == 0 and cached("first", cache_salt="mine") > 0


def test_names_of_the_host():
    local = ServerOptions().hosts
    for host in ("localhost:8000", "LocalHost", "127.0.0.1", "[::1]:80"):
        check_host({"host": host}, local)
    for host in ("evil.example", "localhost.evil.example:8000", ""):
        with pytest.raises(ApiError, match="not served here") as caught:
            check_host({"host": host}, local)
        assert caught.value.status == 403
    assert ServerOptions(host="0.0.0.0").hosts is None
    check_host({"host": "inner:80"}, ServerOptions(allowed_hosts=("inner",)).hosts)


def test_callers_of_two_keys_differ_and_salts_with_them():
    keys = ("a", "b")
    first, second = (caller({"authorization": f"Bearer {key}"}, keys) for key in keys)
    assert first != second and caller({"authorization": "bearer a"}, keys) == first and caller({}, ()) == ""
    assert salt(first, "x") != salt(second, "x") and salt("", None) is None and salt("", "x") == "x"


def test_admission_counts_open_completions():
    admission = Admission(most=4, most_per_key=3, most_per_request=3)
    with pytest.raises(ApiError) as caught, admission.admitted("a", 4):
        pass
    assert caught.value.status == 400
    with admission.admitted("a", 3):
        for who, completions in (("a", 1), ("b", 2)):
            with pytest.raises(ApiError) as caught, admission.admitted(who, completions):
                pass
            assert caught.value.status == 429 and caught.value.headers == {"retry-after": "1"}
        with admission.admitted("b", 1):
            assert admission.open.total() == 4
    assert not admission.open


def test_a_request_that_would_be_late_is_refused():
    deadlines = DeadlineAdmission(places=2)
    admission = Admission(most=9, most_per_key=None, most_per_request=9, deadlines=deadlines)
    with admission.admitted("a", 1, 1e-9):  # nothing has ended yet, so nothing is known
        pass
    deadlines.observe(3.0)
    with admission.admitted("a", 2), admission.admitted("a", 2):  # 3 s for two of them, then 3 s for the others
        with admission.admitted("a", 2, 9.0):
            pass
        with pytest.raises(ApiError, match="deadline of 8.9 s: 4 completions are before") as caught, admission.admitted("a", 2, 8.9):
            pass
    assert caught.value.status == 429 and not admission.open
    for _ in range(100):
        deadlines.observe(1.0)
    assert abs(deadlines.seconds - 1) < 0.001


def test_late_requests_are_refused_over_http(llm):
    with serving(llm, refuse_late=True) as served, httpx.Client(base_url=served.address, timeout=30) as http:
        assert http.post("/v1/completions", json=BODY | {"max_tokens": 50, "ignore_eos": True}).status_code == 200
        assert served.server.admission.deadlines.seconds > 0
        refused = http.post("/v1/completions", json=BODY | {"deadline": 1e-6})
        assert refused.status_code == 429 and "deadline" in refused.json()["error"]["message"]
        assert http.post("/v1/completions", json=BODY | {"deadline": 30}).status_code == 200


@pytest.mark.parametrize(
    "given",
    [dict(port=70000), dict(max_body_bytes=0), dict(api_keys=(" ",)), dict(deadline=0.0), dict(tool_parser="x"), dict(io_seconds=1e400)],
)
def test_options_that_are_refused(given):
    with pytest.raises(InvalidOptionError):
        ServerOptions(**given)
