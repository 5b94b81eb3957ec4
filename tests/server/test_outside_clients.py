"""Load generators and an evaluation harness that others wrote, unmodified, each in an environment of its own. Only with --exhaustive.

vLLM's client is not among them: it is a part of vLLM, whose package needs torch with CUDA. What it sends is tested in test_completions.py.
"""

import json
import os
import subprocess
import sysconfig
import venv

import numpy as np
import pytest

from minllm.models.source import bundled_model

SECONDS = 900  # to install a client, which may bring a hundred packages
REQUESTS, PROMPT, TOKENS = 12, 24, 8
PAIRS = [("def add(a, b):", " return a + b"), ("import", " os"), ("class Stack:\n", "    def push(self, item):\n"), ("x = [", "1, 2]")]
LOG_LIKELIHOODS = """
import json, sys
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

address, tokenizer, pairs = json.loads(sys.argv[1])
lm = LocalCompletionsAPI(f"{address}/v1/completions", "huggingface", model="bundled", tokenizer=tokenizer)
found = lm.loglikelihood([Instance("loglikelihood", {}, tuple(pair), 0) for pair in pairs])
ids = [lm._encode_pair(*pair) for pair in pairs]
print("FOUND", json.dumps([found, ids]))
"""


@pytest.fixture(scope="module")
def chat_model(bundled_chat_model):
    """The model whose tokenizer the clients use."""
    return bundled_chat_model


@pytest.fixture(scope="module", autouse=True)
def only_with_exhaustive(request):
    if not request.config.option.exhaustive:
        pytest.skip("minutes of installing: only with --exhaustive")


@pytest.fixture
def installed(tmp_path):
    """A function that installs a package and returns the folder of its programs. What the tests have is visible to it: torch is large."""

    def install(requirement):
        venv.create(tmp_path / "venv", with_pip=True)
        programs = tmp_path / "venv" / "bin"
        asked = [programs / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
        packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        with open(os.path.join(packages, "tests.pth"), "w", encoding="utf-8") as file:
            file.write(sysconfig.get_paths()["purelib"])
        command = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip did not install {requirement} within {SECONDS} s")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"pip cannot install {requirement}: {error.stderr.strip().splitlines()[-1]}")
        return programs

    return install


def run(*command, cwd):
    """The output of a program that finds no model hub. (aiperf takes no local tokenizer if HF_HUB_OFFLINE is set.)"""
    alone = {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", "HF_HOME": str(cwd / "hub"), "HOME": str(cwd)}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | alone
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.timeout(1500)
def test_guidellm(installed, served, tmp_path):
    programs = installed("guidellm")
    for number, path in enumerate(("/v1/completions", "/v1/chat/completions")):
        report = tmp_path / f"{number}.json"
        options = {
            "backend": f"kind=openai_http,target={served.address},request_format={path}",
            "profile": "kind=concurrent,streams=4",
            "constraint": f"kind=max_requests,count={REQUESTS}",
            "tokenizer": json.dumps({"kind": "huggingface_auto", "model": str(bundled_model())}),
            "data": f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}",
            "output": f"kind=json,path={report}",
        }
        run(programs / "guidellm", "run", "--disable-console", *[f"--{name}={value}" for name, value in options.items()], cwd=tmp_path)
        [benchmark] = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
        totals = benchmark["metrics"]["request_totals"]
        assert totals["successful"] >= REQUESTS and totals["errored"] == 0, totals
        assert {one["output_tokens"] for one in benchmark["requests"]["successful"]} == {TOKENS}


@pytest.mark.timeout(1500)
def test_aiperf(installed, served, tmp_path):
    programs = installed("aiperf")
    for kind in ("completions", "chat"):
        run(
            programs / "aiperf", "profile", "--model", "bundled", "--url", served.address, "--endpoint-type", kind, "--streaming",
            "--tokenizer", bundled_model(), "--concurrency", 4, "--request-count", REQUESTS, "--isl", PROMPT, "--osl", TOKENS,
            "--extra-inputs", "ignore_eos:true", "--artifact-dir", tmp_path / kind, "--ui-type", "none", cwd=tmp_path,
        )  # fmt: skip
        [report] = (tmp_path / kind).rglob("profile_export_aiperf.json")
        found = json.loads(report.read_text(encoding="utf-8"))
        assert found["request_count"]["avg"] == REQUESTS and found["total_usage_completion_tokens"]["avg"] == REQUESTS * TOKENS
        assert found["time_to_first_token"]["avg"] > 0 and not found["error_summary"]


@pytest.mark.timeout(1500)
def test_log_likelihoods_of_lm_eval_are_the_engines(installed, served, tmp_path):
    programs = installed("lm_eval[api]")
    arguments = json.dumps([served.address, str(bundled_model()), PAIRS])
    said = run(programs / "python", "-c", LOG_LIKELIHOODS, arguments, cwd=tmp_path)
    found, ids = json.loads(said.rpartition("FOUND ")[2])
    for (logprob, is_greedy), (context, continuation) in zip(found, ids, strict=True):
        whole = context + continuation
        logits = served.llm._llm.logits(whole).astype(np.float64)
        rows = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        wanted = sum(rows[place - 1, whole[place]] for place in range(len(context), len(whole)))
        assert abs(logprob - wanted) < 1e-4
        assert is_greedy == all(rows[place - 1].argmax() == whole[place] for place in range(len(context), len(whole)))
