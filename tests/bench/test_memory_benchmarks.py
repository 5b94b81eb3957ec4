"""What the benchmarks of memory, virtual memory and swapping compute around their measurements."""

import pytest

from minllm.bench.memory import size
from minllm.bench.swap import measured_crossings, words
from minllm.bench.virtual import STEPS, page_costs
from tests.runtime.guarded_pages import GuardedPages


def test_curves_cross_where_a_straight_line_says():
    counts = [100, 1000, 10000]
    assert measured_crossings(counts, [1.0, 10.0, 100.0], [2.0, 5.0, 50.0]) == [pytest.approx(316, abs=1)]
    assert measured_crossings(counts, [1.0, 10.0, 10.0], [2.0, 5.0, 20.0]) == [pytest.approx(316, abs=1), pytest.approx(3162, abs=2)]
    assert measured_crossings(counts, [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == []


def test_figures_in_words():
    assert words([]) == "no length" and words([1234, 50000]) == "1,234 tokens and 50,000 tokens"
    assert size(1 << 12) == "4 KiB" and size(1 << 24) == "16 MiB"


def test_every_call_for_a_page_is_timed_and_undone():
    backend = GuardedPages(64)
    costs = page_costs(backend, count=5)
    assert tuple(costs) == STEPS and all(cost > 0 for cost in costs.values())
    assert not backend.mapped and backend.num_created == 0
