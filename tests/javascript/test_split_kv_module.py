"""The page about waves: splits, shares and steps are those of kernels/attention/split_kv, and the schedule uses every slot that it can."""

import random

from minllm.kernels.attention.split_kv.choice import BLOCKS_PER_SM, choose_splits, head_tiles_of
from minllm.kernels.attention.split_kv.merge import share_of_split
from minllm.kernels.attention.split_kv.split_kv import make_split_kernel
from tests.javascript.modules import needs_javascript, run


def random_sizes(rng: random.Random) -> dict:
    return dict(
        sequences=round(300 ** rng.random()), kvHeads=rng.choice([1, 2, 4, 8]), group=rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16]),
        context=round(100_000 ** rng.random()), sms=rng.choice([40, 80, 108, 132, 148]), headDim=rng.choice([64, 96, 128, 256]),
    )  # fmt: skip


def check_schedule(blocks: list[dict], keys: list[int], slots: int) -> None:
    """No slot runs two blocks at a time, and each block starts on the slot that is free first."""
    by_slot: dict[int, list[dict]] = {}
    for block in blocks:
        assert block["end"] - block["start"] == keys[block["split"]] and 0 <= block["slot"] < slots
        by_slot.setdefault(block["slot"], []).append(block)
    free = [0] * slots
    for block in blocks:
        assert block["start"] == min(free) == free[block["slot"]]
        free[block["slot"]] = block["end"]
    for mine in by_slot.values():
        assert all(one["end"] == other["start"] for one, other in zip(mine, mine[1:]))


@needs_javascript
def test_splits_and_shares_are_those_of_the_kernel():
    rng, cases = random.Random(5), []
    for _ in range(200):
        sizes = random_sizes(rng)
        splits = rng.randint(1, 60)
        blocks = sizes["sequences"] * sizes["kvHeads"] * head_tiles_of(sizes["group"])[0] * splits
        cases.append(dict(sizes=sizes, splits=splits, draw=blocks < 1500))
    answers = run("split_kv_cases.mjs", "split-kv.js", cases)
    for case, answer in zip(cases, answers, strict=True):
        sizes, splits = case["sizes"], case["splits"]
        assert answer["own"] == choose_splits(sizes["sequences"], sizes["kvHeads"], sizes["group"], sizes["context"], sizes["sms"]), case
        assert tuple(answer["tiles"]) == head_tiles_of(sizes["group"])
        _, _, step, _ = make_split_kernel("bfloat16", sizes["headDim"], 16, sizes["group"])
        assert answer["step"] == step, case
        spans = [share_of_split.py_func(split, splits, sizes["context"], 0, step) for split in range(splits)]
        assert answer["shares"] == [max(0, stop - start) for start, stop in spans], case
        if answer["blocks"] is not None:
            assert len(answer["blocks"]) == sizes["sequences"] * sizes["kvHeads"] * answer["tiles"][0] * splits
            check_schedule(answer["blocks"], answer["shares"], BLOCKS_PER_SM * sizes["sms"])
    assert sum(case["draw"] for case in cases) > 50
