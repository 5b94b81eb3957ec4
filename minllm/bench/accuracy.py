"""The quality cost of a quantised KV cache: perplexity, logits and likeliest token, compared with the plain cache.

    perplexity      of held-out text, computed as by `bench perplexity`
    logit error     the norm of the difference of the logits over the norm of their spread, both after subtracting each row's mean (which
                    softmax cancels)
    top-1           the share of positions with an unchanged likeliest next token

Weights and activations are the same; only the cache differs, and every format reads the same windows of text. All keys and values that a
token sees have passed through the cache, including those of its own chunk. The model is the bundled one, trained on similar text.

A row's variant is the format's name, with a residual window also its number of tokens: "int4, window 128".
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minllm import LLM, held_out_text
from minllm.bench.perplexity import STRIDE, WINDOW
from minllm.bench.record import Row, device_of, stream, write_rows
from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import KVCache
from minllm.cache.paged import PagedPolicy
from minllm.cache.residual_window import window_room
from minllm.engine.build.cache_format import cache_shape
from minllm.engine.build.calibration import calibrate
from minllm.engine.scoring import Scorer, windows
from minllm.kernels.quantization.formats import CHANNEL_FORMATS, TOKEN_FORMATS
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.kernels.sampling.log_probabilities import log_softmax

BENCHMARK = "KV cache accuracy"
CACHES = (*((name, 0) for name in TOKEN_FORMATS), ("int4", 128), ("fp8_e4m3", 256), ("kivi_int4", 128))  # (format, residual window)


@dataclass
class Comparison:
    """Sums over the positions so far of one format, compared with the plain cache at the same positions."""

    tokens: int = 0
    log_likelihood: float = 0.0
    squared_error: float = 0.0
    squared_spread: float = 0.0
    same_first: int = 0

    def add(self, logits: np.ndarray, plain: np.ndarray, targets: np.ndarray) -> None:
        """Add logits [rows, vocab] of this format and of the plain cache.

        targets: the next token at each position, [rows].
        """
        likelihoods = np.take_along_axis(log_softmax(logits), targets[:, None], axis=1)
        centred = plain - plain.mean(axis=1, keepdims=True)
        difference = logits - logits.mean(axis=1, keepdims=True) - centred
        self.tokens += len(targets)
        self.log_likelihood += float(likelihoods.sum(dtype=np.float64))
        self.squared_error += float(np.square(difference).sum(dtype=np.float64))
        self.squared_spread += float(np.square(centred).sum(dtype=np.float64))
        self.same_first += int((logits.argmax(axis=1) == plain.argmax(axis=1)).sum())

    @property
    def perplexity(self) -> float:
        """exp(mean negative log-likelihood)."""
        return float(np.exp(-self.log_likelihood / self.tokens))

    @property
    def logit_error(self) -> float:
        """The relative error of the logits, as defined at the top of this file."""
        return (self.squared_error / self.squared_spread) ** 0.5

    @property
    def same_top(self) -> float:
        """The share of positions with the same likeliest token."""
        return self.same_first / self.tokens


def run(options: dict[str, Any], tokens: int | None, json_file: Path | None) -> None:
    """Measure the bundled model and print; if `json_file` is given, write the record.

    options: those of LLM(). tokens: number of tokens of held-out text to read; None for all.
    """
    out = stream(json_file)
    with LLM(max_num_seqs=1, progress=sys.stderr.isatty(), **options) as llm:
        token_ids = llm.tokenizer.encode(held_out_text())[:tokens]
        compared = compare(llm, token_ids)
        device = device_of(llm)
    measured = rows("bundled", len(token_ids), str(llm.options.dtype), compared)
    for row in measured:
        print(f"{row.variant}: {row.value} {row.unit} ({row.case})", file=out, flush=True)
    write_rows(json_file, device, {}, measured)


def compare(llm: LLM, token_ids: list[int], caches: tuple[tuple[str, int], ...] = CACHES) -> dict[str, Comparison]:
    """{variant: Comparison} of each (format, residual window), and of the plain cache as "auto", on a text read in windows."""
    scorers = {variant_of(*cache): scorer_of(llm, *cache) for cache in (("auto", 0), *caches)}
    compared = {name: Comparison() for name in scorers}
    window = min(WINDOW, llm.max_model_len)
    for begin, end, first_target in windows(len(token_ids), window, min(STRIDE, window // 2)):
        text, first_row = token_ids[begin : end - 1], first_target - begin - 1
        targets = np.asarray(token_ids[first_target:end])
        logits = {name: np.concatenate(list(scorer.logits(text, first_row))) for name, scorer in scorers.items()}
        for name in scorers:
            compared[name].add(logits[name], logits["auto"], targets)
    return compared


def variant_of(kv_cache_dtype: str, residual_window: int) -> str:
    """The variant of a cache in rows of the record."""
    return f"{kv_cache_dtype}, window {residual_window}" if residual_window else kv_cache_dtype


def scorer_of(llm: LLM, kv_cache_dtype: str, residual_window: int) -> Scorer:
    """A Scorer with its own cache, which holds one window of the text."""
    engine, options = llm.engine, llm.options
    block_size = TOKEN_GROUP if kv_cache_dtype in CHANNEL_FORMATS else options.block_size
    shape = cache_shape(engine.model.config, engine.ops.dtype, block_size, kv_cache_dtype, residual_window)
    blocks = blocks_needed(min(WINDOW, llm.max_model_len), block_size)
    cache = KVCache(engine.ops, shape, blocks, window_room(residual_window, 1, options.max_num_batched_tokens))
    calibration = calibrate(engine.ops, engine.model, shape, engine.tokenizer, llm.max_model_len)
    if calibration is not None:
        cache.calibrate(calibration.smoothing, calibration.scales, engine.ops)
    policy = PagedPolicy(blocks, shape.block_size, shape.bytes_per_block)
    return Scorer(engine.ops, engine.model, cache, policy, options.max_num_batched_tokens)


def rows(name: str, tokens: int, dtype: str, compared: dict[str, Comparison]) -> list[Row]:
    """A row per format: by how many percent its perplexity is above the plain cache's."""
    case, plain, found = f"{name}, {tokens} tokens, perplexity above the plain cache's", compared["auto"].perplexity, []
    for variant, one in compared.items():
        if variant != "auto":
            metrics = {
                "perplexity": round(one.perplexity, 4), f"perplexity with a {dtype} cache": round(plain, 4),
                "logit error, %": round(100 * one.logit_error, 4), "same likeliest token, %": round(100 * one.same_top, 2),
            }  # fmt: skip
            found.append(Row(BENCHMARK, case, variant, round(100 * (one.perplexity / plain - 1), 4), "%", metrics=metrics))
    return found
