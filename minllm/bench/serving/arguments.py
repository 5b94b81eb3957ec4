"""The options of `minllm bench serve`, checked before a model is loaded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from minllm.bench.serving.arrivals import check_rate
from minllm.bench.serving.comparisons import COMPARISONS
from minllm.bench.serving.trace import read_trace
from minllm.bench.serving.workload import BenchRequest, Lengths, Workload, named_list
from minllm.engine.option_help import check_names
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError

NUM_PROMPTS, INPUT_LEN, OUTPUT_LEN = 100, "128", "128"


@dataclass(frozen=True)
class Requests:
    """The requests to serve, and their description. has_arrivals: whether a trace gives their arrivals."""

    description: str
    requests: list[BenchRequest]
    has_arrivals: bool = False


def chosen_requests(
    request_list: str | None, dataset_path: Path | None, num_prompts: int | None, input_len: str | None, output_len: str | None, seed: int
) -> Requests:
    """The requests that the options describe: a named list, a file, or random lengths.

    Raises InvalidOptionError and OSError.
    """
    sources = {"--request-list": request_list, "--dataset-path": dataset_path, "--input-len or --output-len": input_len or output_len}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise InvalidOptionError(f"{given[0]} and {given[1]} both say which requests to send: give one of them.")
    if dataset_path is not None:
        requests, has_arrivals = read_trace(dataset_path, seed, num_prompts)
        return Requests(f"{dataset_path.name}, {len(requests)} requests", requests, has_arrivals)
    if request_list is not None:
        workload = named_list(request_list, num_prompts)
        return Requests(f"{request_list}, {workload.num_prompts} requests", workload.requests(seed))
    lengths = Lengths.parse(input_len or INPUT_LEN, "--input-len"), Lengths.parse(output_len or OUTPUT_LEN, "--output-len")
    workload = Workload(num_prompts or NUM_PROMPTS, *lengths)
    return Requests(str(workload), workload.requests(seed))


def checked_rates(given: Sequence[float], has_arrivals: bool, compares_policies: bool) -> list[float | None]:
    """The rates to offer: [inf] by default, [None] for a trace's arrivals, [] if the comparison chooses them.

    Raises InvalidOptionError for a wrong rate, or for rates with a trace that has arrivals.
    """
    if given and has_arrivals:
        raise InvalidOptionError("--request-rate does not go with a --dataset-path whose lines have an arrival: drop one of the two.")
    for rate in given:
        check_rate(rate)
    if has_arrivals:
        return [None]
    return list(given) or ([] if compares_policies else [math.inf])


def check_engine_options(options: dict[str, Any], compare: str | None) -> None:
    """Raises InvalidOptionError unless LLM() accepts these options with every value that the comparison tries."""
    name, values = (COMPARISONS[compare].option, COMPARISONS[compare].values) if compare else ("", ())
    if name in options:
        option = "--" + name.replace("_", "-")
        raise InvalidOptionError(f"{option} does not go with --compare-{compare}, which tries several: drop one of the two.")
    if compare == "preemption" and "kv_cache_memory_bytes" not in options:
        raise InvalidOptionError("--compare-preemption needs --kv-cache-memory-bytes: nothing is preempted while the cache has room.")
    for tried in [{name: value} for value in values] or [{}]:
        check_names(options | tried)
        EngineOptions(**(options | tried))


def chosen_comparison(names: Sequence[str]) -> str | None:
    """The requested comparison, None without one. Raises InvalidOptionError for several."""
    if len(names) > 1:
        raise InvalidOptionError(f"--compare-{names[0]} and --compare-{names[1]} do not go together: give one of them.")
    return names[0] if names else None


def load_peer(against: str | None) -> ModuleType | None:
    """The module of the peer engine; None without one.

    Raises InvalidOptionError if it is unknown or not installed.
    """
    if against is None:
        return None
    if against != "transformers":
        raise InvalidOptionError(f"--against {against} is not allowed: it takes transformers.")
    try:
        from minllm.bench.serving import transformers_peer
    except ImportError as error:
        raise InvalidOptionError(
            f"--against transformers needs PyTorch and transformers 5 ({error}): pip install 'minllm[bench]', or leave the option out."
        ) from None
    return transformers_peer
