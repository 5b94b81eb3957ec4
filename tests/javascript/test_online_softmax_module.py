"""The states that the FlashAttention page steps through, against a softmax over the keys seen so far, in float64."""

import numpy as np
import pytest

from tests.javascript.modules import HAS_BROWSER, NODE, needs_javascript, run, run_in_browser, run_in_node

TILES = (1, 2, 3, 7, 8, 20)


def cases():
    """Random scores, rising, falling, equal, and so large that exp overflows."""
    rng = np.random.default_rng(0)
    scores = [rng.normal(0, 3, 8), np.arange(8.0), np.arange(8.0)[::-1], np.ones(8), 1e4 + rng.normal(0, 3, 8), np.array([2.0])]
    return [dict(scores=row.tolist(), values=rng.normal(size=(len(row), 2)).tolist(), tile=tile) for row in scores for tile in TILES]


@needs_javascript
def test_every_state_is_the_softmax_of_the_keys_seen_and_the_last_is_the_attention():
    given = cases()
    for case, answer in zip(given, run("online_softmax_cases.mjs", "online-softmax.js", given), strict=True):
        scores, values, tile = np.array(case["scores"]), np.array(case["values"]), case["tile"]
        tiles = -(-len(scores) // tile)
        assert [state["kind"] for state in answer["states"]] == ["start", *["scores", "rescale", "add"] * tiles, "divide"]
        for state in answer["states"]:
            if state["kind"] == "add":
                seen = slice(0, state["tile"][1])
                weights = np.exp(scores[seen] - scores[seen].max())
                assert state["m"] == scores[seen].max()
                np.testing.assert_allclose(state["l"], weights.sum(), rtol=1e-12)
                np.testing.assert_allclose(state["output"], weights @ values[seen], rtol=1e-10, atol=1e-12)
        weights = np.exp(scores - scores.max())
        expected = weights @ values / weights.sum()
        np.testing.assert_allclose(answer["states"][-1]["output"], expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(answer["plain"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(not (NODE and HAS_BROWSER), reason="node and a browser are not both on this machine")
def test_node_and_the_browser_give_the_same():
    arguments = ("online_softmax_cases.mjs", "online-softmax.js", cases()[:6])
    for one, other in zip(run_in_node(*arguments), run_in_browser(*arguments), strict=True):
        assert [state["kind"] for state in one["states"]] == [state["kind"] for state in other["states"]]
        np.testing.assert_allclose(one["plain"], other["plain"], rtol=1e-14)  # their exp may differ in the last digit
