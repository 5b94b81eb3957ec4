"""Requests from a JSONL file, one object per line:

    {"prompt_tokens": 512, "output_tokens": 128, "arrival": 0.25}
    {"prompt": "def fibonacci(n):", "output_tokens": 64, "arrival": 0.5}

`prompt` is text; `prompt_tokens` is a number of random tokens. `arrival` is in seconds after the start, on all lines or on none; without
it, --request-rate determines the arrivals. Other keys are ignored.
"""

import json
import random
from pathlib import Path

from minllm.bench.serving.workload import MOST_TOKENS, BenchRequest, random_prompt
from minllm.errors import InvalidOptionError

LATEST = 10**9  # seconds after the start


class Line:
    """One line of a trace file, with errors that name it."""

    def __init__(self, path: Path, number: int, text: str):
        self.place = f"--dataset-path {path}, line {number}"
        try:
            self.values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise self.error(f"not JSON ({error}): write one object per line") from None
        if not isinstance(self.values, dict):
            raise self.error(f'not an object: write {{"prompt_tokens": 512, "output_tokens": 128}}, not {text.strip()[:40]}')

    def error(self, reason: str) -> InvalidOptionError:
        """An error that names this line."""
        return InvalidOptionError(f"{self.place}: {reason}.")

    def count(self, name: str) -> int:
        """The value of a key that is a number of tokens.

        Raises InvalidOptionError if it is not from 1 to MOST_TOKENS.
        """
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
            raise self.error(f"{name}={as_json(value)} is not allowed: it is a whole number from 1 to {MOST_TOKENS}")
        return value

    def arrival(self) -> float | None:
        """Seconds after the start, or None if the line has none."""
        value = self.values.get("arrival")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value <= LATEST):
            raise self.error(f"arrival={as_json(value)} is not allowed: it is a number of seconds from 0 to {LATEST}")
        return value

    def prompt(self, generator: random.Random) -> list[int] | str:
        """The text of `prompt`, or `prompt_tokens` random token ids."""
        if ("prompt" in self.values) == ("prompt_tokens" in self.values):
            raise self.error("give either prompt, a text, or prompt_tokens, a number")
        if "prompt_tokens" in self.values:
            return random_prompt(generator, self.count("prompt_tokens"))
        text = self.values["prompt"]
        if not isinstance(text, str) or not text:
            raise self.error(f"prompt={as_json(text)[:40]} is not allowed: it is a text that is not empty")
        return text


def as_json(value: object) -> str:
    """The value as JSON, as in a trace file."""
    return json.dumps(value, ensure_ascii=False)


def read_trace(path: Path, seed: int = 0, num_prompts: int | None = None) -> tuple[list[BenchRequest], bool]:
    """(the first `num_prompts` requests of a file, sorted by arrival; whether the file gives arrivals).

    Raises InvalidOptionError, which names the line.
    """
    try:
        texts = path.read_text(encoding="utf-8").split("\n")  # str.splitlines would also cut at U+2028 within a prompt
    except UnicodeDecodeError as error:
        raise InvalidOptionError(f"--dataset-path {path} is not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise InvalidOptionError(f"--dataset-path {path} cannot be read: {error.strerror}. Give a file of JSON lines.") from None
    lines = [Line(path, number, text) for number, text in enumerate(texts, 1) if text.strip()][:num_prompts]
    if not lines:
        raise InvalidOptionError(f"--dataset-path {path} has no requests: write one JSON object per line.")
    generator = random.Random(seed)
    arrivals = [line.arrival() for line in lines]
    has_arrivals = arrivals[0] is not None
    for line, arrival in zip(lines, arrivals, strict=True):
        if (arrival is not None) != has_arrivals:
            here, first = ("missing", "given") if has_arrivals else ("given", "missing")
            raise line.error(f"arrival is {here} here and {first} on the first line: give it on all lines or on none")
    requests = [
        BenchRequest(line.prompt(generator), line.count("output_tokens"), arrival or 0.0)
        for line, arrival in zip(lines, arrivals, strict=True)
    ]
    return sorted(requests, key=lambda request: request.arrival), has_arrivals
