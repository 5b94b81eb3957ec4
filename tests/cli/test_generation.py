"""`generate` and `chat` with many prompts, many completions, log-probabilities and JSON, held against LLM itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

from minllm import LLM, BeamSearchParams, SamplingParams
from minllm.cli import app as cli
from minllm.cli.generation_options import REQUEST_OPTIONS, STRUCTURES, meanings
from minllm.cli.options import ENGINE_OPTIONS, LLM_OPTIONS, OTHER_NAMES
from minllm.engine.options import EngineOptions
from tests.cli.test_cli import run, runner


@pytest.fixture
def llm(model_directory):
    """The model of the commands below, loaded as they load it."""
    with LLM(model_directory, device="cpu") as llm:
        yield llm


@pytest.fixture
def base(model_directory):
    """The options that every command below has."""
    return ["--model", model_directory, "--device", "cpu"]


def params(**given):
    """SamplingParams over the fixture's generation_config.json."""
    return SamplingParams(**{"temperature": 0.9, "max_tokens": 8} | given)


def test_every_parameter_has_a_meaning_that_help_shows():
    for kind in (SamplingParams, BeamSearchParams):
        assert list(meanings(kind)) == [field.name for field in fields(kind)]
    shown = runner.invoke(cli.app, ["generate", "--help"], env={"COLUMNS": "400"}).output
    assert all(f"--{option.name.replace('_', '-')}" in shown for option in (*REQUEST_OPTIONS, *LLM_OPTIONS.values()))
    assert "Divides the logits; 0 takes the likeliest token each time (greedy), 2 is the highest allowed." in shown


def test_options_have_the_names_of_the_library():
    defaults = {field.name: field.default for field in fields(EngineOptions)}
    assert all(defaults[OTHER_NAMES.get(name, name)] == option.default for name, option in ENGINE_OPTIONS.items())
    assert {option.name for option in REQUEST_OPTIONS} <= {field.name for field in fields(SamplingParams)} | {*STRUCTURES}


def test_all_options_reach_the_request(base, llm):
    given = dict(seed=3, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.1, presence_penalty=-0.5, frequency_penalty=0.5)
    given |= dict(min_tokens=2, ignore_eos=True, stop=["zz"], stop_token_ids=[5, 6])
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name not in ("ignore_eos", "stop", "stop_token_ids")]
    flags += ["--ignore-eos", "--stop", "zz", "--stop-token-ids", "5, 6", "--max-tokens", 8, "--no-card", "--max-model-len", 64]
    result = run("generate", "abc", *base, *flags, "--enable-prefix-caching", "--dtype", "fp32")
    assert result.exit_code == 0 and result.stdout.rstrip("\n") == llm.generate("abc", params(**given))[0].outputs[0].text.rstrip("\n")


def test_several_completions(base, llm):
    result = run("generate", "abc", *base, "--n", 2, "--seed", 3, "--max-tokens", 8)
    (expected,) = llm.generate("abc", params(n=2, seed=3))
    texts = [completion.text for completion in expected.outputs]
    assert result.stdout == "".join(text if text.endswith("\n") else text + "\n" for text in texts)
    assert "--- prompt 1 of 1, completion 2 of 2" in result.stderr and "prompts: 1, 3 tokens; completions: 2, 16 tokens in" in result.stderr


def test_beam_search(base, llm, tmp_path):
    given = ["--beam-width", 2, "--length-penalty", 0.5, "--max-tokens", 5, "--json", tmp_path / "out.json"]
    result = run("generate", "abc", *base, *given)
    [expected] = llm.beam_search("abc", BeamSearchParams(2, max_tokens=5, length_penalty=0.5))
    assert result.stdout == "".join(one.text if one.text.endswith("\n") else one.text + "\n" for one in expected.sequences)
    assert f"--- prompt 1 of 1, sequence 2 of 2, log p {expected.sequences[1].cum_logprob:.3f}, length" in result.stderr
    [written] = json.loads((tmp_path / "out.json").read_text())
    assert [one["tokens"] for one in written["sequences"]] == [one.tokens for one in expected.sequences]


def test_sampling_options_do_not_go_with_beams(base):
    result = run("generate", "abc", *base, "--beam-width", 2, "--top-p", 0.5)
    assert result.exit_code == 2 and "beam search draws nothing" in result.stderr and "--top-p" in result.stderr
    result = run("generate", "abc", *base, "--length-penalty", 0.5)
    assert result.exit_code == 2 and "give --beam-width too" in result.stderr


def test_prompts_from_a_text_file(base, llm, tmp_path):
    (tmp_path / "prompts.txt").write_text("abc\r\n\n  de\n", encoding="utf-8")
    result = run("generate", *base, "--prompts", tmp_path / "prompts.txt", "--temperature", 0, "--no-card", "--max-tokens", 4)
    outputs = llm.generate(["abc", "  de"], params(temperature=0, max_tokens=4))
    assert result.exit_code == 0
    assert result.stdout.replace("\n", "") == "".join(output.outputs[0].text for output in outputs).replace("\n", "")


def test_prompts_with_parameters_of_their_own_and_json_lines(base, llm, tmp_path):
    lines = [{"prompt": "abc", "temperature": 0}, {"prompt_token_ids": [65, 66], "max_tokens": 3, "n": 2, "seed": 5, "cache_salt": "s"}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    files = ["--prompts", tmp_path / "prompts.jsonl", "--jsonl", tmp_path / "out.jsonl"]
    result = run("generate", *base, *files, "--seed", 3, "--logprobs", 1)
    assert result.exit_code == 0, result.stderr
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    expected = llm.generate(
        ["abc", [65, 66]], [params(temperature=0, seed=3, logprobs=1, max_tokens=128), params(max_tokens=3, n=2, seed=5, logprobs=1)]
    )
    for got, output in zip((first, second), expected, strict=True):
        assert [one["text"] for one in got["outputs"]] == [one.text for one in output.outputs]
        assert got["prompt"] == output.prompt and got["finished"]
    assert len(second["outputs"]) == 2 and len(second["outputs"][0]["logprobs"]) == 3


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("p.txt", "\n\n", "has no prompt"),
        ("p.txt", b"\xff", "not UTF-8"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": }', "line 2 is not valid JSON"),
        ("p.jsonl", '["a"]', "line 1 is not an object with a prompt"),
        ("p.jsonl", '{"text": "a"}', "line 1 is not an object with a prompt"),
        ("p.jsonl", '{"prompt": "a", "temprature": 1}', "line 1: temprature is not a field of SamplingParams; did you mean temperature?"),
        ("p.jsonl", '\n{"prompt": "a", "temperature": -1}', "line 2: temperature=-1"),
        ("p.jsonl", '{"prompt": 5}', "5"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt_token_ids": [300]}', "Prompt 1 of 2"),
    ],
)
def test_mistakes_in_a_file_of_prompts(base, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run("generate", *base, "--prompts", tmp_path / name)
    assert result.exit_code == 1 and words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""


def test_files_that_are_not_there(base, tmp_path):
    for arguments in (["generate", "--prompts", tmp_path / "none.txt"], ["chat", "--chat-template", tmp_path / "none"]):
        result = run(*arguments, *base, stdin="hello\n")
        assert result.exit_code == 1 and "none" in result.stderr and "cannot be read" in result.stderr and result.stderr.count("\n") == 1


def test_a_prompt_and_a_file_of_prompts(base, tmp_path):
    result = run("generate", "abc", *base, "--prompts", tmp_path / "p.txt")
    assert result.exit_code == 2 and "PROMPT" in result.stderr


def test_json_on_standard_output_is_all_that_is_there(base, llm):
    for extra in ([], ["--n", 2]):
        result = run("generate", "abc", *base, "--json", "-", "--seed", 3, "--max-tokens", 4, *extra)
        (output,) = json.loads(result.stdout)
        expected = llm.generate("abc", params(seed=3, max_tokens=4, n=2 if extra else 1))[0]
        assert [one["token_ids"] for one in output["outputs"]] == [one.token_ids for one in expected.outputs]


def test_log_probabilities_are_a_table(base, llm):
    result = run("generate", "abc", *base, "--temperature", 0, "--logprobs", 2, "--no-card", "--max-tokens", 3)
    completion = llm.generate("abc", params(temperature=0, logprobs=2, max_tokens=3))[0].outputs[0]
    rows = result.stderr.splitlines()
    assert rows[0].strip() == "output" and rows[1].split() == ["id", "token", "log", "p", "p", "rank", "likeliest"] and len(rows) == 5
    for row, token_id, named in zip(rows[2:], completion.token_ids, completion.logprobs, strict=True):
        assert row.split()[0] == str(token_id) and f"{named[token_id].logprob:.3f}" in row


def test_the_table_of_a_prompt():
    from rich.console import Console

    from minllm.cli.output_report import logprobs_table
    from minllm.engine.requests.outputs import Logprob

    console = Console(record=True, width=100, file=open(os.devnull, "w"))
    named = {7: Logprob(-0.1, 1, " [b]\\["), 9: Logprob(-2.5, 12, "\n")}
    console.print(logprobs_table("prompt", [5, 9], [None, named]))
    title, _, first, second = console.export_text().splitlines()
    assert title.strip() == "prompt" and first.split() == ["5"]
    assert second.split() == ["9", '"\\n"', "-2.500", "0.082", "12", '"', '[b]\\\\["', "0.905"]


def test_chat_with_a_template_from_a_file_and_json(base, llm, tmp_path):
    (tmp_path / "short.jinja").write_text("{% for m in messages %}{{ m.content }};{% endfor %}", encoding="utf-8")
    files = ["--chat-template", tmp_path / "short.jinja", "--json", tmp_path / "out.json"]
    result = run("chat", *base, *files, "--system", "Be brief.", "--temperature", 0, "--logprobs", 0, stdin="hello\n")
    assert result.exit_code == 0, result.stderr
    (output,) = json.loads((tmp_path / "out.json").read_text())
    (expected,) = llm.generate("Be brief.;hello;", params(temperature=0, max_tokens=8))
    assert output["prompt"] == "Be brief.;hello;" and output["outputs"][0]["text"] == expected.outputs[0].text
    assert output["metrics"]["generated_tokens"] == 8, "generation_config.json of the model says max_new_tokens=8"
    assert "log p" in result.stderr


def test_chat_with_a_template_by_name(base):
    plain, named = (run("chat", *base, *flags, "--temperature", 0, stdin="hello\n") for flags in ([], ["--chat-template", "default"]))
    assert named.exit_code == 0 and named.stdout == plain.stdout
    result = run("chat", *base, "--chat-template", "rag", stdin="hello\n")
    assert result.exit_code == 1 and "'rag' is neither Jinja source nor the name of one of the model's templates: default." in result.stderr


def test_the_shell_completes_commands_and_options():
    program = "import sys; sys.argv = ['minllm']; from minllm.cli.app import main; main()"
    for words, number, offered in (("minllm gen", 1, ["generate"]), ("minllm generate --top", 2, ["--top-k", "--top-p"])):
        environment = dict(os.environ, _MINLLM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(number))
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
        assert sorted(done.stdout.split()) == offered, done.stderr


STRUCTURED = {
    "[ab]{3}": ["--regex", "[ab]{3}"],
    "yes|no": ["--choice", "yes", "--choice", "no"],
    "[3-5]": ["--json-schema", "schema.json"],
    "x+": ["--grammar", "rules.lark"],
}


@pytest.mark.parametrize("pattern", STRUCTURED)
def test_structured_output(model_directory, tmp_path, monkeypatch, pattern):
    pytest.importorskip("llguidance")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "integer", "minimum": 3, "maximum": 5}')
    (tmp_path / "rules.lark").write_text('start: "x"+')
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "b", "structured_outputs": {"regex": "[cd]", "unknown": 1}}')
    shutil.copytree(model_directory, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": 256}')
    base = ["--model", "model", "--device", "cpu"]
    result = run("generate", "abc", *base, *STRUCTURED[pattern], "--max-tokens", 300, "--no-card", "--seed", 1)
    assert result.exit_code == 0 and re.fullmatch(pattern, result.stdout.rstrip("\n"))
    result = run("generate", "--prompts", "prompts.jsonl", *base)
    assert result.exit_code == 1 and "line 1: structured_outputs=" in result.output and "whitespace_pattern" in result.output
