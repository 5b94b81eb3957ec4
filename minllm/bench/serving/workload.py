"""Requests of a serving benchmark: prompts and output lengths, drawn with random.Random(seed), so that every engine gets the same.

The named lists are those for which other engines publish figures. Two of them repeat the draws of the original script, so that with seed 0
even the token ids are the same: nano-vllm's bench.py (133,966 output tokens), and `mixed-prompts`.
"""

import random
from dataclasses import dataclass, replace

from minllm.errors import InvalidOptionError

TOKEN_IDS = (0, 10_000)  # ids of random prompts, as in nano-vllm's bench.py
MOST_TOKENS = 10_000_000  # longest prompt or output; a larger value is a mistake, and would fill the host's memory


@dataclass(frozen=True)
class BenchRequest:
    """A prompt (token ids or text), the number of tokens to generate, and the arrival in seconds after the start."""

    prompt: list[int] | str
    output_len: int
    arrival: float = 0.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens: one of `values`, or uniform between the two values if `is_range`."""

    values: tuple[int, ...]
    is_range: bool = False

    @classmethod
    def parse(cls, text: str, option: str) -> "Lengths":
        """The Lengths of "512" (fixed), "100:1024" (uniform, ends included) or "64,256,512" (a choice).

        Raises InvalidOptionError, which names `option`.
        """
        is_range = ":" in text
        try:
            values = tuple(int(part) for part in text.split(":" if is_range else ","))
        except ValueError:
            values = ()
        is_order = not is_range or (len(values) == 2 and values[0] <= values[1])
        if not values or not is_order or not all(1 <= value <= MOST_TOKENS for value in values):
            raise InvalidOptionError(
                f"{option} {text} is not allowed: give a number of tokens (512), a range LOW:HIGH (100:1024) or a choice A,B,C "
                f"(64,256,512), each from 1 to {MOST_TOKENS}."
            )
        return cls(values, is_range)

    def draw(self, generator: random.Random) -> int:
        """One random length."""
        if self.is_range:
            return generator.randint(*self.values)
        return generator.choice(self.values)

    def __str__(self) -> str:
        return (":" if self.is_range else ",").join(map(str, self.values))


@dataclass(frozen=True)
class Workload:
    """The number and the lengths of requests. token_ids: the smallest and the largest id in prompts."""

    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    token_ids: tuple[int, int] = TOKEN_IDS

    def requests(self, seed: int = 0) -> list[BenchRequest]:
        """The requests, all at second 0; the same seed gives the same list.

        All prompts are drawn before the first output length.
        """
        generator = random.Random(seed)
        prompts = [random_prompt(generator, self.input_len.draw(generator), self.token_ids) for _ in range(self.num_prompts)]
        return [BenchRequest(prompt, self.output_len.draw(generator)) for prompt in prompts]

    def __str__(self) -> str:
        return f"{self.num_prompts} requests, prompts {self.input_len}, outputs {self.output_len}"


def random_prompt(generator: random.Random, length: int, token_ids: tuple[int, int] = TOKEN_IDS) -> list[int]:
    """`length` random token ids between the two given ones, ends included."""
    return [generator.randint(*token_ids) for _ in range(length)]


def fixed(length: int) -> Lengths:
    """The distribution with this length only."""
    return Lengths((length,))


REQUEST_LISTS: dict[str, Workload] = {
    "mixed-prompts": Workload(256, Lengths((64, 256, 512)), fixed(128), token_ids=(10, 999)),
    "nano-vllm": Workload(256, Lengths((100, 1024), is_range=True), Lengths((100, 1024), is_range=True)),
    "tensorrt-llm-128-128": Workload(1000, fixed(128), fixed(128)),
    "tensorrt-llm-128-2048": Workload(1000, fixed(128), fixed(2048)),
    "tensorrt-llm-1000-1000": Workload(1000, fixed(1000), fixed(1000)),
    "tensorrt-llm-2048-128": Workload(1000, fixed(2048), fixed(128)),
}


def named_list(name: str, num_prompts: int | None = None) -> Workload:
    """The list `name` of REQUEST_LISTS, with `num_prompts` requests if given.

    Raises InvalidOptionError if the name is unknown.
    """
    if name not in REQUEST_LISTS:
        raise InvalidOptionError(f"--request-list {name} is not allowed: the lists are {', '.join(REQUEST_LISTS)}.")
    workload = REQUEST_LISTS[name]
    return workload if num_prompts is None else replace(workload, num_prompts=num_prompts)


def within_vocabulary(requests: list[BenchRequest], vocab_size: int, shift: int = 0) -> list[BenchRequest]:
    """The requests with `shift` added to every token id, modulo vocab_size. Text prompts are unchanged."""

    def prompt_of(request: BenchRequest) -> list[int] | str:
        prompt = request.prompt
        return prompt if isinstance(prompt, str) else [(token_id + shift) % vocab_size for token_id in prompt]

    return [replace(request, prompt=prompt_of(request)) for request in requests]


def longest(requests: list[BenchRequest]) -> int | None:
    """The maximum of prompt plus output tokens; None if a prompt is text, as its tokens are not known yet."""
    if any(isinstance(request.prompt, str) for request in requests):
        return None
    return max(len(request.prompt) + request.output_len for request in requests)
