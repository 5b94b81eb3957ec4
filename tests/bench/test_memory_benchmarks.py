"""What the benchmark of memory prints around its measurements."""

from minllm.bench.memory import size


def test_figures_in_words():
    assert size(1 << 12) == "4 KiB" and size(1 << 24) == "16 MiB"
