"""The page about coalescing: its indices are Python's, and its sectors and turns those of minllm/sim/traffic.py, on random expressions."""

import random

from minllm.sim.traffic import LaneAccess, sectors, turns
from tests.javascript.modules import needs_javascript, run

CASES = 400
OPERATORS = ["+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^"]


def random_index(rng: random.Random, depth: int = 3) -> str:
    """An expression of Python with whole numbers only; some divide by zero or become negative."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["lane", "lane", "lane", "warp", "k", str(rng.randint(0, 70)), hex(rng.randint(0, 40))])
    if rng.random() < 0.1:
        return rng.choice(["-", "+", "~"]) + random_index(rng, depth - 1)
    operator = rng.choice(OPERATORS)
    left, right = random_index(rng, depth - 1), str(rng.randint(0, 6)) if operator in ("<<", ">>") else random_index(rng, depth - 1)
    both = f"{left}{rng.choice(['', ' '])}{operator} {right}"
    return f"({both})" if rng.random() < 0.5 else both


def expected(case: dict) -> dict | None:
    """What Python and the package make of a case; None where Python cannot compute it or an index is outside of every array."""
    try:
        names = dict(warp=case["warp"], k=case["k"])
        indices = [eval(case["index"], {"__builtins__": {}}, dict(names, lane=lane)) for lane in range(32)]
    except (ZeroDivisionError, ValueError):
        return None
    if min(indices) < 0 or max(indices) >= 2**31:
        return None
    request = [LaneAccess(lane, index * case["width"], case["width"]) for lane, index in enumerate(indices)]
    return dict(indices=indices, sectors=sorted(sectors(request)), turns=turns(request))


@needs_javascript
def test_random_indices_cost_what_the_package_counts():
    rng = random.Random(11)
    widths = [1, 2, 4, 8, 16]
    cases = [dict(index=random_index(rng), width=rng.choice(widths), warp=rng.randint(0, 7), k=rng.randint(0, 100)) for _ in range(CASES)]
    answers = run("warp_accesses_cases.mjs", "warp-traffic.js", cases)
    wanted = [expected(case) for case in cases]
    for case, answer, found in zip(cases, answers, wanted, strict=True):
        assert "error" in answer if found is None else answer == found, case
    assert sum(found is not None for found in wanted) > CASES / 4
    assert len({tuple(found["turns"]) for found in wanted if found}) > 10


@needs_javascript
def test_an_index_that_cannot_be_is_explained():
    told = {
        "": "Write an index, for example lane.",
        "lane / 2": "Character 6, “/”, is not part of an index: use // for whole numbers.",
        "lane ** 2": "At character 7: a number, a name or a parenthesis is missing.",
        "(lane + 1": "the parenthesis of character 1 is not closed",
        "lane 2": "an operator is missing before “2”",
        "thread": "“thread” is not known; lane, warp, k are.",
        "1.5 * lane": "“1.” is not a whole number",
        "alert(1)": "“alert” is not known",
        "lane.constructor": "Character 5, “.”",
        "lane - 1": "Lane 0 has the index -1, which lies before the array.",
        "lane << 60": "Lane 1 has an index of 2,147,483,648 or more",
        "1 << 5000 + lane": "A shift by 5000 is not possible",
        "lane % 0": "divides by zero",
        "(" * 60 + "1" + ")" * 60: "more than 50 signs and parentheses",
        "1+" * 150 + "1": "at most 200 are read",
    }
    answers = run("warp_accesses_cases.mjs", "warp-traffic.js", [dict(index=index, width=4, warp=0, k=0) for index in told])
    for (index, message), answer in zip(told.items(), answers, strict=True):
        assert message in answer["error"], index
