"""Time from the command to the first token, with an empty cache of compiled kernels and with a full one.

Each time is that of a new process, from its start to the first token after a prompt of four tokens, so it contains the interpreter's start,
imports, random weights, compilation, graphs and a first request. The first process starts with an empty kernel cache and fills it for the
second.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from minllm.bench.generate import check_model, opened_model
from minllm.bench.record import Row, console, write_rows
from minllm.engine.options import EngineOptions
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import MinLLMError
from minllm.machine import driver

MAX_NUM_SEQS, MAX_MODEL_LEN = 256, 2048
CHILD = "import sys; from minllm.bench.startup import first_token; first_token(sys.argv[1], sys.argv[2])"


def run(model: str, device: str, json_file: Path | None) -> None:
    """Measure and print; if `json_file` is given, write the record."""
    check_model(model)
    out = console(json_file)
    case, found = f"{model}, {MAX_NUM_SEQS} sequences of up to {MAX_MODEL_LEN} tokens", []
    with tempfile.TemporaryDirectory() as cache:
        for variant in ("empty kernel cache", "full kernel cache"):
            found.append(Row("start-up", case, variant, round(seconds_to_first_token(model, device, cache), 2), "s"))
            out.print(f"{case}, {variant}: {found[-1].value:.1f} s from the command to the first token")
    on_gpu = EngineOptions(device=device).resolved_device() == "cuda"
    write_rows(json_file, driver.device_name() if on_gpu else "cpu", {}, found)


def seconds_to_first_token(model: str, device: str, cache: str) -> float:
    """Seconds from the start of a new process, with the kernel cache in `cache`, until it prints that it has a token.

    Raises MinLLMError if the process fails.
    """
    environment = os.environ | {"MINLLM_CACHE_DIR": cache}
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", CHILD, model, device], env=environment, stdout=subprocess.PIPE, text=True) as child:
        said = child.stdout.readline()
        seconds = time.perf_counter() - start
    if child.returncode or not said:
        raise MinLLMError(f"the process that was to start {model} ended with exit code {child.returncode}: its message stands above")
    return seconds


def first_token(model: str, device: str) -> None:
    """The code of the process: load the model, compute a token, and print a line."""
    with opened_model(model, dict(device=device, max_num_seqs=MAX_NUM_SEQS), MAX_MODEL_LEN) as llm:
        llm.generate([[1, 2, 3, 4]], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False))
        print("first token", flush=True)
