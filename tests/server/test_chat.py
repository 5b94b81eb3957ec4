"""POST /v1/chat/completions: conversations, streams, usage, log-probabilities."""

import json

import pytest

MESSAGES = [{"role": "user", "content": "def add(a, b):"}]
GREEDY = {"temperature": 0, "max_tokens": 8}


def post(http, messages=MESSAGES, **body):
    return http.post("/v1/chat/completions", json={"messages": messages, **body})


def continued(http, messages=MESSAGES, **options):
    """The text after a conversation's prompt, through /tokenize and /v1/completions."""
    ids = http.post("/tokenize", json={"messages": messages, **options}).json()["tokens"]
    return http.post("/v1/completions", json={"prompt": ids, **GREEDY}).json()["choices"][0]["text"]


def chunks_of(response):
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert response.headers["content-type"].startswith("text/event-stream") and lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_is_the_completion_of_its_prompt(http):
    answer = post(http, **GREEDY).json()
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": continued(http), "refusal": None}
    assert choice["finish_reason"] == "length" and answer["object"] == "chat.completion"


def test_a_stream_is_the_same_text_with_usage(http):
    body = dict(n=2, temperature=1, seed=4, max_tokens=6, logprobs=True, top_logprobs=2)
    whole = post(http, **body).json()
    *chunks, last = chunks_of(post(http, **body, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert last["choices"] == [] and last["usage"] == whole["usage"] | {"prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    for choice in whole["choices"]:
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        content = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert [one["token"] for one in content] == [one["token"] for one in choice["logprobs"]["content"]]
        assert all(len(one["top_logprobs"]) == 2 for one in content)
    assert all("usage" in chunk for chunk in chunks)


def test_the_final_message_is_continued(http):
    messages = [*MESSAGES, {"role": "assistant", "content": "    return a"}]
    text = post(http, messages, continue_final_message=True, **GREEDY).json()["choices"][0]["message"]["content"]
    assert text == continued(http, messages, continue_final_message=True) != continued(http, messages)


@pytest.mark.parametrize("content", ["x = 1\n" * 600, "x" * 10**6], ids=["tokens", "characters"])
def test_a_chat_beyond_the_context_has_openais_code(http, content):
    refused = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "context_length_exceeded")
    assert "max_model_len=512" in error["message"]


def test_a_chat_without_a_limit_ends_at_the_context(http):
    answer = post(http, [{"role": "user", "content": "x = 1\n" * 120}], temperature=0, ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (dict(messages=[]), "messages"),
        (dict(messages="hi"), "messages"),
        (dict(messages=[{"role": "user"}]), None),
        (dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), None),
        (dict(top_logprobs=2), "top_logprobs"),
        (dict(top_logprobs=21, logprobs=True), "top_logprobs"),
        (dict(tools=[{"name": "f"}]), "tools[0]"),
        (dict(chat_template="{{ 1 }}"), "chat_template"),
        (dict(chat_template_kwargs={"messages": 1}), None),
        (dict(continue_final_message=True, add_generation_prompt=True), None),
    ],
)
def test_a_wrong_field_is_named(http, body, param):
    response = http.post("/v1/chat/completions", json=dict(messages=MESSAGES, max_tokens=1) | body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["message"]
    assert param is None or error["param"] == param


def test_marks_of_calls_that_are_special_tokens_are_kept(http):
    special = http.post("/detokenize", json={"tokens": [0]}).json()["prompt"]
    assert special
    body = dict(temperature=0, max_tokens=2, allowed_token_ids=[0], ignore_eos=True)
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {}}}]
    assert post(http, **body).json()["choices"][0]["message"]["content"] == ""
    assert post(http, tools=tools, **body).json()["choices"][0]["message"]["content"] == special * 2


def test_tools_reach_the_template(http):
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {}}}]
    text = post(http, tools=tools, **GREEDY).json()["choices"][0]["message"]["content"]
    assert text == continued(http, tools=tools) != continued(http)
    assert post(http, tools=tools, tool_choice="none", **GREEDY).json()["choices"] == post(http, **GREEDY).json()["choices"]
