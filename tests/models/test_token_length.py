"""The bound on characters per token holds for tokenizers that keep every character, and is given for no other."""

import tokenizers

from minllm.models.source import bundled_model
from minllm.models.token_length import most_chars_per_token
from minllm.models.tokenizer import Tokenizer
from tests.models.tokenizers_for_tests import TEXT, byte_level


def test_the_bound_holds_for_any_text():
    tokenizer = Tokenizer.from_directory(bundled_model())
    bound = tokenizer.most_chars_per_token
    for text in ("".join(TEXT) * 20, " " * 3000, "e\u0301" * 500, "東京" * 500, "\n" * 3000, "".join(tokenizer.backend.get_vocab())):
        assert len(text) <= bound * len(tokenizer.encode(text, add_special_tokens=False))


def test_no_bound_for_a_tokenizer_that_drops_or_joins_text():
    assert most_chars_per_token(byte_level()) is not None
    dropping = byte_level()
    dropping.normalizer = tokenizers.normalizers.Strip()
    assert most_chars_per_token(dropping) is None
    dropping = byte_level()
    split = tokenizers.pre_tokenizers.Split(" ", "removed")
    dropping.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, dropping.pre_tokenizer])
    assert most_chars_per_token(dropping) is None
    greedy = byte_level()
    greedy.add_special_tokens([tokenizers.AddedToken("<|x|>", lstrip=True)])
    assert most_chars_per_token(greedy) is None
    assert most_chars_per_token(tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, "<unk>"))) is None
    assert most_chars_per_token(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))) is None


def test_composing_normal_forms_count():
    composing = byte_level()
    composing.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFC()])
    assert most_chars_per_token(composing) == 4 * most_chars_per_token(byte_level())
