"""The engine: a scheduler, a model, and the loop between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minllm.errors import InvalidOptionError, InvalidRequestError, UnsupportedModelError
from minllm.models.source import bundled_model, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.nano.block_pool import BlockPool
from minllm.nano.forward import Batch, forward, make_batch
from minllm.nano.operations import Equations, Gpu, Simulated
from minllm.nano.sampling import choose
from minllm.nano.scheduler import Scheduler, Step, sampled
from minllm.nano.sequence import SamplingParams, Sequence
from minllm.nano.weights import load_weights

DEVICES = {"cpu": Equations, "simulator": Simulated, "cuda": Gpu}


@dataclass(frozen=True)
class Output:
    """A continued prompt. finish_reason: "stop" (an end of text) or "length" (max_tokens, or the model's longest text)."""

    text: str
    token_ids: list[int]
    finish_reason: str


class NanoLLM:
    """A model that continues texts, many at once."""

    def __init__(
        self, model: Path | str | None = None, device: str = "cpu", dtype: str = "float32", num_blocks: int = 1024, block_size: int = 16,
        max_num_seqs: int = 16, max_num_batched_tokens: int = 512,
    ):  # fmt: skip
        """model: a Hugging Face directory or a GGUF file with plain weights; None takes the bundled one.

        device: "cpu" (NumPy), "simulator" or "cuda". dtype: of weights, activations and cache: "float32", "float16" or "bfloat16".
        num_blocks: of the cache, block_size tokens each.
        Raises CheckpointError or UnsupportedModelError for the model, InvalidOptionError for the rest.
        """
        if device not in DEVICES:
            raise InvalidOptionError(f"device is {device!r}; give one of {', '.join(DEVICES)}.")
        if not 0 < max_num_seqs <= max_num_batched_tokens:
            raise InvalidOptionError(
                f"max_num_seqs is {max_num_seqs} and max_num_batched_tokens {max_num_batched_tokens}; give at least 1 sequence, and at "
                "least as many tokens."
            )
        source = open_source(bundled_model() if model is None else Path(model))
        config = source.config()
        checkpoint = source.checkpoint(config)
        if source.weight_format(config, checkpoint) is not None:
            raise UnsupportedModelError(
                f"The weights of {source.path} are quantised, and minllm.nano reads plain ones; minllm.LLM runs this model."
            )
        self.config = untied_if_stored(config, checkpoint)
        self.tokenizer, self.ops = source.tokenizer(), DEVICES[device]()
        max_model_len = min(config.max_position_embeddings, num_blocks * block_size)
        self.weights = load_weights(self.ops, self.config, checkpoint, np.dtype(dtype), max_model_len)
        cache = (num_blocks, block_size, config.num_key_value_heads, config.head_dim)
        self.caches = [tuple(self.ops.zeros(cache, np.dtype(dtype)) for _ in "kv") for _ in self.weights.layers]
        stated, named = source.generation_config().eos_token_ids or config.eos_token_ids, self.tokenizer.eos_token_id
        ends = frozenset(stated if named is None else (*stated, named))
        self.scheduler = Scheduler(BlockPool(num_blocks, block_size), max_num_seqs, max_num_batched_tokens, ends, max_model_len)

    def add(self, prompt: str | list[int], params: SamplingParams) -> Sequence:
        """Queue a prompt, a text or token ids. Raises InvalidRequestError, or OutOfMemoryError if it can never fit."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        longest, vocabulary = self.scheduler.max_model_len - 1, self.config.vocab_size
        if not 0 < len(tokens) <= longest:
            raise InvalidRequestError(f"The prompt has {len(tokens)} tokens; give 1 to {longest}, so that one more fits.")
        if not all(0 <= token < vocabulary for token in tokens):
            raise InvalidRequestError(f"The prompt has token ids outside the vocabulary: they are 0 to {vocabulary - 1}.")
        counts = params.max_tokens >= 1 and params.top_k >= 0 and (params.seed is None or params.seed >= 0)
        if not (counts and 0 <= params.temperature < np.inf and 0 < params.top_p <= 1):
            raise InvalidRequestError(
                f"{params}: max_tokens must be 1 or more, temperature, top_k and seed 0 or more, top_p above 0 and at most 1."
            )
        sequence = Sequence(tokens, params)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """Compute the next step; returns the sequences that got a token."""
        step = self.scheduler.schedule()
        batch = make_batch(step, self.scheduler.pool.block_size)
        batch = Batch(**{name: self.ops.array(array) for name, array in vars(batch).items()})
        logits = forward(self.ops, self.weights, self.config, batch, self.caches)
        return self.scheduler.take(step, self._sample(step, logits))

    def _sample(self, step: Step, logits) -> list[int]:
        """A token for each sequence that gets one; logits stay on the device if each takes its likeliest token."""
        sequences = sampled(step)
        if not sequences:
            return []
        likeliest = self.ops.argmax(logits).tolist()
        if all(sequence.params.temperature == 0 for sequence in sequences):
            return likeliest
        rows = zip(sequences, likeliest, self.ops.to_host(logits), strict=True)
        return [choose(row, sequence) if sequence.params.temperature else token for sequence, token, row in rows]

    def generate(self, prompts: list[str | list[int]], params: SamplingParams | None = None) -> list[Output]:
        """Continue all prompts, in-flight. Raises the first error of a request after the others have ended."""
        sequences = []
        try:
            for prompt in prompts:
                sequences.append(self.add(prompt, params or SamplingParams()))
            while not all(sequence.finish_reason for sequence in sequences):
                self.step()
        finally:
            self._forget(sequences)
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error
        return [self._output(sequence) for sequence in sequences]

    def stream(self, prompt: str, params: SamplingParams | None = None) -> Iterator[str]:
        """The continuation of one prompt, piece by piece."""
        sequence = self.add(prompt, params or SamplingParams())
        decoder = self.tokenizer.incremental_decoder(sequence.prompt_token_ids)
        try:
            while not sequence.finish_reason:
                if sequence in self.step() and sequence.error is None:
                    yield decoder.push(sequence.output_token_ids[-1])
            yield decoder.finish()
        finally:
            self._forget([sequence])
        if sequence.error is not None:
            raise sequence.error

    def _output(self, sequence: Sequence) -> Output:
        text = self.tokenizer.incremental_decoder(sequence.prompt_token_ids)
        return Output(text.push_all(sequence.output_token_ids) + text.finish(), sequence.output_token_ids, sequence.finish_reason)

    def _forget(self, sequences: list[Sequence]) -> None:
        """End those that have not ended, as after an interrupt."""
        for sequence in sequences:
            if not sequence.finish_reason:
                self.scheduler.finish(sequence, "abort")
