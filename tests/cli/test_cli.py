"""The command line as a user meets it: text on standard output, everything else on standard error, and exit codes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from minllm import LLM, SamplingParams
from minllm.cli import app as cli
from minllm.cli import terminal
from minllm.machine.devices import installed_version
from tests.models.gguf.small_model import metadata, tensors
from tests.models.gguf.writer import write_gguf

runner = CliRunner()
forked = pytest.mark.usefixtures("forked_python")


def run(*arguments, stdin=None):
    """Invoke a command in this process."""
    return runner.invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


def start(*arguments, stdout=subprocess.PIPE, **options):
    """Start a command in a process of its own."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="")
    command = [sys.executable, "-m", "minllm", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, **options)


def ended(process):
    """(exit code, what it says on standard error) of a command that was started."""
    said = process.stderr.read().decode()
    return process.wait(timeout=60), said


def test_no_arguments_show_help():
    result = run()
    assert "generate" in result.output and "doctor" in result.output


def test_the_commands_are_known_without_numpy():
    asked = "import sys, minllm.cli.app; print(sys.modules.keys() & {'numpy', 'numba', 'ml_dtypes'})"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_version_is_the_packages_own():
    result = run("--version")
    assert result.exit_code == 0 and (installed_version("minllm") or "source tree") in result.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["generate", "x", "--device", "tpu"], ["generate", "x", "--max-tokens", "many"]])
def test_a_command_that_is_not_understood_exits_with_2(arguments):
    assert run(*arguments).exit_code == 2


def test_a_model_without_a_prompt_is_a_usage_error(model_directory):
    result = run("generate", "--model", model_directory)
    assert result.exit_code == 2 and "PROMPT" in result.stderr


def test_generate_prints_the_text_and_nothing_else_on_standard_output(model_directory):
    result = run("generate", "abc", "--model", model_directory, "--device", "cpu", "--seed", 3, "--max-tokens", 8)
    llm = LLM(model_directory, device="cpu")
    (expected,) = llm.generate("abc", SamplingParams(temperature=0.9, max_tokens=8, seed=3))
    text = expected.outputs[0].text
    assert result.exit_code == 0
    assert result.stdout == text if text.endswith("\n") else result.stdout == text + "\n"
    assert "NumPy on CPU" in result.stderr and "8 tokens" in result.stderr


def test_no_card_leaves_standard_error_empty(model_directory):
    result = run("generate", "abc", "--model", model_directory, "--device", "cpu", "--no-card", "--max-tokens", 8)
    assert result.exit_code == 0 and result.stderr == ""


def test_echo_puts_the_prompt_before_the_text(model_directory):
    arguments = ["generate", "-", "--model", model_directory, "--device", "cpu", "--seed", 3, "--no-card", "--max-tokens", 8]
    plain, echoed = run(*arguments, stdin="two\nlines\n"), run(*arguments, "--echo", stdin="two\nlines\n")
    assert echoed.stdout == "two\nlines" + plain.stdout
    given = run("generate", "two\nlines", *arguments[2:])  # the line's end of the last line is the shell's, not the prompt's
    assert given.stdout == plain.stdout


def test_options_reach_the_sampler(model_directory):
    arguments = ["generate", "abc", "--model", model_directory, "--device", "cpu", "--temperature", 0, "--dtype", "float32", "--no-card"]
    result = run(*arguments, "--max-tokens", 3)
    llm = LLM(model_directory, device="cpu", dtype="float32")
    (expected,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=3))
    assert result.stdout.rstrip("\n") == expected.outputs[0].text.rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--max-tokens", "-1"], "max_tokens"),
        (["--stop", ""], "stop"),
        (["--n", "0"], "n=0"),
        (["--n", "2", "--temperature", "0"], "n=2"),
        (["--presence-penalty", "3"], "presence_penalty=3.0"),
        (["--frequency-penalty", "nan"], "frequency_penalty=nan"),
        (["--logprobs", "21"], "logprobs=21"),
        (["--min-tokens", "200"], "min_tokens=200"),
        (["--stop-token-ids", "5,x"], "--stop-token-ids 5,x"),
        (["--stop-token-ids", "5,,6"], "--stop-token-ids 5,,6"),
        (["--stop-token-ids", "300"], "stop_token_ids holds 300"),
        (["--logit-bias", "5"], "--logit-bias 5"),
        (["--logit-bias", "5=much"], "--logit-bias 5=much"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "--logit-bias 5=2"),
        (["--logit-bias", "5=nan"], "logit_bias[5]=nan"),
        (["--max-model-len", "0"], "max_model_len=0"),
        (["--kv-cache-policy", "vmm"], "kv_cache_policy='vmm'"),
        (["--speculative-config", "{ngram}"], "Write JSON in single quotes"),
        (["--speculative-config", "[" * 5000], "Write JSON in single quotes"),
        (["--speculative-config", '["ngram"]'], "give None or a dictionary"),
        (["--speculative-config", '{"method": "ngram"}'], "needs num_speculative_tokens"),
        (["--kv-cache-policy", "virtual", "--enable-prefix-caching"], "enable_prefix_caching=True"),
        (["--variant", "attention"], "STAGE=NAME"),
        (["--model", "/nowhere/at-all"], "/nowhere/at-all"),
        (["--model", ""], "model=''"),
        (["--model", __file__], "or a GGUF file"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_1(model_directory, arguments, words):
    result = run("generate", "abc", "--device", "cpu", "--model", model_directory, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("minllm: ") and words in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_input_that_is_no_text_is_refused(model_directory, monkeypatch):
    result = runner.invoke(cli.app, ["generate", "-", "--model", str(model_directory), "--device", "cpu"], input=b"\xff\xfe\x00")
    assert result.exit_code == 1 and "UTF-8" in result.stderr


def test_chat_answers_line_after_line_and_remembers(model_directory):
    arguments = ["chat", "--model", model_directory, "--device", "cpu", "--max-tokens", 4, "--temperature", 0, "--system", "Be brief."]
    result = run(*arguments, stdin="hello\nagain\n")
    llm = LLM(model_directory, device="cpu")
    params = SamplingParams(temperature=0, max_tokens=4)
    messages = [dict(role="system", content="Be brief."), dict(role="user", content="hello")]
    first = llm.chat(messages, params)[0].outputs[0].text
    messages += [dict(role="assistant", content=first), dict(role="user", content="again")]
    second = llm.chat(messages, params)[0].outputs[0].text
    assert result.exit_code == 0
    assert result.stdout.split("\n") == [*first.split("\n"), *second.split("\n"), ""]


def test_chat_with_a_model_that_has_no_template_says_so(model_directory, tmp_path):
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        os.link(model_directory / name, tmp_path / name)
    result = run("chat", "--model", tmp_path, "--device", "cpu", stdin="hello\n")
    assert result.exit_code == 1 and "chat template" in result.stderr


@forked
def test_a_reader_that_goes_away_ends_the_command_quietly(model_directory):
    process = start("generate", "abc", "--model", model_directory, "--device", "cpu", "--max-tokens", 400, "--temperature", 1)
    process.stdout.read(1)
    process.stdout.close()
    code, errors = ended(process)
    assert code == 0 and "Traceback" not in errors and "Broken" not in errors


@forked
def test_control_c_ends_the_command_with_130(model_directory):
    process = start("chat", "--model", model_directory, "--device", "cpu", "--max-tokens", 4, stdin=subprocess.PIPE)
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    process.stdout.readline()  # the answer is there, and the command waits for the next line
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_bench_writes_rows_as_json(model_directory, tmp_path):
    path = tmp_path / "rows.json"
    lengths = ["--prompt-tokens", 5, "--tokens", 4, "--repeats", 1]
    result = run("bench", "generate", "--model", model_directory, "--device", "cpu", *lengths, "--json", path)
    assert result.exit_code == 0 and "decode" in result.stdout
    record = json.loads(path.read_text())
    assert record["device"].startswith("cpu") and record["packages"]["numpy"]
    assert [row["benchmark"] for row in record["rows"]] == ["decode", "prefill", "time to first token"]
    assert all(row["value"] > 0 for row in record["rows"])


def test_bench_takes_a_bare_config_json_for_its_shape(model_directory, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes((model_directory / "config.json").read_bytes())
    arguments = ["bench", "generate", "--device", "cpu", "--prompt-tokens", 5, "--tokens", 4, "--repeats", 1, "--model"]
    result = run(*arguments, path)
    assert result.exit_code == 0 and f"{path} (random weights)" in result.stdout
    path.write_text("{}")
    result = run(*arguments, path)
    assert result.exit_code == 1 and str(path) in result.stderr and "architecture" in result.stderr


@pytest.mark.parametrize(
    ("command", "length"),
    [
        (["generate", "--prompt-tokens", 2000, "--tokens", 49], "2,049"),
        (["serve", "--num-prompts", 2, "--input-len", 2000, "--output-len", 49], "2,049"),
        (["speculation", "--prompt-tokens", 2000, "--tokens", 45], "2,049"),
    ],
)
def test_bench_names_the_length_that_a_model_has_no_positions_for(command, length):
    result = run("bench", *command, "--device", "cpu")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert f"the longest sequence has {length} tokens, and bundled has 2,048 positions: ask for fewer tokens" in result.stderr


@pytest.mark.parametrize("command", [["bench", "generate", "--model"], ["bench", "perplexity", "--model"], ["chat", "--model"], ["plan"]])
def test_an_empty_model_is_not_the_folder_that_one_is_in(command):
    result = run(*command, "")
    assert result.exit_code == 1 and "''" in result.stderr and result.stderr.count("\n") == 1


def test_a_gguf_file_is_a_model_to_every_command(tmp_path):
    path = write_gguf(tmp_path / "small.gguf", metadata(), tensors())
    result = run("generate", "hello", "--model", path, "--device", "cpu", "--max-tokens", 4)
    assert result.exit_code == 0 and "small.gguf, bfloat16" in result.stderr
    assert "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (minllm's defaults" in result.stderr
    result = run("chat", "--model", path, "--device", "cpu", "--max-tokens", 4, "--temperature", 0.2, "--top-p", 0.9, stdin="hello\n")
    assert result.exit_code == 0 and "sampling: temperature 0.2, top_k 40, top_p 0.9, min_p 0.05\n" in result.stderr
    result = run("bench", "generate", "--device", "cpu", "--prompt-tokens", 5, "--tokens", 4, "--repeats", 1, "--model", path)
    assert result.exit_code == 0 and "random weights" not in result.stdout
    result = run("plan", path, "--gpu", "h100")
    assert result.exit_code == 0 and "small" in result.stdout and "a GPU keeps this file's matrices in Q8_0, Q4_0 and Q4_1" in result.stdout


def test_bench_to_a_file_that_cannot_be_written_is_an_error_of_ours(model_directory, tmp_path):
    lengths = ["--prompt-tokens", 5, "--tokens", 4, "--repeats", 1]
    result = run("bench", "generate", "--model", model_directory, "--device", "cpu", *lengths, "--json", tmp_path / "no" / "rows.json")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1


def test_doctor_exits_with_what_it_finds(monkeypatch):
    from minllm.machine import devices as machine

    healthy = machine.Machine(python=(3, 12), system="Linux", driver_error="libcuda.so.1 does not load")
    monkeypatch.setattr(machine, "look", lambda try_kernel: healthy)
    result = run("doctor")
    assert result.exit_code == 0 and "NumPy" in result.stdout
    broken = machine.Machine(python=(3, 12), system="Linux", broken_requirements=[("numpy<2.6,>=2", "2.6.0")])
    monkeypatch.setattr(machine, "look", lambda try_kernel: broken)
    result = run("doctor")
    assert result.exit_code == 1 and "pip install 'numpy<2.6,>=2'" in result.stdout


def test_pieces_are_written_one_by_one():
    written = []

    class Recorder(io.StringIO):
        def flush(self):
            written.append(self.getvalue())

        def reconfigure(self, **options):
            pass

    original, sys.stdout = sys.stdout, Recorder()
    try:
        terminal.show([], iter(["a", "bc", "d"]))
    finally:
        sys.stdout = original
    assert written == ["a", "abc", "abcd", "abcd\n"]


def test_the_kernel_being_compiled_is_named_until_the_first_piece(monkeypatch, capsys):
    from minllm.runtime.kernel import compilation_listeners

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    heard = []

    def pieces():
        heard.append(len(compilation_listeners))
        for listener in compilation_listeners:
            listener("some_kernel")
        yield "a"
        heard.append(len(compilation_listeners))
        yield "b"

    before = len(compilation_listeners)
    assert list(terminal.with_kernel_status(pieces())) == ["a", "b"]
    assert heard == [before + 1, before] and len(compilation_listeners) == before


def shell(command, **options):
    """Run a line of bash in which $minllm is the command."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", minllm=f"{sys.executable} -m minllm")
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], env=environment, capture_output=True, text=True, timeout=100)


@forked
@pytest.mark.covering("arguments", "lines")
@pytest.mark.parametrize("arguments", ["--help", "plan llama-3.1-8b --stages", "plan llama-3.1-8b --json -", "exercise", "inspect"])
@pytest.mark.parametrize("lines", [1, 0])
def test_a_reader_that_goes_away_is_no_failure(arguments, lines):
    """As with `head -1` and `true` behind a pipe."""
    process = start(*arguments.split())
    assert all(process.stdout.readline() for _ in range(lines))
    process.stdout.close()
    code, errors = ended(process)
    assert code == 0 and "Error" not in errors and "Broken" not in errors and "Traceback" not in errors


@forked
@pytest.mark.parametrize("arguments", ["--help", "plan llama-3.1-8b", "--version"])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        code, errors = ended(start(*arguments.split(), stdout=full))
    assert code == 1 and errors.startswith("minllm: ") and errors.count("\n") == 1


@pytest.mark.parametrize(
    "command, code, says",
    [
        ("$minllm plan llama-3.1-8b >&-", 1, "minllm: standard output is closed"),
        ("$minllm generate - <&-", 1, "minllm: standard input is closed"),
        ("$minllm chat --device cpu <&-", 1, "minllm: standard input is closed"),
        ("$minllm plan llama-3.1-8b 2>&-", 0, ""),
        ("$minllm plan nosuch 2>&-", 1, ""),
    ],
)
def test_closed_streams(command, code, says):
    done = shell(command)
    assert done.returncode == code and done.stderr.startswith(says) and done.stderr.count("\n") == bool(says)


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_prices_are_numbers(price):
    result = run("plan", "llama-3.1-8b", f"--price-per-hour={price}")
    assert result.exit_code == 1 and "price-per-hour" in result.stderr


def test_bench_generate_names_the_shapes_that_plan_knows():
    result = run("bench", "generate", "--model", "nosuch", "--device", "cpu")
    assert result.exit_code == 1 and "llama-3.1-70b" in result.stderr and "Nothing is downloaded" in result.stderr


def test_pages_name_commands_that_exist():
    root, known = Path(__file__).parents[2], typer.main.get_command(cli.app).commands
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("lessons/*.py")]
    named = re.compile(r"(?:`|^|python -m )minllm ([a-z_]+)(?: ([a-z-]+))?", re.MULTILINE)
    found = [(page.name, *words) for page in pages for words in named.findall(page.read_text(encoding="utf-8"))]
    wrong = [one for one in found if one[1] not in known or (one[1] == "bench" and one[2] and one[2] not in known["bench"].commands)]
    assert len(found) > 50 and wrong == []
