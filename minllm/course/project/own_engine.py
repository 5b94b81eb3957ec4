"""The package's engine with a learner's five parts: kernels run in the simulator, everything else in NumPy.

The engine counts its calls of each part. A run without modules is that of the package's NumPy engine, the reference for the learner's.
"""

import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.course.project.parts import APPEND, MERGE, SAMPLE, SCHEDULE, SPLIT, Part
from minllm.kernels.sampling.argmax import parts_of
from minllm.ops.batch import LayerCache
from minllm.ops.numpy_ops import NumpyOps
from minllm.runtime.kernel import launch

PROMPTS = ("def add(a, b):\n    return", "for i in range(10):\n    print(", "import os\n")
MAX_TOKENS = (3, 5, 2)  # different, so that the third request enters while another one decodes
MAX_NUM_SEQS = 2
BLOCK_SIZE = 16
SPLITS = 2


@dataclass(frozen=True)
class Run:
    """The results of a run.

    tokens: output token ids of each request. texts: the same as text. keys: the last layer's key cache, float32. calls: number of calls of
    each part, by exercise.
    """

    tokens: list[list[int]]
    texts: list[str]
    keys: np.ndarray
    calls: dict[str, int]


class ProjectOps(NumpyOps):
    """NumpyOps with a learner's kernels for append, attention and sampling."""

    def __init__(self, modules: Mapping[Part, types.ModuleType]):
        super().__init__("float32")
        self.modules, self.calls = modules, Counter()

    def count(self, part: Part) -> types.ModuleType:
        """Count a call of a part; returns its module."""
        self.calls[part.exercise_name] += 1
        return self.modules[part]

    def qkv_rope_append(self, qkv, batch, layer_cache, attention_config, cos_sin=None) -> np.ndarray:
        """NumPy computes queries, keys and values; the learner's kernel writes new keys and values to the cache."""
        tokens = len(batch.positions)
        scratch = LayerCache(*(np.zeros((tokens, 1, *layer_cache.key.shape[2:]), np.float32) for _ in range(2)))
        in_order = replace(batch, slot_mapping=np.arange(tokens, dtype=np.int32))
        query = super().qkv_rope_append(qkv, in_order, scratch, attention_config, cos_sin)
        row = scratch.key[0].size
        arrays = [one.reshape(-1, row) for one in (scratch.key, scratch.value, layer_cache.key, layer_cache.value)]
        launch(self.count(APPEND).append_kernel, tokens, self.modules[APPEND].BLOCK, (*arrays, batch.slot_mapping))
        return query

    def attention(self, query, layer_cache, batch, attention_config) -> np.ndarray:
        """The learner's split and merge kernels compute decode steps; NumPy computes steps with prompts."""
        if batch.max_query_len > 1:
            return super().attention(query, layer_cache, batch, attention_config)
        out = np.empty_like(query)
        self.calls[MERGE.exercise_name] += 1
        self.count(SPLIT).attention(
            query, layer_cache.key, layer_cache.value, out, batch.query_start, batch.context_lens, batch.block_tables,
            attention_config.scale, attention_config.sliding_window, batch.max_query_len, splits=SPLITS, warps=1,
        )  # fmt: skip
        return out.reshape(len(query), -1)

    def sample(self, logits, sampling, slots) -> np.ndarray:
        """The likeliest tokens by the learner's argmax; all requests of the project are greedy."""
        rows, parts = len(logits), parts_of(logits.shape[1])
        out, values, tokens = np.empty(rows, np.int32), np.empty((rows, parts), np.float32), np.empty((rows, parts), np.int32)
        self.count(SAMPLE).argmax(np.ascontiguousarray(logits), slots, out, values, tokens)
        return out


def scheduling(module: types.ModuleType, scheduler: Any, ops: ProjectOps) -> None:
    """Replace a scheduler's `prefill` by the learner's, and count its calls."""

    def prefill(*arguments, **options):
        ops.calls[SCHEDULE.exercise_name] += 1
        return module.Scheduler.prefill(scheduler, *arguments, **options)

    scheduler.prefill = prefill


def run(modules: Mapping[Part, types.ModuleType] | None = None) -> Run:
    """Answer the project's prompts, greedily.

    modules: a learner's parts, or None for the package's NumPy engine.
    """
    from minllm.engine.llm import LLM
    from minllm.engine.requests.sampling_params import SamplingParams

    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in MAX_TOKENS]
    options = dict(max_num_seqs=MAX_NUM_SEQS, max_model_len=64, block_size=BLOCK_SIZE, max_num_batched_tokens=16)
    with LLM(device="cpu", dtype="float32", **options) as llm:
        ops = llm.engine.ops
        if modules is not None:
            ops = llm.engine.runner.ops = ProjectOps(modules)
            scheduling(modules[SCHEDULE], llm.engine.scheduler, ops)
        outputs = [output.outputs[0] for output in llm.generate(list(PROMPTS), params)]
        keys = np.array(llm.engine.cache.layers[-1].key)
    return Run([list(one.token_ids) for one in outputs], [one.text for one in outputs], keys, dict(getattr(ops, "calls", {})))
