"""The peer of the serving benchmark: continuous batching of Hugging Face transformers 5, in the same process, on the same requests.

`generate_batch` uses one max_new_tokens for all prompts and starts them together. Here requests differ in length and arrive over time, so
the code below drives its manager, with the same settings: the manager's generation thread runs, requests are added when they are due, and
the times of tokens are those that the manager records.

Shapes with random weights use transformers' random initialisation, as speed depends on the shape alone.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.utils import WorkloadHints

from minllm.bench.generate import BUNDLED
from minllm.bench.serving.concurrency import Places
from minllm.bench.serving.metrics import RequestTimes, ServedRun
from minllm.bench.serving.workload import BenchRequest
from minllm.errors import DeviceError, InvalidOptionError
from minllm.models.shapes import BUNDLED_CONFIG, SHAPES

NAME = f"transformers {transformers.__version__}"
POLL_SECONDS = 0.1  # longest wait for a result before checking that the generation thread still runs


@dataclass(frozen=True)
class TransformersEngine:
    """A running manager, the size of the model's vocabulary, and the directory of its tokenizer."""

    manager: ContinuousBatchingManager
    vocab_size: int
    directory: Path

    def token_ids(self, prompt: list[int] | str) -> list[int]:
        """A prompt as token ids."""
        return transformers.AutoTokenizer.from_pretrained(self.directory).encode(prompt) if isinstance(prompt, str) else prompt


@contextmanager
def opened(model: str, dtype: str, device: str, max_tokens: int | None) -> Iterator[TransformersEngine]:
    """A running engine for the bundled model, a directory, or a shape of SHAPES.

    max_tokens: length of the longest request, if known.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidOptionError("--against transformers: this PyTorch sees no GPU. Install one with CUDA, or leave the option out.")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) if model in SHAPES else BUNDLED_CONFIG.parent if model == BUNDLED else Path(model)
        if model in SHAPES:
            (directory / "config.json").write_text(json.dumps(SHAPES[model]), encoding="utf-8")
        network = loaded(directory, dtype, device, has_weights=model not in SHAPES)
        settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        hints = WorkloadHints(max_prompt_length=max_tokens or 0, max_generated_length=max_tokens or 0)
        with network.continuous_batching_context_manager(generation_config=settings, workload_hints=hints) as manager:
            yield TransformersEngine(manager, network.config.get_text_config().vocab_size, directory)
    if device == "cuda":
        torch.cuda.empty_cache()


def loaded(directory: Path, dtype: str, device: str, has_weights: bool) -> Any:
    """The network on the device, in evaluation mode."""
    number_type = "auto" if dtype == "auto" and has_weights else torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    if has_weights:
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=number_type, attn_implementation="sdpa").to(device).eval()
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=number_type, attn_implementation="sdpa").eval()


def warm_up(engine: TransformersEngine, requests: Sequence[BenchRequest]) -> None:
    """Serve requests that are not measured."""
    if requests:
        serve(engine, requests)


def serve(engine: TransformersEngine, requests: Sequence[BenchRequest], max_concurrency: int | None = None) -> ServedRun:
    """Serve `requests`, sorted by arrival, at most max_concurrency at a time.

    Raises DeviceError if the generation thread ends.
    """
    manager, prompts = engine.manager, [engine.token_ids(request.prompt) for request in requests]
    places = Places(max_concurrency, len(requests))
    times = [RequestTimes(len(prompt), 0.0) for prompt in prompts]
    numbers: dict[str, int] = {}  # the manager's request id -> index
    due, start = 0, time.perf_counter()
    while due < len(requests) or numbers:
        now = time.perf_counter() - start
        while due < len(requests) and places.free and requests[due].arrival <= now:
            limits = dict(max_new_tokens=requests[due].output_len, record_timestamps=True, eos_token_id=-1)
            numbers[manager.add_request(prompts[due], **limits)] = due
            times[due].start = places.take(requests[due].arrival)
            due += 1
        wait = POLL_SECONDS
        if due < len(requests) and places.free:
            wait = min(wait, max(0.0, requests[due].arrival - now))
        result = manager.get_result(timeout=wait) if numbers else time.sleep(wait)
        if result is not None and result.is_finished():
            index = numbers.pop(result.request_id)
            times[index].output_times = [moment - start for moment in result.timestamps or []]
            times[index].succeeded = result.error is None and bool(times[index].output_times)
            times[index].output_tokens = len(result.generated_tokens)
            places.give_back(times[index].output_times[-1] if times[index].output_times else time.perf_counter() - start)
        elif not manager.is_running():
            raise DeviceError(f"{NAME} ended its generation thread with {len(numbers)} requests unfinished: its log says why.")
    return ServedRun(times, [])
