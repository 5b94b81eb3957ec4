"""Random tokenizer directories against transformers' AutoTokenizer: 40 of them, 2,000 with --exhaustive."""

import collections
import warnings
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from minllm.models.tokenizer import Tokenizer
from tests.models.tokenizer_directories import KEYS, random_directory, random_text


def answers_of_transformers(directory, samples, random_ids):
    """Named ids, ids of the texts with and without special tokens, and texts of all ids with and without special tokens."""
    theirs = AutoTokenizer.from_pretrained(directory)
    named = {name: getattr(theirs, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")}
    encoded = {(text, special): theirs.encode(text, add_special_tokens=special) for text in samples for special in (True, False)}
    many_ids = {tuple(ids) for ids in (random_ids, *encoded.values())}
    return named, encoded, {(ids, skip): theirs.decode(list(ids), skip_special_tokens=skip) for ids in many_ids for skip in (True, False)}


def check_equal(directory, named, encoded, decoded):
    """The same of ours, and the pieces of a stream."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = Tokenizer.from_directory(directory)
    assert {name: getattr(ours, name) for name in named} == named
    for (text, special), ids in encoded.items():
        assert ours.encode(text, add_special_tokens=special) == ids
    for (ids, skip), text in decoded.items():
        assert ours.decode(ids, skip_special_tokens=skip) == text
        decoder = ours.incremental_decoder((), skip)
        assert "".join(map(decoder.push, ids)) + decoder.finish() == text


@pytest.mark.timeout(900)  # 2,000 directories
def test_directories_read_as_by_transformers(tmp_path, pytestconfig):
    met, wanted = collections.Counter(), 2000 if pytestconfig.option.exhaustive else 40

    @settings(max_examples=wanted, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**64))  # seeds: choices that hypothesis draws one by one are like those of the last example
    def check(seed):
        rng = Random(seed)
        case, samples, ids = random_directory(rng), [random_text(rng), random_text(rng)], rng.choices(range(330), k=rng.randint(0, 12))
        case.write(tmp_path)
        try:
            answers = answers_of_transformers(tmp_path, samples, ids)
        except Exception:  # for example if no unk_token is in the vocabulary
            met["refused"] += 1
            return
        check_equal(tmp_path, *answers)
        met.update({"read": 1} | dict.fromkeys(case.keys, 1))

    check()
    assert met["read"] > 0.9 * wanted
    rare = {key: met[key] for key in KEYS if met[key] < 0.1 * met["read"]}
    assert not rare, f"of {met['read']} directories too few have these keys: {rare}"
