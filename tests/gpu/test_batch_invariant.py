"""batch_invariant=True on a GPU: random companies leave every score as it is alone, to the last bit, with and without graphs.

There are 1,000 companies with --exhaustive, and 100 without.
"""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import FIXED_ORDER_VARIANTS
from minllm.errors import InvalidOptionError
from minllm.kernels.attention.fixed_split import fixed_split
from minllm.kernels.matmul.flat.fixed_order import gated_fixed_order, matmul_fixed_order
from minllm.ops.batch import Routing
from minllm.ops.cuda_ops import CudaOps
from minllm.weights.formats import plain_linear
from tests.engine.models import model_directory
from tests.engine.test_batch_invariant import NGRAMS, scores
from tests.gpu.agreement import KV_CACHE_BYTES
from tests.models.random_models import prompt

PER_BUDGET, PER_BUDGET_EXHAUSTIVE = 5, 25  # companies for each case and budget
BUDGETS = (6, 16, 64, 300, 2048)  # tokens per step: a prompt comes whole, or in chunks of about so many
GPU = dict(device="cuda", max_model_len=400, max_num_seqs=64, kv_cache_memory_bytes=KV_CACHE_BYTES, batch_invariant=True)
PROMPTS = [prompt(1 + 37 * i % 300, seed=i) for i in range(24)]
PARAMS = [
    SamplingParams(temperature=(0.0, 0.9)[i % 2], seed=i, max_tokens=1 + 5 * i % 17, logprobs=3, ignore_eos=True)
    for i in range(len(PROMPTS))
]  # fmt: skip


@pytest.mark.parametrize("n, k, gated", [(6144, 4096, False), (4096, 14336, False), (28672, 4096, True)])
def test_products_of_the_8b_shape(n, k, gated):
    """Rows of 300 are the same bits in other numbers of rows, at other places of a tile; x spans four decades."""
    ops, generator = CudaOps("bfloat16"), np.random.default_rng(0)
    x, weight = (generator.standard_normal(shape, np.float32) for shape in ((300, k), (n, k)))
    x, weight = (x * 10 ** generator.uniform(-2, 2, x.shape)).astype(ops.dtype), weight.astype(ops.dtype)
    on_device = ops.array(weight)

    def product(rows):
        out = ops.empty((len(rows), n // 2 if gated else n), ops.dtype)
        launch = gated_fixed_order if gated else matmul_fixed_order
        launch(ops.array(rows), on_device, out, stream=ops.stream)
        return ops.to_host(out)

    whole = product(x)
    for first, rows in ((0, 1), (0, 9), (3, 64), (7, 100), (40, 200), (299, 1)):
        np.testing.assert_array_equal(product(x[first : first + rows].copy()), whole[first : first + rows])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_experts_in_any_company(dtype):
    """Rows of 300 are the same bits in other numbers of rows, which take other tiles."""
    ops, generator = CudaOps(dtype, FIXED_ORDER_VARIANTS), np.random.default_rng(0)
    experts, chosen, hidden, inner = 16, 4, 2048, 768
    shapes = ((experts, hidden), (experts * 2 * inner, hidden), (experts * hidden, inner))
    router, gate_up, down = (ops.array(generator.standard_normal(shape, np.float32).astype(ops.dtype)) for shape in shapes)
    x = generator.standard_normal((300, hidden), np.float32).astype(ops.dtype)

    def rows(part):
        routing = Routing(experts, chosen, normalized=True)
        return ops.to_host(ops.experts(ops.array(part), router, plain_linear(gate_up), plain_linear(down), routing))

    whole = rows(x)
    for first, count in ((0, 1), (0, 9), (3, 64), (7, 100), (40, 200), (299, 1)):
        np.testing.assert_array_equal(rows(x[first : first + count].copy()), whole[first : first + count])


def test_attention_of_the_8b_shape():
    """Rows of a chunk of 700 are the same bits as decode steps and verifications, alone and among 40, whatever blocks divide the keys."""
    ops, generator, context, block = CudaOps("bfloat16"), np.random.default_rng(0), 3000, 16
    query = generator.standard_normal((context, 32, 128), np.float32).astype(ops.dtype)
    caches = [ops.array(generator.standard_normal((-(-context // block), block, 8, 128), np.float32).astype(ops.dtype)) for _ in range(2)]

    def rows(spans, **options):
        queries = ops.array(np.concatenate([query[start : start + length] for start, length in spans]))
        starts = np.cumsum([0] + [length for _, length in spans]).astype(np.int32)
        ends = np.array([start + length for start, length in spans], np.int32)
        tables = np.tile(np.arange(-(-context // block), dtype=np.int32), (len(spans), 1))
        out, longest = ops.empty(queries.shape, ops.dtype), max(length for _, length in spans)
        arrays = (queries, *caches, out, *map(ops.array, (starts, ends, tables)))
        shapes = fixed_split.workspace_shapes(queries, caches[0], arrays[-1])
        workspace = {name: ops.empty(*shape) for name, shape in shapes.items()}  # parts of the keys need room for their states
        fixed_split.attention(*arrays, 128**-0.5, 0, longest, workspace, **options)
        return np.split(ops.to_host(out), starts[1:-1])

    [chunk] = rows([(context - 700, 700)])
    for options in ({}, {"parts": 1}, {"parts": 7}, {"parts": 40, "warps": 2}):
        for company in ([], [(100 + 60 * i, 1 + i % 7) for i in range(40)]):
            for first, length in ((context - 1, 1), (context - 300, 5), (context - 641, 33)):
                found, *_ = rows([(first, length), *company], **options)
                np.testing.assert_array_equal(found, chunk[first - context + 700 :][:length])


@pytest.mark.covering("dtype + enforce_eager", "drafts")
@pytest.mark.timeout(400)  # beside other processes on the same GPU
@pytest.mark.parametrize("drafts", [None, NGRAMS], ids=["plain", "ngram"])
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_random_companies(request, dtype, enforce_eager, drafts):
    """A company has 1 to 64 requests."""
    generator = np.random.default_rng([dtype == "float32", enforce_eager, drafts is not None])
    with LLM(model_directory("llama3"), dtype=dtype, **GPU) as llm:
        alone = [scores(llm.generate([one], params)[0]) for one, params in zip(PROMPTS, PARAMS, strict=True)]
    for budget in BUDGETS:
        options = GPU | dict(dtype=dtype, enforce_eager=enforce_eager, speculative_config=drafts, max_num_batched_tokens=budget)
        with LLM(model_directory("llama3"), **options) as llm:
            for _ in range(PER_BUDGET_EXHAUSTIVE if request.config.option.exhaustive else PER_BUDGET):
                chosen = generator.integers(0, len(PROMPTS), generator.choice([1, 2, 8, 32, 64]))
                found = llm.generate([PROMPTS[i] for i in chosen], [PARAMS[i] for i in chosen])
                for output, i in zip(found, chosen, strict=True):
                    assert scores(output) == alone[i], f"request {i} among {len(chosen)}, {budget} tokens per step"


def test_the_bundled_model_with_its_draft_in_bfloat16():
    """Greedy text is token for token that of plain decoding, because verified rows have the bits of decode steps."""
    texts = ["def read_lines(path):", "class Stack:\n", "import os\n\n\ndef main", "for i in range(10):"] * 5
    params, found = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), []
    for config in (None, {"method": "draft_model", "num_speculative_tokens": 4}, {"method": "ngram", "num_speculative_tokens": 4}):
        with LLM(device="cuda", dtype="bfloat16", max_num_seqs=16, speculative_config=config, batch_invariant=True) as llm:
            found.append([output.outputs[0].token_ids for output in llm.generate(texts, params)])
    assert found[1] == found[0] and found[2] == found[0]


def test_quantised_weights_are_refused():
    with pytest.raises(InvalidOptionError, match="batch_invariant=True has no kernels for weights in int8"):
        LLM(model_directory("llama3"), quantization="int8", **GPU)
