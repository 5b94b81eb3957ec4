"""What replaces an instruction on GPUs that lack it: it assembles for them, computes the same, and newer GPUs never see it."""

import numpy as np
import pytest
from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.machine.devices import missing_compilers
from minllm.ptx import mma
from minllm.runtime.kernel import kernel
from minllm.runtime.older_gpus import REPLACEMENTS, replace_missing, replacements_for

TURING, AMPERE, HOPPER = (7, 5), (8, 0), (9, 0)
IR = 'call i32 asm sideeffect "{}", "=r,f,f"(float %a, float %b)'
TEXTS = [
    "griddepcontrol.wait;",
    "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;",
    "cp.async.cg.shared.global [$0], [$1], 16, $2;",
    "cp.async.commit_group;",
    "cp.async.wait_group 3;",
    "ld.global.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3}, [$4];",
    "cvt.rn.f16x2.f32 $0, $2, $1;",
    "max.f16x2 $0, $1, $2;",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
]


@pytest.mark.parametrize("text", TEXTS)
def test_only_gpus_without_an_instruction_get_another(text):
    code = IR.format(text)
    assert replace_missing(code, HOPPER) == replace_missing(code, (12, 0)) == code
    since = HOPPER if text.startswith("griddep") else AMPERE
    assert (replace_missing(code, AMPERE) == code) == (since == AMPERE)
    replaced = replace_missing(code, TURING)
    assert text not in replaced and "\n" not in replaced
    assert replaced.startswith('call i32 asm sideeffect "') and replaced.endswith('", "=r,f,f"(float %a, float %b)')


def test_other_instructions_stay():
    for text in ("ex2.approx.ftz.f32 $0, $1;", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {$0};", "cvt.rn.bf16x2.f32 $0, $2, $1;"):
        assert replace_missing(IR.format(text), TURING) == IR.format(text)
    assert replacements_for(HOPPER) == [] and replacements_for(TURING) == [pair for pairs in REPLACEMENTS.values() for pair in pairs]


def fragments(a, b, per_word):
    """(words of A [16, K], words of B [K, 8]) that each lane holds: [32, 4, per_word] and [32, 2, per_word]."""
    a_place, b_place = mma.PLACES[per_word]
    a_words, b_words = np.empty(a.size, a.dtype), np.empty(b.size, b.dtype)
    a_words[a_place], b_words[b_place] = a, b
    return a_words.reshape(32, 4, per_word), b_words.reshape(32, 2, per_word)


def small_operand(words):
    """The matrix [8, 4 * per_word] of which lane l holds one word: row l // 4, elements from l % 4 * per_word on."""
    return words.reshape(8, -1)


def test_the_steps_of_a_product_take_the_words_that_hold_their_operands():
    """m16n8k16 as two m16n8k8, m16n8k32 as four m8n8k16: the words in the replaced texts, multiplied as the small shapes define them."""
    rng = np.random.default_rng(0)
    for per_word in (2, 4):
        depth = 8 * per_word
        a, b = rng.integers(-8, 8, (16, depth)), rng.integers(-8, 8, (depth, 8))
        a_words, b_words = fragments(a, b, per_word)
        d = np.zeros((16, 8), int)
        for half in (0, 1):  # words $4, $5 with $8, then $6, $7 with $9
            right = small_operand(b_words[:, half])  # [8 columns, half of the depth]
            d[:8] += small_operand(a_words[:, 2 * half]) @ right.T
            d[8:] += small_operand(a_words[:, 2 * half + 1]) @ right.T
        np.testing.assert_array_equal(d, a @ b)


def multiply_kernel(x, codes, sums, counts):
    """Every instruction that is replaced, in one kernel."""
    shared = cuda.shared.array(128, uint32)
    lane = int32(cuda.threadIdx.x)
    ptx.griddepcontrol_wait()
    ptx.cp_async_16(ptx.shared_address(shared, 4 * lane), codes, 4 * lane, 16)
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group_0()
    cuda.syncwarp()
    a, b = cuda.local.array(4, uint32), cuda.local.array(2, uint32)
    acc, count = cuda.local.array(4, float32), cuda.local.array(4, int32)
    words = ptx.load_128_streaming(codes, 4 * lane)
    for i in range(4):
        a[i], acc[i], count[i] = shared[lane + 32 * i], float32(0), int32(0)
    b[0], b[1] = ptx.pack_f16x2(x[lane], x[lane + 32]), ptx.max_f16x2(words[0], words[1])
    ptx.mma_m16n8k16_f16(acc, 0, a, 0, b, 0)
    ptx.mma_m16n8k32_u8_s8(count, 0, a, 0, b, 0)
    for i in range(4):
        sums[4 * lane + i], counts[4 * lane + i] = acc[i], count[i]


@pytest.mark.skipif(bool(missing_compilers()), reason="the CUDA toolkit's compiler libraries are not installed")
def test_all_of_them_assemble_for_turing():
    arrays = np.zeros(64, np.float32), np.zeros(128, np.uint32), np.zeros(128, np.float32), np.zeros(128, np.int32)
    compiled = kernel(multiply_kernel).compile(*arrays, compute_capability=TURING)
    assert compiled.target == "sm_75" and compiled.spill_bytes == compiled.stack_bytes == 0
