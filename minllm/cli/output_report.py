"""Reports of `generate` and `chat` besides the text: tables of log-probabilities, totals of several requests, and JSON."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minllm.engine.requests.outputs import BeamSearchOutput, Logprob, RequestOutput
from minllm.errors import InvalidOptionError

ONE_TOKEN = dict[int, Logprob]
LINE_ENDS = {ord(one): f"\\u{ord(one):04x}" for one in "\x85\u2028\u2029"}  # what JSON leaves as it is, and some readers split lines at


def logprobs_table(title: str, token_ids: Sequence[int], logprobs: Sequence[ONE_TOKEN | None]) -> Table:
    """One row per token: its text, log-probability, probability and rank, and the likeliest tokens at its position."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading, side in (("id", "right"), ("token", "left"), ("log p", "right"), ("p", "right"), ("rank", "right"), ("likeliest", "left")):
        table.add_column(heading, justify=side)
    for token_id, named in zip(token_ids, logprobs, strict=True):
        if named is None:  # the first token of a prompt has no context, so no probability
            table.add_row(str(token_id))
            continue
        chosen = named[token_id]
        likeliest = sorted((one for one in named.values() if one is not chosen or len(named) == 1), key=lambda one: one.rank)
        others = "  ".join(f"{_quoted(one)} {math.exp(one.logprob):.3f}" for one in likeliest)
        log_p, p = f"{chosen.logprob:.3f}", f"{math.exp(chosen.logprob):.3f}"
        table.add_row(str(token_id), Text(_quoted(chosen)), log_p, p, str(chosen.rank), Text(others))
    return table


def _quoted(one: Logprob) -> str:
    return json.dumps(one.decoded_token, ensure_ascii=False)  # escapes control characters


def print_logprobs(output: RequestOutput) -> None:
    """Print the tables of a request's log-probabilities, if it has any, to standard error."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if output.prompt_logprobs is not None:
        console.print(logprobs_table("prompt", output.prompt_token_ids, output.prompt_logprobs))
    for completion in output.outputs:
        if completion.logprobs is not None:
            title = "output" if len(output.outputs) == 1 else f"output {completion.index}"
            console.print(logprobs_table(title, completion.token_ids, completion.logprobs))


def totals(outputs: Sequence[RequestOutput], seconds: float) -> str:
    """One line with the numbers of prompts, completions and tokens, and the time."""
    prompts, completions = len(outputs), sum(len(output.outputs) for output in outputs)
    read = sum(output.metrics.prompt_tokens for output in outputs)
    generated = sum(output.metrics.generated_tokens for output in outputs)
    rate = f", {generated / seconds:.1f} per second" if seconds else ""
    return f"prompts: {prompts}, {read} tokens; completions: {completions}, {generated} tokens in {seconds:.2f} s{rate}"


def write_outputs(path: Path, outputs: Sequence[RequestOutput | BeamSearchOutput], lines: bool) -> None:
    """Write outputs to a file, or to standard output for "-": as one JSON list, or with `lines` as one JSON object per line."""
    values: list[dict[str, Any]] = [asdict(output) for output in outputs]
    is_ascii = str(path) == "-" and sys.stdout.encoding.lower().replace("-", "") != "utf8"  # a terminal that cannot show the rest
    if lines:
        written = (json.dumps(value, ensure_ascii=is_ascii) for value in values)
        text = "".join(one.translate(LINE_ENDS) + "\n" for one in written)
    else:
        text = json.dumps(values, ensure_ascii=is_ascii, indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror or error}.") from error
