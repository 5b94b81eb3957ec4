"""The benchmark of speculation: on a small random shape, where chance accepts drafts, and on the bundled model with its own."""

import json

import pytest

from minllm.bench import speculation, speculation_counts
from minllm.errors import InvalidOptionError, MinLLMError

CONFIG = dict(
    model_type="llama", vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
)  # fmt: skip
OPTIONS = dict(num_speculative_tokens=[3], batches=[2], prompt_tokens=5, tokens=24, repeats=1)


@pytest.mark.parametrize("draft", ["ngram", "itself"])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_chance_accepts_drafts_at_the_rate(tmp_path, capsys, draft, rate):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    draft = str(config) if draft == "itself" else draft
    path = tmp_path / "record.json"
    speculation.run(str(config), dict(device="cpu", dtype="float32"), draft=draft, acceptance=[rate], json_file=path, **OPTIONS)
    rows = json.loads(path.read_text())["rows"]
    assert [row["benchmark"] for row in rows] == ["speculation", "speculation step"]
    assert all(row["value"] > 0 for row in rows) and rows[0]["metrics"]["tokens_per_second"] > 0
    said = capsys.readouterr().out
    assert f"{rate:g} of drafts accepted by chance" in said
    assert ("1.00 tokens per step" in said) == (rate == 0)


def test_trained_weights_decide_for_themselves(capsys):
    speculation.run("bundled", dict(device="cpu", dtype="float32"), draft="draft", acceptance=(), json_file=None, **OPTIONS)
    assert "by chance" not in capsys.readouterr().out
    with pytest.raises(InvalidOptionError, match="weights of its own"):
        speculation.run("bundled", dict(device="cpu"), draft="draft", acceptance=[0.5], json_file=None, **OPTIONS)


def test_counts_of_all_sources(tmp_path, capsys):
    """The table has every source; one of them is counted here."""
    names = [name for name, _ in speculation_counts.sources()]
    assert len(set(names)) == len(names) > 20
    assert speculation_counts.paths_of((2, 1)) == [(0,), (1,), (0, 0), (1, 0)]
    path = tmp_path / "record.json"
    speculation_counts.run(prompts=1, prompt_tokens=20, tokens=12, json_file=path, only="W = 4")
    [tokens, rows] = json.loads(path.read_text())["rows"]
    assert (tokens["unit"], rows["unit"]) == ("tokens per step", "rows per step") and 1 <= tokens["value"] < rows["value"]
    assert "W = 4, N = 3, G = 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompts", "prompt_tokens", "tokens", "says"),
    [
        (1, 2040, 30, "the longest sequence has 2,070 tokens, and bundled has 2,048 positions"),
        (9999, 8, 3, "9999 prompts of 8 tokens take"),
    ],
)
def test_counts_that_would_be_of_fewer_tokens_are_refused(prompts, prompt_tokens, tokens, says):
    with pytest.raises(InvalidOptionError, match=says):
        speculation_counts.run(prompts=prompts, prompt_tokens=prompt_tokens, tokens=tokens, json_file=None, only="n-grams, 1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(draft="nowhere"), "no directory nowhere"),
        (dict(schedule="x"), "schedule='x'"),
        (dict(num_speculative_tokens=[99]), "from 1 to 64"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(monkeypatch, wrong, says):
    monkeypatch.setattr(speculation, "opened_model", lambda *_: pytest.fail("a model is loaded"))
    given = dict(draft="ngram", acceptance=(), json_file=None) | OPTIONS | wrong
    with pytest.raises(MinLLMError, match=says):
        speculation.run("bundled", dict(device="cpu"), **given)
