"""What tools/size_table.py counts as code."""

import pytest

from tools.size_table import num_tokens


@pytest.mark.parametrize(
    "source, tokens",
    [
        ("", 0),
        ("# a comment\n", 0),
        ('"""A docstring."""\n', 0),
        ("x = 1  # a comment\n", 3),
        ('x = "text"\n', 3),
        ('def f():\n    """A docstring."""\n    return "text"\n', 7),
        ('class A:\n    x: int\n    """A field\'s meaning."""\n', 6),
        ("x = (\n    1\n)\n", 5),
    ],
)
def test_comments_docstrings_and_line_breaks_are_no_code(source, tokens):
    assert num_tokens(source.encode()) == tokens
