"""The cache of the page that plays with blocks, against the package's own on random requests: block tables, hits, copies, evictions."""

import random

from minllm.cache.hash_chain import HashChain
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.errors import OutOfMemoryError
from tests.javascript.modules import needs_javascript, run

CASES, CALLS = 60, 40


def make_policy(num_blocks: int, block_size: int) -> PrefixSharingPolicy:
    return PrefixSharingPolicy(HashChain(block_size), num_blocks, block_size)


def tokens(rng: random.Random, most: int) -> list[int]:
    """Few different tokens, so that beginnings are often alike."""
    return [rng.choice([0, 0, 0, 1]) for _ in range(rng.randint(1, most))]


def random_case(seed: int) -> tuple[dict, list[dict]]:
    """(the calls, what the package's cache answers to each)."""
    rng = random.Random(seed)
    size = dict(numBlocks=rng.randint(2, 12), blockSize=rng.choice([1, 2, 4]))
    policy = make_policy(size["numBlocks"], size["blockSize"])
    names, calls, answers = [], [], []
    for number in range(CALLS):
        what = rng.choice(["reserve", "append", "append", "fork", "end"]) if names else "reserve"
        call = [what, rng.choice(names) if names and what != "reserve" else f"s{number}"]
        if what in ("reserve", "append"):
            call.append(tokens(rng, 3 * size["blockSize"] + 1))
        elif what == "fork":
            call.append(f"s{number}")
        calls.append(call)
        answers.append(apply(policy, call, names))
    return dict(size, calls=calls), answers


def apply(policy: PrefixSharingPolicy, call: list, names: list[str]) -> dict:
    """Do a call; `names` follows."""
    what, name, *given = call
    hit = copies = None
    try:
        if what == "reserve":
            hit = policy.reserve(name, *given)
        elif what == "append":
            policy.append(name, *given)
        elif what == "fork":
            policy.fork(name, *given)
        else:
            policy.free(name)
            names.remove(name)
        names += {"reserve": [name], "fork": given}.get(what, [])
        copies = policy.take_copies()
        if what in ("reserve", "append"):
            policy.commit(name, len(policy.tokens(name)))
    except OutOfMemoryError:
        copies = "no room"
    policy.check()
    usage = policy.usage()  # a byte a token
    return dict(hit=hit, copies=copies, tables={name: policy.table(name) for name in names}, usage=usage)


@needs_javascript
def test_the_pages_cache_does_what_the_packages_does():
    made = [random_case(seed) for seed in range(CASES)]
    answered = run("paged_blocks_cases.mjs", "paged-blocks.js", [case for case, _ in made])
    seen = set()
    for (case, expected), answers in zip(made, answered, strict=True):
        for call, ours, theirs in zip(case["calls"], expected, answers, strict=True):
            told = theirs["told"]
            assert (told == "no room") == (ours["copies"] == "no room"), (case, call)
            assert theirs["tables"] == ours["tables"], (case, call)
            assert theirs["places"] == ours["usage"].allocated and theirs["unused"] == ours["usage"].wasted, (case, call)
            assert case["blockSize"] * theirs["states"].count("idle") == ours["usage"].retained, (case, call)
            if told == "no room":
                seen.add("no room")
            elif call[0] in ("reserve", "append"):
                assert ([tuple(told["copied"])] if told["copied"] else []) == ours["copies"], (case, call)
                assert told.get("hit") == ours["hit"], (case, call)
                seen |= {what for what in ("hit", "copied", "evicted") if told.get(what)}
    assert seen == {"hit", "copied", "evicted", "no room"}  # the cases reach everything
