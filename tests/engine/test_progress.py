"""The bar of generate() and chat(): on a terminal alone, and erased; or one of the caller's."""

import io

import pytest

from minllm import SamplingParams
from minllm.errors import InvalidRequestError


class Bar:
    """A bar that is made as tqdm's are."""

    def __init__(self, total, desc):
        self.total, self.desc, self.done, self.is_closed = total, desc, [], False

    def update(self, more):
        assert more > 0
        self.done.append(more)

    def close(self):
        self.is_closed = True


def test_a_bar_of_the_callers(llm):
    bars = []

    def make(**options):
        bars.append(Bar(**options))
        return bars[-1]

    params = [SamplingParams(max_tokens=count, n=count) for count in (1, 3, 5)]
    llm.generate([[1], [2], [3]], params, use_tqdm=make)
    assert (bars[0].total, bars[0].desc, bars[0].done, bars[0].is_closed) == (3, "Processed prompts", [1, 1, 1], True)


def test_a_bar_is_drawn_on_a_terminal_alone(llm, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    params = SamplingParams(max_tokens=2)
    two = [[1], [2]]
    trials = (Terminal, two, True, True), (Terminal, two, False, False), (Terminal, [[1]], True, False), (io.StringIO, two, True, False)
    for kind, prompts, use_tqdm, is_drawn in trials:
        shown = kind()
        monkeypatch.setattr("sys.stderr", shown)
        llm.generate(prompts, params, use_tqdm=use_tqdm)
        assert ("Processed prompts" in shown.getvalue()) == is_drawn, (kind, prompts, use_tqdm)
    monkeypatch.setattr("sys.stderr", None)
    llm.generate([[1], [2]], params)


def test_other_values_are_refused_before_anything_is_queued(llm):
    with pytest.raises(InvalidRequestError, match="use_tqdm=3 is not allowed"):
        llm.generate([[1], [2]], SamplingParams(max_tokens=2), use_tqdm=3)
    assert not llm.llm_engine.core.has_work
