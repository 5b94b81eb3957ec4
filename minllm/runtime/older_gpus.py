"""Replacements, for older GPUs, of PTX instructions that they lack.

minllm/ptx emits the instructions of new GPUs. For an old one, `replace_missing` replaces the text of an instruction in the kernel's LLVM IR
by PTX with the same operands. Code for newer GPUs is left unchanged.

    before 9.0    griddepcontrol is removed: without programmatic dependent launch there is nothing to wait for
    before 8.0    cp.async becomes a load and a store, and its groups are removed; loads prefetch 128 bytes into L2 instead of 256;
                  mma.m16n8k16 of float16 becomes two m16n8k8, mma.m16n8k32 of 8-bit integers four m8n8k16; cvt to f16x2 becomes two
                  cvt to f16, and max.f16x2 is computed in float32

bfloat16 before 8.0 and fp8 before 8.9 have no replacements: options refuse both. PTX ISA, "Target ISA Notes" of each instruction.
"""

import re

ANY = r'[^"]*'

# Copies 16 bytes, or writes 16 zeros if no byte is valid: no kernel copies only some of the 16.
COPY = """{ .reg .pred valid; .reg .b32 word<4>; setp.ne.b32 valid, $2, 0;
    mov.b32 word0, 0; mov.b32 word1, 0; mov.b32 word2, 0; mov.b32 word3, 0;
    @valid ld.global.v4.b32 {word0, word1, word2, word3}, [$1];
    st.shared.v4.b32 [$0], {word0, word1, word2, word3}; }"""

# A fragment of A holds rows g and g + 8 of the left half of A's columns, then of the right half: an mma of half the depth takes two words.
HALF_STEP = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
TWO_HALF_STEPS = f"""{{ .reg .f32 sum<4>;
    {HALF_STEP} {{sum0, sum1, sum2, sum3}}, {{$4, $5}}, {{$8}}, {{$10, $11, $12, $13}};
    {HALF_STEP} {{$0, $1, $2, $3}}, {{$6, $7}}, {{$9}}, {{sum0, sum1, sum2, sum3}}; }}"""

# m8n8k16 has half the rows too, so rows g and g + 8 also need separate instructions.
QUARTER_STEP = r"mma.sync.aligned.m8n8k16.row.col.s32.\1.s8.s32"
FOUR_QUARTER_STEPS = f"""{{ .reg .s32 sum<4>;
    {QUARTER_STEP} {{sum0, sum1}}, {{$4}}, {{$8}}, {{$10, $11}}; {QUARTER_STEP} {{sum2, sum3}}, {{$5}}, {{$8}}, {{$12, $13}};
    {QUARTER_STEP} {{$0, $1}}, {{$6}}, {{$9}}, {{sum0, sum1}}; {QUARTER_STEP} {{$2, $3}}, {{$7}}, {{$9}}, {{sum2, sum3}}; }}"""

TWO_CONVERSIONS = "{ .reg .b16 half<2>; cvt.rn.f16.f32 half0, $1; cvt.rn.f16.f32 half1, $2; mov.b32 $0, {half0, half1}; }"
TWO_MAXIMA = """{ .reg .b16 half<4>; .reg .f32 number<4>; mov.b32 {half0, half1}, $1; mov.b32 {half2, half3}, $2;
    cvt.f32.f16 number0, half0; cvt.f32.f16 number1, half1; cvt.f32.f16 number2, half2; cvt.f32.f16 number3, half3;
    max.f32 number0, number0, number2; max.f32 number1, number1, number3;
    cvt.rn.f16.f32 half0, number0; cvt.rn.f16.f32 half1, number1; mov.b32 $0, {half0, half1}; }"""

# {first compute capability that has the instructions: [(pattern of an instruction's text, its replacement)]}
REPLACEMENTS = {
    (9, 0): [(f"griddepcontrol{ANY}", "")],
    (8, 0): [
        (f"cp[.]async[.]cg{ANY}", COPY),
        (r"cp[.]async[.](commit_group|wait_group \d+);", ""),
        (f"(ld[.]global[.]L1::no_allocate)[.]L2::256B({ANY})", r"\1.L2::128B\2"),
        (f"mma[.]sync[.]aligned[.]m16n8k16[.]row[.]col[.]f32[.]f16{ANY}", TWO_HALF_STEPS),
        (f"mma[.]sync[.]aligned[.]m16n8k32[.]row[.]col[.]s32[.](s8|u8)[.]s8{ANY}", FOUR_QUARTER_STEPS),
        (f"cvt[.]rn[.]f16x2[.]f32{ANY}", TWO_CONVERSIONS),
        (f"max[.]f16x2{ANY}", TWO_MAXIMA),
    ],
}


def replacements_for(compute_capability: tuple[int, int]) -> list[tuple[str, str]]:
    """The replacements (pattern, text) for a GPU. They are part of the disk cache's key."""
    return [pair for since, pairs in REPLACEMENTS.items() if compute_capability < since for pair in pairs]


def replace_missing(code: str, compute_capability: tuple[int, int]) -> str:
    """A kernel's LLVM IR with the instructions that the GPU lacks replaced."""
    return replace_all(code, replacements_for(compute_capability))


def replace_all(code: str, replacements: list[tuple[str, str]]) -> str:
    """The code with every instruction that matches a pattern replaced."""
    for pattern, text in replacements:
        code = re.sub(f'"{pattern}"', '"' + re.sub(r"\s+", " ", text) + '"', code)
    return code
