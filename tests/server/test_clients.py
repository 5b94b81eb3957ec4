"""OpenAI's and Anthropic's clients, unmodified, over the loopback address."""

import json

import pytest

PROMPT = [{"role": "user", "content": "def add(a, b):"}]
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}]
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"q": "}\\"é"}}\n</tool_call>'


@pytest.fixture
def openai(served):
    client = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    with client.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


@pytest.fixture
def anthropic(served):
    client = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    with client.Anthropic(base_url=served.address, api_key="none", max_retries=0, timeout=30) as made:
        yield made


def test_openai_completions(openai):
    options = dict(model="bundled", prompt="import", temperature=0, max_tokens=6)
    whole = openai.completions.create(**options)
    pieces = [chunk.choices[0].text for chunk in openai.completions.create(**options, stream=True)]
    assert "".join(pieces) == whole.choices[0].text and whole.usage.completion_tokens == 6
    assert [model.id for model in openai.models.list()] == ["bundled"]


@pytest.mark.parametrize("name", ["bundled", "owner/name 1.gguf"])
def test_openai_retrieves_the_model(openai, served, monkeypatch, name):
    import openai as module

    monkeypatch.setattr(served.server, "model_name", name)
    [listed] = openai.models.list()
    assert openai.models.retrieve(name) == listed and listed.id == name
    for unknown in ("other", "owner/name", f"{name}/"):
        with pytest.raises(module.NotFoundError) as caught:
            openai.models.retrieve(unknown)
        assert (caught.value.code, caught.value.param, caught.value.type) == ("model_not_found", "model", "invalid_request_error")
        assert repr(unknown) in str(caught.value) and repr(name) in str(caught.value)
    assert openai.get("/models/", cast_to=dict) == openai.get("/models", cast_to=dict)


def test_openai_chat(openai):
    options = dict(model="bundled", messages=PROMPT, temperature=0, max_tokens=6)
    whole = openai.chat.completions.create(**options)
    *chunks, last = openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 6


def test_openai_errors_are_its_exceptions(openai):
    import openai as module

    with pytest.raises(module.BadRequestError) as caught:
        openai.completions.create(model="bundled", prompt="x", temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(module.NotFoundError):
        openai.completions.create(model="other", prompt="x")


def test_openai_tools(openai, saying):
    options = dict(model="bundled", messages=PROMPT, tools=TOOLS)
    saying("Let me see. " + CALL)
    whole = openai.chat.completions.create(**options)
    with openai.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion()
    for found in (whole.choices[0], streamed.choices[0]):
        [call] = found.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("lookup", '{"q": "}\\"é"}') and call.id and call.type == "function"
        assert found.finish_reason == "tool_calls" and found.message.content == "Let me see. "


def test_openai_responses(openai, saying):
    saying("Well. " + CALL)
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    options = dict(model="bundled", input=PROMPT, tools=tools, store=False, instructions="Be brief.")
    whole = openai.responses.create(**options)
    with openai.responses.stream(**options) as stream:
        kinds = [one.type for one in stream]
        streamed = stream.get_final_response()
    for found in (whole, streamed):
        assert found.output_text == "Well. " and found.status == "completed" and found.usage.input_tokens > 0
        assert (found.output[1].name, found.output[1].arguments) == ("lookup", '{"q": "}\\"é"}')
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    history = [*PROMPT, *whole.output, {"type": "function_call_output", "call_id": whole.output[1].call_id, "output": "5"}]
    assert openai.responses.create(**options | dict(input=history)).usage.input_tokens > whole.usage.input_tokens


def test_anthropic_messages(anthropic, saying):
    saying("Well. " + CALL)
    tools = [{"name": "lookup", "input_schema": TOOLS[0]["function"]["parameters"]}]
    options = dict(model="bundled", max_tokens=64, messages=PROMPT, tools=tools, system="Be brief.")
    whole = anthropic.messages.create(**options)
    with anthropic.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    for found in (whole, streamed):
        text, call = found.content
        assert (text.text, call.name, call.input) == ("Well. ", "lookup", {"q": '}"é'}) and found.stop_reason == "tool_use"
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": whole.content[1].id, "content": "5"}]}
    history = [*PROMPT, {"role": "assistant", "content": whole.content}, result]
    counted = anthropic.messages.count_tokens(**{name: options[name] for name in ("model", "messages", "system", "tools")})
    longer = anthropic.messages.count_tokens(model="bundled", messages=history, system="Be brief.", tools=tools)
    assert longer.input_tokens > counted.input_tokens


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", None),
        ('{"a": NaN}', {}),
        ('{"a": "', {}),
    ],
    ids=["large integer", "half a character", "nested", "no JSON", "cut off"],
)
def test_arguments_reach_anthropic_as_the_model_wrote_them(http, saying, written, given):
    saying('<tool_call>{"name": "f", "arguments": ' + written + "}</tool_call>")
    body = dict(max_tokens=64, messages=PROMPT, tools=[{"name": "f", "input_schema": {}}])
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200 and json.loads(answer.text)["content"][0]["input"] == (json.loads(written) if given is None else given)


def test_anthropic_errors_are_its_exceptions(anthropic):
    import anthropic as module

    with pytest.raises(module.BadRequestError) as caught:
        anthropic.messages.create(model="bundled", max_tokens=4, messages=[{"role": "robot", "content": "x"}])
    assert caught.value.body["error"]["type"] == "invalid_request_error" and "messages[0].role" in caught.value.message
    assert anthropic.messages.create(model="bundled", max_tokens=4, messages=PROMPT).stop_reason == "max_tokens"
