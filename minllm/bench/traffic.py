"""Synthetic chat traffic: arrival times, prompts and answers of requests.

Prompts and answers have the mean lengths of the ShareGPT conversations as measured by Kwon et al. (2023, figure 11): 161 and 338 tokens.
The figure gives no spread, but shows many short and a few very long ones, modelled here by a log-normal distribution:
exp(m + s z) with normal z, s = 1 and m = log(mean) - s^2 / 2. Prompt and answer are each limited to half of the model's context. Arrivals
are a Poisson process, with exponential gaps. The same seed gives the same requests.

With system prompts, every request begins with one of a few fixed texts, distributed by Zipf's law, like requests of many users of a few
applications; prefix sharing exploits this.
"""

from dataclasses import dataclass

import numpy as np

PROMPT_MEAN, ANSWER_MEAN = 161.31, 337.99  # tokens, Kwon et al. 2023, figure 11 (a)
SPREAD = 1.0  # standard deviation of the logarithm of a length
VOCABULARY = 50_000


@dataclass(frozen=True)
class TrafficRequest:
    """A request: its arrival in seconds, its prompt, and its answer, which no policy may use in advance."""

    arrival: float
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Traffic:
    """The parameters of a list of requests.

    rate: arrivals per second. system_prompts, system_prompt_tokens: number and length of the texts with which prompts begin; 0 for none.
    """

    requests: int = 2000
    rate: float = 100.0
    max_model_len: int = 2048
    system_prompts: int = 0
    system_prompt_tokens: int = 0
    seed: int = 0

    def generate(self) -> list[TrafficRequest]:
        """The requests in the order of arrival; every call returns the same."""
        random = np.random.default_rng(self.seed)
        arrivals = np.cumsum(random.exponential(1 / self.rate, self.requests))
        prompts, answers = (self._lengths(random, mean) for mean in (PROMPT_MEAN, ANSWER_MEAN))
        beginnings = random.integers(0, VOCABULARY, (self.system_prompts, self.system_prompt_tokens)).tolist()
        weights = 1 / np.arange(1, self.system_prompts + 1)
        chosen = random.choice(self.system_prompts, self.requests, p=weights / weights.sum()) if beginnings else None
        found = []
        for i in range(self.requests):
            beginning = [] if chosen is None else beginnings[chosen[i]]
            prompt, answer = (random.integers(0, VOCABULARY, length).tolist() for length in (prompts[i], answers[i]))
            found.append(TrafficRequest(float(arrivals[i]), beginning + prompt, answer))
        return found

    def _lengths(self, random: np.random.Generator, mean: float) -> np.ndarray:
        """Log-normal lengths with about this mean: at least 1, and with a system prompt at most half of the context."""
        drawn = np.exp(np.log(mean) - SPREAD**2 / 2 + SPREAD * random.standard_normal(self.requests))
        return np.clip(np.rint(drawn), 1, self.max_model_len // 2 - self.system_prompt_tokens).astype(int)
