"""Virtual memory on a GPU: the driver's pages, kernels and graphs over them, and the cache's policy with real memory."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from numba import cuda

from minllm import LLM, SamplingParams
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.errors import OutOfMemoryError, VirtualMemoryError
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.kv.ladder.append import append
from minllm.runtime.kernel import kernel
from tests.cache.test_virtual import MemoryShadow, VirtualTraffic
from tests.engine.models import model_directory
from tests.gpu.agreement import KV_CACHE_BYTES
from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.cases import AttentionCase, check_output, make_arrays
from tests.models.random_models import prompt

NUM_LAYERS = 3


@pytest.fixture
def backend():
    from minllm.runtime.cuda_pages import CudaPages

    return CudaPages()


def make_range(backend, pages, limit=64):
    from minllm.runtime.virtual_memory import PagePool, VirtualRange

    return VirtualRange(PagePool(backend, limit), pages * backend.page_bytes)


def test_pages_of_the_driver(backend):
    assert backend.page_bytes == 2 << 20
    memory = make_range(backend, 1 << 19)  # a terabyte of addresses
    memory.map(5, 3)
    page = memory.array((8, backend.page_bytes), np.uint8)[5:8]
    page.fill_bytes(7)
    assert (page.copy_to_host() == 7).all()
    memory.unmap(6)
    with pytest.raises(VirtualMemoryError, match="not mapped"):
        memory.unmap(6)
    memory.map(6)
    host = np.arange(backend.page_bytes, dtype=np.uint8)
    page[1].copy_from_host(host)
    np.testing.assert_array_equal(page[1].copy_to_host(), host)
    assert (page[0].copy_to_host() == 7).all() and (page[2].copy_to_host() == 7).all()
    pool = memory.pages
    memory.close()
    assert pool.in_use == 0 and pool.trim() == 3 and pool.created == 0


@pytest.mark.alone
def test_more_than_there_is(backend):
    from minllm.runtime.memory import device_memory

    device_memory().trim()
    free, _ = backend.device.memory_info()
    hog = device_memory().empty((free - (1 << 30),), np.uint8)
    memory = make_range(backend, 1000, limit=1000)
    with pytest.raises(OutOfMemoryError, match="the machine gives no more"):
        memory.map(0, 1000)
    assert memory.num_mapped == 0 and memory.pages.in_use == 0 and hog.nbytes
    memory.pages.trim()
    del hog
    device_memory().trim()


@kernel
def spin_kernel(words, turns):
    """words int32 [n]: adds 1 to each, `turns` times; the last writes go through memory, so that nothing is left out."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    for turn in range(turns):
        words[(i + turn * 32) % words.shape[0]] += 1


@pytest.mark.alone
def test_unmapping_waits_for_a_graph_and_mapping_does_not_disturb_it(backend):
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.memory import device_memory
    from minllm.runtime.stream import compute_stream

    memory, stream = make_range(backend, 64), compute_stream()
    memory.map(0, 8)
    words = memory.array((8 * backend.page_bytes // 4,), np.int32)
    words.fill_bytes(0)

    def spin():
        spin_kernel[1, 32, stream](words, 20000)

    spin()
    graph = CapturedGraph(spin, stream, device_memory())
    words.fill_bytes(0)
    for _ in range(50):
        graph.launch()
    end = stream.record()
    for page in range(8, 12):  # beside the replays
        memory.map(page)
    assert not end.is_done, "the graph is too short for this test, or mapping waits for it"
    tail = memory.array((12, backend.page_bytes), np.uint8)[8:12]
    memory.unmap(4, 2)
    assert end.is_done, "the pages were taken while the graph ran"
    tail.fill_bytes(3)
    assert (tail[3].copy_to_host() == 3).all()
    counts = words[: 4 * backend.page_bytes // 4].copy_to_host()
    assert counts.sum() == 50 * 32 * 20000


def shape_of(case, layers=NUM_LAYERS):
    return CacheShape(layers, case.block_size, case.kv_heads, case.head_dim, np.dtype(case.dtype))


CASES = [
    ("split_tensor_core", AttentionCase((1, 1, 1), (1, 100, 1337), heads=32, kv_heads=8, head_dim=128, dtype=BFLOAT16)),
    ("split_tensor_core", AttentionCase((1, 1), (2047, 64), heads=8, kv_heads=2, head_dim=64, dtype=np.float16)),
    ("split_kv", AttentionCase((1, 1), (513, 77), heads=8, kv_heads=2, head_dim=64, dtype=BFLOAT16)),
    ("flash_attention_3", AttentionCase((129, 5, 64), (700, 5, 1000), heads=32, kv_heads=8, head_dim=128, dtype=BFLOAT16)),
    ("flash_attention_3", AttentionCase((33, 1000), (33, 1000), heads=8, kv_heads=2, head_dim=64, dtype=np.float16)),
    ("flash_attention_2", AttentionCase((129, 5), (700, 5), heads=8, kv_heads=2, head_dim=128, dtype=BFLOAT16)),
    ("flash_attention_2", AttentionCase((65, 3), (200, 90), heads=4, kv_heads=2, head_dim=64)),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=str)
def test_kernels_on_pages_that_end_with_the_context(device, backend, name, case):
    """The append kernel writes, attention reads; behind the last tile there is nothing, so that a touch would be a fault."""
    arrays, module = make_arrays(case), VARIANTS[name]
    count = len(case.context_lens)
    cache = VirtualKVCache(backend, shape_of(case), count, 2048, num_pairs=2000)
    policy = VirtualPolicy(cache, background=False, look_ahead=0)
    policy.estimate.tokens = 0
    for sequence, context in enumerate(case.context_lens):
        policy.reserve(sequence, range(context))
    layer = cache.layers[1]
    slots = np.concatenate([policy.table(s)[0] * cache.block_size + np.arange(c) for s, c in enumerate(case.context_lens)])
    append(
        device.array(np.concatenate(arrays.keys)), device.array(np.concatenate(arrays.values)), layer.key, layer.value,
        device.array(slots.astype(np.int32)),
    )  # fmt: skip
    tables = np.array([policy.table(sequence) for sequence in range(count)], np.int32)
    out = device.array(arrays.guarded_out)
    query, tables = device.array(arrays.query), device.array(tables)
    shapes = module.workspace_shapes(query, layer.key, tables)
    workspace = make_workspace(shapes, lambda *size: device.array(np.zeros(*size)), lambda *size: device.array(np.zeros(*size)))
    module.attention(
        query, layer.key, layer.value, out[3:-3], device.array(arrays.query_start), device.array(arrays.context_lens), tables,
        arrays.scale, max_query_len=max(case.query_lens), workspace=workspace,
    )  # fmt: skip
    check_output(case, arrays, out.copy_to_host())
    policy.check()
    policy.close()


class DeviceShadow(MemoryShadow):
    """The first bytes of every token through copies: the pages are where the policy says, and hold what was written."""

    def _array(self, slot_token):
        """[elements of a token] of all layers, of keys and of values."""
        cache, found = self.policy.cache, []
        for memory in (cache.keys, cache.values):
            elements = cache.layout.token_bytes // 4
            whole = memory.array((cache.num_blocks * cache.block_size, elements), np.float32)
            found.append(whole[int(slot_token)])
        return found

    def apply_copies(self):
        cache = self.policy.cache
        for pair in self.policy.take_copies():
            slots = [block // cache.layout.blocks_per_slot for block in pair]
            for token in range(12):
                if all(cache.layout.pairs_for(token + 1) <= self.policy.slots.mapped[slot] for slot in slots):
                    for old, new in zip(*(self._array(block * cache.block_size + token) for block in pair), strict=True):
                        new.copy_from_host(old.copy_to_host())

    def write(self, sequence, start):
        self.apply_copies()
        token_ids = self.policy.tokens(sequence)
        slots = self._slots(sequence, np.arange(len(token_ids)))
        for token in range(start, len(token_ids)):
            for array in self._array(slots[token]):
                array.copy_from_host(np.full(array.shape, token_ids[token], np.float32))
        self.written[sequence] = token_ids

    def read(self, sequence):
        slots = self._slots(sequence, np.arange(len(self.policy.tokens(sequence))))
        return [int(array.copy_to_host()[-1]) for slot in slots for array in self._array(slot)[1:]]

    def check(self):
        self.policy.check()


class DeviceTraffic(VirtualTraffic):
    """The same traffic over pages of the driver; contents are read back only at the end, for copies are slow."""

    background = True
    shape = CacheShape(2, 1, 64, 512, np.dtype(np.float32))  # 256 KiB of keys a token: 8 tokens a page

    def make(self, slots, pairs, page_bytes, tile):
        from minllm.runtime.cuda_pages import CudaPages

        cache = VirtualKVCache(CudaPages(), self.shape, slots, 12, pairs)
        return VirtualPolicy(cache, read_tile=tile, step_tile=1, look_ahead=0), DeviceShadow

    def teardown(self):
        for sequence, token_ids in getattr(self, "shadow", None).written.items() if hasattr(self, "shadow") else ():
            assert self.shadow.read(sequence) == token_ids
        super().teardown()

    def check_all_is_given_back(self):
        assert self.policy.cache.pages.created == 0


def test_the_policy_under_any_traffic(backend):
    patient = settings(max_examples=5, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(DeviceTraffic, settings=patient)


PROMPTS = [prompt(length) for length in (3, 40, 17, 130, 9)]


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_engine_gives_the_same_tokens_and_leaks_nothing(dtype, enforce_eager):
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in (140, 3, 20, 9, 30)]
    options = dict(dtype=dtype, max_model_len=512, max_num_seqs=3, enforce_eager=enforce_eager, kv_cache_memory_bytes=KV_CACHE_BYTES)
    with LLM(model_directory("llama3"), kv_cache_policy="contiguous", **options) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
    with LLM(model_directory("llama3"), kv_cache_policy="virtual", **options) as llm:
        policy = llm.engine.cache_policy
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)] == expected
            policy.wait()
            policy.check()
            for slot, pairs in enumerate(policy.slots.mapped):  # NaN wherever an earlier request was
                for memory in (policy.cache.keys, policy.cache.values):
                    pages = memory.array((memory.num_pages, memory.page_bytes), np.uint8)
                    first = slot * policy.layout.slot_pairs
                    pages[first : first + pairs].fill_bytes(0xFF)
        assert policy.usage().allocated == 0 and policy.counts.reused > 0
