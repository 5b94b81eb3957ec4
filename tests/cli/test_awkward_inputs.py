"""What users bring by accident, each with its outcome: either the text that was meant, or one line that names the place and the cause."""

import errno
import json
import re
import warnings

import pytest
from typer.testing import CliRunner

from minllm import LLM, SamplingParams
from minllm.cli import app as cli
from minllm.cli import generation
from minllm.cli.text_input import argument_text, unescaped
from minllm.models.source import open_source
from minllm.post_training import files

BOM = b"\xef\xbb\xbf"
GENERATE = ["generate", "--model", "MODEL", "--device", "cpu", "--temperature", "0", "--max-tokens", "12", "--no-card"]
CHAT = ["chat", *GENERATE[1:-1]]
QUANTIZE = ["quantize", "MODEL"]
INT8 = ["--format", "int8"]
GPTQ = [*INT8, "--method", "gptq"]


@pytest.fixture
def run(model_directory, tmp_path):
    """A function that runs a command with MODEL and DIR/ in its arguments as the paths of the model and of the test's directory."""

    def call(arguments, stdin=b""):
        paths = [one.replace("MODEL", str(model_directory)).replace("DIR", str(tmp_path)) for one in arguments]
        return CliRunner().invoke(cli.app, paths, input=stdin)

    return call


MEANT = {  # input -> (files, arguments, standard input) as it came, and as it was meant
    "a text file with a byte order mark and Windows' line ends": (
        ({"p.txt": BOM + b"abc\r\nde\r\n"}, [*GENERATE, "--prompts", "DIR/p.txt"], b""),
        ({"p.txt": b"abc\nde\n"}, [*GENERATE, "--prompts", "DIR/p.txt"], b""),
    ),
    "JSON lines with both": (
        ({"p.jsonl": BOM + b'{"prompt": "abc"}\r\n{"prompt": "a\\r\\nb"}\r\n'}, [*GENERATE, "--prompts", "DIR/p.jsonl"], b""),
        ({"p.jsonl": b'{"prompt": "abc"}\n{"prompt": "a\\r\\nb"}'}, [*GENERATE, "--prompts", "DIR/p.jsonl"], b""),
    ),
    "a pipe from Windows": (({}, [*GENERATE, "-", "--echo"], BOM + b"a\r\nb\r\n"), ({}, [*GENERATE, "a\nb", "--echo"], b"")),
    "a conversation from Windows": (({}, CHAT, BOM + b"abc\r\nde\r\n"), ({}, CHAT, b"abc\nde\n")),
    "a prompt in an ASCII locale": (({}, [*GENERATE, "a\udcc3\udca9", "--echo"], b""), ({}, [*GENERATE, "aé", "--echo"], b"")),
    "a chat template with a byte order mark": (
        ({"t.jinja": BOM + b"{{ messages[0].content }}\r\n!"}, [*CHAT, "--chat-template", "DIR/t.jinja"], b"abc"),
        ({"t.jinja": b"{{ messages[0].content }}\n!"}, [*CHAT, "--chat-template", "DIR/t.jinja"], b"abc"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_input_is_taken_as_it_was_meant(run, tmp_path, name):
    results = []
    for contents, arguments, stdin in MEANT[name]:
        for file, content in contents.items():
            (tmp_path / file).write_bytes(content)
        results.append(run(arguments, stdin))
    assert [one.exit_code for one in results] == [0, 0], results[0].stderr
    assert results[0].stdout == results[1].stdout


REFUSED = {  # input -> (files, arguments, standard input, what the line says)
    "a text in UTF-16": ({"p.txt": "abc\n".encode("utf-16")}, [*GENERATE, "--prompts", "DIR/p.txt"], b"", "p.txt is not UTF-8 .*UTF-16"),
    "a prompt cut within a character": ({}, [*GENERATE, "-"], b"ab\xc3", r"standard input is not UTF-8 text \(byte 2\)"),
    "a byte order mark alone": ({}, [*GENERATE, "-"], BOM, "The prompt is an empty string"),
    "a second line of a chat in Latin-1": ({}, CHAT, b"abc\ncaf\xe9\n", "standard input is not UTF-8"),
    "a stop text that is no UTF-8": ({}, [*GENERATE, "abc", "--stop", "\udcff"], b"", "the command line is not UTF-8"),
    "JSON lines below a file": ({"f": b""}, [*GENERATE, "abc", "--jsonl", "DIR/f/out"], b"", "f/out cannot be written: Not a directory"),
    "JSON lines on a full disk": ({}, [*GENERATE, "abc", "--jsonl", "/dev/full"], b"", "/dev/full cannot be written: No space left"),
    "quantize on a full disk": ({}, [*QUANTIZE, "DIR/new/out", *INT8], b"", "new/out cannot be written: No space left on device; nothing"),
    "quantize below a file": ({"f": b""}, [*QUANTIZE, "DIR/f/out", *INT8], b"", "f/out cannot be written: Not a directory"),
    "quantize over a link to nothing": ({}, [*QUANTIZE, "DIR/link", *INT8], b"", "link exists: give the name of a new directory"),
    "quantize into a file": ({"f": b"kept"}, [*QUANTIZE, "DIR/f", *INT8], b"", "f exists: give the name of a new directory"),
    "quantize with a text in Latin-1": ({"t": b"caf\xe9"}, [*QUANTIZE, "DIR/out", *GPTQ, "--text", "DIR/t"], b"", "t is not UTF-8 text"),
    "quantize an adapter": (
        {"adapter_config.json": b'{"base_model_name_or_path": "a/b"}'}, ["quantize", "DIR", "DIR/out", *INT8], b"",
        "holds an adapter .adapter_config.json., not a whole model, .* base model 'a/b' first",
    ),
    "an adapter as the model": ({"adapter_config.json": b"{}"}, [*GENERATE, "abc", "--model", "DIR"], b"", "holds an adapter"),
    "a configuration cut short": ({"config.json": BOM + b'{"a": '}, [*GENERATE, "abc", "--model", "DIR"], b"", "json is not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_one_line_and_leave_nothing(run, tmp_path, name, monkeypatch):
    contents, arguments, stdin, says = REFUSED[name]
    for file, content in contents.items():
        (tmp_path / file).write_bytes(content)
    (tmp_path / "link").symlink_to("nowhere")
    write = files.write_safetensors

    def write_some(path, tensors):
        """As on a disk that gets full with the second file."""
        if "00002" in path.name:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, tensors)

    if "quantize on a full disk" == name:
        monkeypatch.setattr(files, "write_safetensors", write_some)
    before = sorted(tmp_path.rglob("*"))
    result = run(arguments, stdin)
    assert result.exit_code == 1
    *notes, line = result.stderr.splitlines()
    assert line.startswith("minllm: ") and all(one.startswith("sampling: ") for one in notes)
    assert re.search(says, line), line
    assert sorted(tmp_path.rglob("*")) == before and all((tmp_path / file).read_bytes() == content for file, content in contents.items())


REFUSED_FIRST = {  # what is known to fail -> (arguments, standard input, what the line says)
    "JSON into a folder": ([*GENERATE, "abc", "--json", "DIR"], b"", "cannot be written: Is a directory. Name a file in a folder"),
    "JSON lines into no folder": ([*GENERATE, "abc", "--jsonl", "DIR/no/x"], b"", "no/x cannot be written: No such file or directory"),
    "a chat without a template": (["chat", "--device", "cpu"], b"Hi", "This model has no chat template"),
    "a chat by an unknown template": ([*CHAT, "--chat-template", "rag"], b"Hi", "'rag' is neither Jinja source nor the name of one"),
    "a template without system messages": (
        [*CHAT, "--system", "Be brief", "--chat-template", "DIR/t.jinja"], b"Hi", "does not take these messages: no system",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_FIRST)
def test_refused_before_a_model_is_loaded(run, tmp_path, name, monkeypatch):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no system') if messages[0].role == 'system' }}")
    monkeypatch.setattr(generation, "load", lambda options: pytest.fail("a model is loaded"))
    arguments, stdin, says = REFUSED_FIRST[name]
    result = run(arguments, stdin)
    assert (result.exit_code, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("minllm: ") and says in line, line


@pytest.mark.parametrize("command", ["plan llama-3.1-8b --json", "inspect --json", "bench cache --json", "race DIR/race.py --svg"])
def test_no_command_works_for_a_file_that_cannot_be_written(run, tmp_path, command):
    result = run([*command.split(), "DIR"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"minllm: {tmp_path} cannot be written: Is a directory. Name a file in a folder that exists.\n"


IDLE = {  # options without effect -> (arguments, the flag that is named)
    "a plan of nothing": (["plan", "--gpu", "h200", "--batch", "4"], "--batch"),
    "a folder for the list of exercises": (["exercise", "--out", "DIR/x"], "--out"),
    "the code of all kernels": (["inspect", "--ptx"], "--ptx"),
    "a picture of a race that is not run": (["race", "--new", "softmax", "DIR/x.py", "--svg", "DIR/x.svg"], "--svg"),
    "a text for rounding": ([*QUANTIZE, "DIR/x", *INT8, "--text", __file__], "--text"),
    "a number of tokens for rounding": ([*QUANTIZE, "DIR/x", *INT8, "--tokens", "9"], "--tokens"),
    "a model beside all sources of drafts": (["bench", "speculation", "--counts", "1", "--model", "bundled"], "--model"),
    "layers beside attention alone": (["bench", "ranks", "--context-parallel", "2", "--prompt", "9"], "--prompt"),
}  # fmt: skip


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_refused(run, tmp_path, name):
    arguments, flag = IDLE[name]
    result = run(arguments)
    said = " ".join(result.stderr.replace("│", " ").split())
    assert (result.exit_code, result.stdout) == (2, "") and f"Invalid value for {flag}: " in said and said.count("leave it out") == 1, said
    assert not list(tmp_path.iterdir())


def test_a_file_for_both_forms_of_json_is_refused(run, tmp_path):
    result = run([*GENERATE, "abc", "--json", "DIR/x", "--jsonl", "DIR/x"])
    assert result.exit_code == 2 and "--json has the same file" in result.stderr and not list(tmp_path.iterdir())


def test_an_exercise_is_not_written_over_a_file(run, tmp_path):
    (tmp_path / "f").write_text("kept")
    result = run(["exercise", "2", "--out", "DIR/f"])
    assert (result.exit_code, result.stderr) == (1, f"minllm: {tmp_path / 'f'} cannot be made: File exists; give another folder\n")


def test_an_interrupt_leaves_nothing_either(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.new_directory(tmp_path / "a" / "b" / "out") as unfinished:
        (unfinished / "half").write_text("")
        assert unfinished.parent == tmp_path / "a" / "b"
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_json_lines_are_lines_for_every_reader(run, tmp_path):
    prompts = ["a\u2028b", "a\x85b", "a\u2029\x0cb"]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": one}, ensure_ascii=False) for one in prompts), encoding="utf-8")
    result = run([*GENERATE, "--prompts", "DIR/p.jsonl", "--jsonl", "-"])
    assert [json.loads(line)["prompt"] for line in result.stdout.splitlines()] == prompts


def test_a_stop_text_may_be_written_with_escapes(run):
    text = run([*GENERATE, "abc"]).stdout.rstrip("\n")
    stop = text[2]
    assert run([*GENERATE, "abc", "--stop", f"\\u{ord(stop):04x}"]).stdout.rstrip("\n") == text[: text.index(stop)]


def test_escapes_of_stop_texts():
    assert [unescaped(one) for one in (r"\n\t\r", r"a\\nb", r"\d\u00e9\u12", "é\\")] == ["\n\t\r", r"a\nb", r"\dé\u12", "é\\"]
    assert argument_text("é") == "é"


def test_a_model_directory_saved_on_windows(model_directory, tmp_path):
    """Every text file of it begins with a byte order mark."""
    for path in model_directory.iterdir():
        is_text = path.suffix == ".json"
        (tmp_path / path.name).write_bytes(BOM + path.read_bytes().replace(b"\n", b"\r\n") if is_text else path.read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(BOM + b"{% for m in messages %}[{{ m.content }}]\r\n{% endfor %}")
    messages = [{"role": "user", "content": "Hi"}]
    with LLM(tmp_path, device="cpu") as llm, LLM(model_directory, device="cpu") as plain:
        params = SamplingParams(temperature=0, max_tokens=4)
        assert llm.generate("abc", params)[0].outputs[0].token_ids == plain.generate("abc", params)[0].outputs[0].token_ids
        assert llm.get_default_sampling_params() == plain.get_default_sampling_params()
        [output] = llm.chat(messages, params)
        assert output.prompt_token_ids == plain.tokenizer.encode("[Hi]\n")


def test_an_adapter_beside_a_model_is_named(model_directory, tmp_path):
    for path in model_directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    with pytest.warns(UserWarning, match=r"adapter_config.json is not applied.*merge it into its base model 'a/b' first"):
        open_source(tmp_path)
