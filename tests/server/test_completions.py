"""POST /v1/completions: the texts of LLM.generate, in OpenAI's form."""

import json
import re

import pytest

from minllm import SamplingParams

PROMPT = "def fibonacci(n):"
GREEDY = {"temperature": 0, "max_tokens": 8}


def post(http, **body):
    return http.post("/v1/completions", json=body)


def events(response):
    """The data of a stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture(scope="module")
def reference(llm):
    """Outputs of the engine itself."""
    import asyncio

    async def run(prompt, params):
        async for output in llm.generate(prompt, params):
            last = output
        return last

    return lambda prompt, **params: asyncio.run(run(prompt, SamplingParams(**params)))


def test_the_text_is_the_engines(http, reference):
    wanted = reference(PROMPT, temperature=0, max_tokens=8, repetition_penalty=1.05)
    answer = post(http, prompt=PROMPT, **GREEDY).json()
    [choice] = answer["choices"]
    assert choice["text"] == wanted.outputs[0].text and choice["finish_reason"] == "length" and choice["index"] == 0
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(wanted.prompt_token_ids), 8)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert post(http, prompt=wanted.prompt_token_ids, **GREEDY).json()["choices"] == answer["choices"]


def test_a_stream_is_the_same_text(http):
    prompt = "日本 " + PROMPT  # a token may be a part of a character
    body = dict(prompt=[prompt, "import"], n=2, temperature=1, seed=5, max_tokens=6, logprobs=2, echo=True)
    whole = post(http, **body).json()
    chunks = events(post(http, **body, stream=True, stream_options={"include_usage": True}))
    *chunks, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 24
    for choice in whole["choices"]:
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["finish_reason"] for part in parts][-1] == choice["finish_reason"]
        for name in ("tokens", "text_offset"):
            assert [item for part in parts for item in part["logprobs"][name]] == choice["logprobs"][name]
    assert whole["choices"][0]["text"].startswith(prompt) and whole["choices"][2]["text"].startswith("import")
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]


def ended(http):
    """How many completions have ended, by /metrics."""
    return sum(float(count) for count in re.findall(r"vllm:request_success_total\{.*\} (\S+)", http.get("/metrics").text))


def test_each_completion_of_a_stream_ends_once(http):
    body = dict(prompt=PROMPT, n=4, temperature=1, seed=3, max_tokens=40, stop=["e"])
    lengths = {len(choice["logprobs"]["tokens"]) for choice in post(http, **body, logprobs=0).json()["choices"]}
    assert len(lengths) > 1  # some go on when others have ended
    before = ended(http)
    choices = [choice for chunk in events(post(http, **body, stream=True)) for choice in chunk["choices"]]
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2, 3]
    assert ended(http) == before + 4


def test_log_probabilities_of_prompt_and_text(http, reference):
    wanted = reference(PROMPT, temperature=0, max_tokens=4, logprobs=1, prompt_logprobs=1, repetition_penalty=1.05)
    answer = post(http, prompt=PROMPT, temperature=0, max_tokens=4, logprobs=1, echo=True).json()
    found = answer["choices"][0]["logprobs"]
    ids = [*wanted.prompt_token_ids, *wanted.outputs[0].token_ids]
    positions = [*wanted.prompt_logprobs, *wanted.outputs[0].logprobs]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    expected = [position[one].logprob for position, one in zip(positions[1:], ids[1:], strict=True)]
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    assert "".join(found["tokens"]) == answer["choices"][0]["text"]
    scored = post(http, prompt=PROMPT, max_tokens=0, logprobs=1, echo=True).json()["choices"][0]
    assert scored["text"] == PROMPT and len(scored["logprobs"]["tokens"]) == len(wanted.prompt_token_ids)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_an_echo_begins_with_the_tokens_that_are_left_of_a_prompt(http, max_tokens):
    ids = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    kept = http.post("/detokenize", json={"tokens": ids[-3:]}).json()["prompt"]
    body = dict(prompt=PROMPT, truncate_prompt_tokens=3, max_tokens=max_tokens, temperature=0, logprobs=0, echo=True)
    [choice] = post(http, **body).json()["choices"]
    assert choice["text"].startswith(kept) and len(kept) < len(PROMPT)
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert [choice["text"][at : at + len(token)] for at, token in zip(offsets, tokens)] == tokens
    parts = [chunk["choices"][0]["text"] for chunk in events(post(http, **body, stream=True))]
    assert "".join(parts) == choice["text"]


def test_best_of_returns_the_best(http):
    choices = post(http, prompt=PROMPT, temperature=1, seed=1, max_tokens=4, n=2, best_of=4, logprobs=0).json()["choices"]
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
    assert len(choices) == 2 and sums == sorted(sums, reverse=True)
    refused = post(http, prompt=PROMPT, n=1, best_of=2, stream=True)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "best_of"


def test_unknown_and_null_fields_are_ignored(http):
    ignored = dict(logprobs=None, repetition_penalty=None, stream_options=None, suffix=None)
    ignored |= dict(foo={"bar": 1}, response_format={"type": "text"})
    assert post(http, prompt=PROMPT, **GREEDY, **ignored).json()["choices"] == post(http, prompt=PROMPT, **GREEDY).json()["choices"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (dict(temperature=3), "temperature"),
        (dict(top_p="x"), "top_p"),
        (dict(n=0), "n"),
        (dict(n=129), "n"),
        (dict(n=2, temperature=0), "n"),
        (dict(max_tokens=-1), "max_tokens"),
        (dict(logit_bias={"x": 1}), None),
        (dict(stop=[1]), "stop[0]"),
        (dict(suffix="x"), "suffix"),
        (dict(prompt={}), "prompt"),
        (dict(prompt=[]), "prompt"),
        (dict(prompt=[[]]), "prompt"),
        (dict(prompt=[[1], []]), "prompt"),
        (dict(prompt="x" * 100_000), None),
        (dict(prompt=[99999999]), None),
        (dict(prompt=[-1]), None),
        (dict(prompt=["a", [1]]), "prompt"),
        (dict(prompt=[1, True]), "prompt"),
        (dict(prompt=[[1], [1.5]]), "prompt"),
        (dict(prompt=5), "prompt"),
        (dict(best_of=0), "best_of"),
        (dict(logprobs=21), "logprobs"),
        (dict(cache_salt=""), "cache_salt"),
        (dict(priority=2**70), "priority"),
        (dict(deadline=-1), "deadline"),
        (dict(logits_processors=["x"]), "logits_processors"),
        (dict(seed=1e300), "seed"),
    ],
)
def test_a_wrong_field_is_named(http, body, param):
    response = post(http, **dict(prompt="x", max_tokens=1) | body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error" and error["message"]
    assert param is None or error["param"] == param
    assert post(http, **dict(prompt="x", max_tokens=1) | body, stream=True).status_code == 400


@pytest.mark.parametrize(
    "path, text", [("completions", dict(prompt="x")), ("chat/completions", dict(messages=[dict(role="user", content="x")]))]
)
def test_a_stream_refuses_log_probabilities_that_it_would_drop(http, path, text):
    """vLLM: `prompt_logprobs` are not available when `stream=True`."""
    response = http.post(f"/v1/{path}", json=dict(text, max_tokens=1, stream=True, prompt_logprobs=1))
    assert response.status_code == 400 and response.json()["error"]["param"] == "prompt_logprobs"


def test_another_model_is_not_found(http):
    response = post(http, prompt="x", model="gpt-9")
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"


def test_what_vllms_benchmark_client_sends_and_reads(http):
    """vllm/benchmarks/lib/endpoint_request_func.py: null fields, a chunk per token, and usage in a last chunk without choices."""
    body = {"model": "bundled", "prompt": PROMPT, "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 8, "logprobs": None}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "min_p": None}
    response = http.post("/v1/completions", json=body, headers={"x-request-id": "bench-1", "authorization": "Bearer none"})
    *chunks, last = events(response)
    assert all(isinstance(chunk["choices"][0]["text"], str) for chunk in chunks)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8
    messages = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    del body["prompt"], body["max_tokens"]
    *chunks, last = events(http.post("/v1/chat/completions", json=body | {"messages": messages, "max_completion_tokens": 8}))
    assert all("delta" in chunk["choices"][0] for chunk in chunks) and last["choices"] == [] and last["usage"]["completion_tokens"] == 8
