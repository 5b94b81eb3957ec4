"""`minllm bench speculation --counts`: tokens per step of every source of drafts, on real text; the same on every machine.

Prompts of held-out text are continued greedily one at a time, in float32, so that the number of steps is the number of times that the
weights are read:

    tokens per step = (generated tokens - 1) / steps after the prompt                    1 without drafts
    rows per step = mean number of rows per step, the newest token and its drafts        the cost of verification

A source that gains much with many rows suits small batches on an otherwise idle GPU; costs/speculation.py gives the cost of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import minllm
from minllm.bench.generate import BUNDLED, check_length
from minllm.bench.record import Row, write_rows
from minllm.bench.speculation import STRIDE
from minllm.engine.llm import LLM
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import InvalidOptionError

CHARACTERS = 8  # characters to encode per token needed: a token has three or four
MOST_DRAFTS = 8  # longest chain of drafts
TREES = ((2,), (4,), (2, 2), (2, 1, 1), (3, 2, 1), (2, 2, 2), (4, 2, 2, 1))  # children of each node, level by level
LOOKAHEADS = ((4, 3, 4), (8, 4, 8), (15, 5, 15))  # W, N, G


@dataclass(frozen=True)
class Counted:
    """The results of one source of drafts."""

    tokens_per_step: float
    rows_per_step: float


def paths_of(children: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The paths of a tree in which every node of level i has children[i] children."""
    return [path for depth in range(1, len(children) + 1) for path in product(*map(range, children[:depth]))]


def sources() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name, speculative_config) for every source of drafts."""
    for count in range(1, MOST_DRAFTS + 1):
        yield f"n-grams, {count}", {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    for count in range(1, MOST_DRAFTS + 1):
        yield f"draft model, {count}", {"method": "draft_model", "num_speculative_tokens": count}
    for children in TREES:
        paths = paths_of(children)
        config = {"method": "draft_model", "num_speculative_tokens": len(paths), "speculative_token_tree": str(paths)}
        yield f"draft model, tree of {' x '.join(map(str, children))}", config
    for window, ngram_size, guesses in LOOKAHEADS:
        config = {"method": "lookahead", "window": window, "ngram_size": ngram_size, "guess_set_size": guesses}
        yield f"lookahead, W = {window}, N = {ngram_size}, G = {guesses}", config


def run(*, prompts: int, prompt_tokens: int, tokens: int, json_file: Path | None, only: str = "") -> None:
    """Count, print a table, write the record. only: count only sources with this string in their names.

    Raises InvalidOptionError if the model has no room for the tokens, or the text not enough of them.
    """
    check_length(BUNDLED, prompt_tokens + tokens)
    rows, case = [], f"bundled model, {prompts} prompts of {prompt_tokens} tokens, {tokens} new ones"
    table = Table("source", "tokens per step", "rows per step", title=case)
    for name, config in sources():
        if only in name:
            found = count(config, prompts, prompt_tokens, tokens)
            values = dict(zip(("tokens per step", "rows per step"), (found.tokens_per_step, found.rows_per_step), strict=True))
            table.add_row(name, *(f"{value:.2f}" for value in values.values()))
            rows += [Row("speculation counts", case, name, round(value, 4), unit) for unit, value in values.items()]
    Console(highlight=False, stderr=str(json_file) == "-").print(table)
    write_rows(json_file, "cpu", {}, rows)


def count(config: dict[str, Any], prompts: int, prompt_tokens: int, tokens: int) -> Counted:
    """Tokens and rows per step of one source on the bundled model."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    with LLM(device="cpu", dtype="float32", max_num_seqs=1, speculative_config=config) as llm:
        text = minllm.held_out_text()[: CHARACTERS * (prompts * STRIDE + prompt_tokens)]  # the whole text takes seconds to encode
        ids = llm.tokenizer.encode(text)
        if (needed := (prompts - 1) * STRIDE + prompt_tokens) > len(ids):
            raise InvalidOptionError(f"{prompts} prompts of {prompt_tokens} tokens take {needed:,} tokens, and the text has {len(ids):,}.")
        for start in range(0, prompts * STRIDE, STRIDE):
            llm.generate([ids[start : start + prompt_tokens]], params)
        stats = llm.llm_engine.stats()
    steps = stats.num_steps - prompts
    return Counted(prompts * (tokens - 1) / steps, 1 + stats.spec_decode_num_draft_tokens / steps)
