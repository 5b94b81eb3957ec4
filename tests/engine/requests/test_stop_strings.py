"""Stop strings in text that comes in pieces, against a search in the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.engine.requests.stop_strings import StopStringMatcher

STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def first_stop(text, stops):
    """(start, end) of the stop string that is completed first in `text`, the longest of several: the definition, by trying all ends."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


@given(pieces=st.lists(st.text(alphabet="ab\n", max_size=5), max_size=12), stops=STOPS, include=st.booleans())
def test_pieces_concatenate_to_the_text_before_the_first_stop(pieces, stops, include):
    whole = "".join(pieces)
    found = first_stop(whole, stops)
    expected = whole if found is None else whole[: found[1] if include else found[0]]
    matcher = StopStringMatcher(stops, include)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert expected.startswith(shown), "text was shown that a stop string takes back"
    shown += matcher.flush()
    assert shown == matcher.text == expected
    assert (matcher.stop is None) == (found is None)
    if not include:
        assert not any(stop in shown for stop in stops)


@given(text=st.text(alphabet="abc", max_size=20), stops=STOPS.filter(bool))
def test_no_more_is_held_back_than_a_stop_string_needs(text, stops):
    matcher = StopStringMatcher(stops)
    for character in text:
        matcher.push(character)
    if matcher.stop is None:
        held = text[len(matcher.text) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        assert len(held) <= max(map(len, stops)) - 1


def test_text_flows_at_once_when_no_stop_string_can_begin():
    matcher = StopStringMatcher(["\n\n"])
    assert matcher.push("def f():") == "def f():"
    assert matcher.push("\n") == ""
    assert matcher.push("    x") == "\n    x"


def test_ignored_stop_strings_are_text_but_may_begin_one():
    matcher = StopStringMatcher(["ab"])
    assert matcher.push("ab", may_stop=False) == "ab"
    assert matcher.push("a", may_stop=False) == ""
    assert matcher.push("bc") == ""
    assert (matcher.text, matcher.stop) == ("ab", "ab")


def test_what_was_ignored_stays_ignored():
    """A long stop string makes the matcher remember text in which a short one was let through."""
    matcher = StopStringMatcher(["b", "never"])
    assert matcher.push("abc", may_stop=False) == "abc"
    assert matcher.push("d") == "d" and matcher.stop is None
    assert matcher.push("ab") == "a" and matcher.stop == "b"


@pytest.mark.parametrize("include,expected", [(False, "x"), (True, "xabc")])
def test_the_longer_of_two_that_end_together_counts(include, expected):
    matcher = StopStringMatcher(["bc", "abc", "c"], include)
    matcher.push("xa")
    matcher.push("bcd")
    assert (matcher.text, matcher.stop) == (expected, "abc")
    assert matcher.push("more") == "" and matcher.flush() == ""
