"""The command that measures a row of the record again, for captions and tables.

A row does not store its command, because the options of commands change and the row does not. This module derives the current command from
benchmark, case, variant and peer. Rows that differ only in options that may be repeated share one command.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, Any]  # the fields of record.Row

# {benchmark of `minllm bench kernels`: its stage}. Variants of "sampling" in SLOTS belong to the stage "slots".
KERNEL_STAGES = {
    "matmul": "matmul", "matmul, quantised": "quantised", "prefill attention": "attention", "decode attention": "attention",
    "decode attention, quantised": "attention", "decode attention of trees": "attention", "verification attention": "attention",
    "embedding": "embedding", "normalization": "normalization", "rope": "rope",
    "activation": "activation", "kv": "kv", "sampling": "sampling", "experts": "experts",
}  # fmt: skip
SLOTS = ("advance", "load_rows", "write_slots")
# {benchmark: its subcommand of `minllm bench`}, for those without options
PLAIN = {
    "KV cache accuracy": "accuracy", "virtual memory": "virtual", "decode attention, virtual cache": "virtual", "host copy": "memory",
    "allocation": "memory", "preemption": "swap", "preemption overlap": "swap", "preemption crossing": "swap", "pipeline": "pipeline",
    "memory mode, prefill": "memory", "memory mode, decode": "memory", "memory mode, decode without graphs": "memory",
    "launch": "launch", "start-up": "startup", "sustained GEMM": "sustained", "cache waste": "cache", "cache with tokens": "cache",
    "cache sequences": "cache", "cache hits": "cache",
}  # fmt: skip
# measurements of the lessons: {benchmark: part of tools/measure_lessons.py}
LESSONS = {"copy": "copy", "cache": "cache", "splits": "splits", "length": "length"}
# Options of `minllm bench` that may be repeated.
REPEATED = {
    "step": ("model", "batch", "context"),
    "speculation": ("batch", "acceptance", "num-speculative-tokens"),
    "serve": ("request-rate",),
    "ranks": ("tensor-parallel-size",),
}


class Command(NamedTuple):
    """A shell command: its beginning, and its options as (name, value) in order; the value of a flag is ""."""

    begin: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.begin, *(f"--{name} {value}".strip() for name, value in self.options)])


def command_of(row: Row) -> Command:
    """The command that measures a row. Raises ValueError for an unknown benchmark."""
    benchmark = row["benchmark"]
    if benchmark in LESSONS:
        return Command("python tools/measure_lessons.py", (("only", LESSONS[benchmark]),))
    if benchmark in PLAIN:
        return Command(f"minllm bench {PLAIN[benchmark]}")
    if benchmark in KERNEL_STAGES:
        stage = "slots" if row["variant"] in SLOTS else KERNEL_STAGES[benchmark]
        return Command("minllm bench kernels", (("only", stage), *against(row)))
    if benchmark == "all-reduce":
        return Command("minllm bench all-reduce", (*found(row, gpus=r"(\d+) GPUs"), *against(row)))
    if benchmark == "shared contexts":
        sizes = found(row, batch=r"batch (\d+)", context=r"context (\d+)")
        return Command("minllm bench ranks", (("context-parallel", row["variant"].split()[0]), *sizes))
    name = "serve" if benchmark.startswith("serving") else OF_A_MODEL.get(benchmark)
    if name is None:
        raise ValueError(f"no command is known for the benchmark {benchmark!r}: add it to {__name__}")
    model = re.match(r"[^,(]+", row["case"])[0].strip()  # "llama-3.1-8b (random weights), batch 1" -> "llama-3.1-8b"
    return Command(f"minllm bench {name}", (("model", model), *OPTIONS[name](row), *against(row)))


def commands_of(rows: Iterable[Row]) -> list[str]:
    """The commands that measure these rows, in their order.

    Commands that differ only in REPEATED options are merged.
    """
    joined: dict[tuple, dict[tuple[str, str], None]] = {}
    for command in dict.fromkeys(map(command_of, rows)):
        repeated = REPEATED.get(command.begin.split()[-1], ())
        same = (command.begin, *((name, "" if name in repeated else value) for name, value in command.options))
        joined.setdefault(same, {}).update(dict.fromkeys(command.options))
    names = [[name for name, _ in same[1:]] for same in joined]
    ordered = (tuple(sorted(options, key=lambda one: order.index(one[0]))) for options, order in zip(joined.values(), names))
    return [str(Command(same[0], options)) for same, options in zip(joined, ordered)]


def against(row: Row) -> Iterable[tuple[str, str]]:
    """The option --against if the row's peer is another library, else nothing."""
    library = (row["peer"] or "").split(" ")[0]
    return [("against", library)] if library in ("torch", "transformers") else []


def found(row: Row, **patterns: str) -> list[tuple[str, str]]:
    """(option, value) for each pattern that matches the case; its group is the value."""
    matches = ((name, re.search(pattern, row["case"])) for name, pattern in patterns.items())
    return [(name.replace("_", "-"), match[1]) for name, match in matches if match]


def serve_options(row: Row) -> list[tuple[str, str]]:
    """The options of `minllm bench serve`: the list of requests or their lengths, and the options that the row varies."""
    case = found(row, request_list=r"(mixed-prompts|nano-vllm|tensorrt-llm-\d+-\d+)")
    case = case or found(row, num_prompts=r"(\d+) requests", input_len=r"prompts ([\d,]*\d)", output_len=r"outputs (\d+)")
    case += found(row, request_rate=r"(\d+) requests/s", quantization=r"weights in (\w+)", kv_cache_dtype=r"KV cache in (\w+)")
    case += [("compare-policies", "")] if "requests/s" in row["case"] else []
    case += [("kv-cache-memory-bytes", "1000000000"), ("compare-preemption", "")] if "KV cache of 1 GB" in row["case"] else []
    case += [(name, value.replace(",", "")) for name, value in found(row, max_num_batched_tokens=r"([\d,]+) tokens per step")]
    case += [("compare-concurrency", "")] if row["variant"].startswith("max_concurrency") else []
    limit = re.fullmatch(r"(\d+) sequences", row["variant"])
    case += [("num-prompts", limit[1]), ("max-num-seqs", limit[1])] if limit else []
    return case + ([("profile", "DIR")] if row["benchmark"].startswith("serving, ") else [])


def speculation_options(row: Row) -> list[tuple[str, str]]:
    """The options of `minllm bench speculation`."""
    schedule = [] if "up to" in row["case"] else [("schedule", "constant")]
    numbers = found(row, batch=r"(\d+) sequence", acceptance=r"([\d.]+) of drafts", num_speculative_tokens=r"(\d+) drafts?\b")
    return [("draft", row["variant"]), *numbers, *schedule]


def ranks_options(row: Row) -> list[tuple[str, str]]:
    """The options of `minllm bench ranks`: its defaults have all batches and prompts of the record."""
    splits = [("tensor-parallel-size", row["variant"].split()[0])]
    splits += [("pipeline-parallel-size", one) for one in re.findall(r"in each of (\d+) stages", row["variant"])]
    return [*splits, *found(row, quantization=r"weights in (\w+)"), ("throughput", "")]


OF_A_MODEL = {
    "decode": "generate", "prefill": "generate", "time to first token": "generate", "perplexity": "perplexity", "bits a byte": "perplexity",
    "decode step": "step", "whole prefill": "step", "batch": "step", "several GPUs": "ranks",
    **dict.fromkeys(("speculation", "speculation throughput", "speculation step"), "speculation"),
}  # fmt: skip
OPTIONS: Mapping[str, Callable[[Row], Iterable[tuple[str, str]]]] = {
    "generate": lambda row: found(row, prompt_tokens=r"prompt (\d+)", tokens=r"new (\d+)"),
    "perplexity": lambda row: [],
    "step": lambda row: found(row, batch=r"batch (\d+)", context=r"context (\d+)", prompt=r", (\d+) tokens"),
    "speculation": speculation_options,
    "serve": serve_options,
    "ranks": ranks_options,
}
