"""Small checkpoints of every kind, packed bit by bit from the layouts' descriptions and never with minllm's own packing.

A writer takes a random generator, a module's name and its shape, and gives the module's tensors and the matrix that they stand for.
"""

import json

import numpy as np
import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of each nibble of a word, lowest bits first


def stream(codes, axis, bits):
    """int32 words of codes that run on from word to word: code i takes bits i * bits and up of a row, as one long number."""
    codes = np.moveaxis(codes, axis, -1)
    long = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1)  # bit by bit
    long = np.pad(long, ((0, 0), (0, -long.shape[1] % 32))).reshape(len(codes), -1, 32)
    return torch.from_numpy(np.moveaxis((long @ (1 << np.arange(32))).astype(np.uint32).view(np.int32), -1, axis).copy())


def words(codes, axis, order):
    """int32 words of eight 4-bit codes along an axis: nibble i is code order[i] of the eight."""
    codes = np.moveaxis(codes.astype(np.int64), axis, -1)
    packed = np.zeros((*codes.shape[:-1], codes.shape[-1] // 8), np.int64)
    for word in range(packed.shape[-1]):
        for nibble, place in enumerate(order):
            packed[..., word] += codes[..., 8 * word + place] * 16**nibble
    return torch.from_numpy(np.moveaxis(packed, -1, axis).astype(np.uint32).view(np.int32).copy())


def half(values):
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.float16))


def by_input(groups, group, inputs):
    """The values [outputs, groups] for each input; the last group may be shorter."""
    return np.repeat(groups, group, axis=1)[:, :inputs]


def random_groups(rng, outputs, inputs, group, symmetric, bits=4):
    """(codes [outputs, inputs], scales float16 [outputs, groups], zeros [outputs, groups], matrix)."""
    groups, middle = -(-inputs // group), 2 ** (bits - 1)
    scales = rng.uniform(0.001, 0.01, (outputs, groups)).astype(np.float16)
    zeros = np.full((outputs, groups), middle) if symmetric else rng.integers(middle * 5 // 8, middle * 11 // 8, (outputs, groups))
    zeros_by_input = by_input(zeros, group, inputs)
    codes = np.rint(zeros_by_input + middle * 0.3 * rng.standard_normal((outputs, inputs)))
    codes = np.clip(codes, 0, 2**bits - 1).astype(np.int64)
    return codes, scales, zeros, (codes - zeros_by_input).astype(np.float32) * by_input(scales.astype(np.float32), group, inputs)


def awq(group):
    def write(rng, name, outputs, inputs):
        codes, scales, zeros, matrix = random_groups(rng, outputs, inputs, group, False)
        tensors = {"qweight": words(codes.T, 1, AWQ_ORDER), "qzeros": words(zeros.T, 1, AWQ_ORDER), "scales": half(scales.T)}
        return {f"{name}.{key}": value for key, value in tensors.items()}, matrix

    return write


def gptq(group, less, symmetric=False, act_order=False, with_index=True):
    """less: what stored zero points are less by."""

    def write(rng, name, outputs, inputs):
        size = inputs if group == -1 else group
        codes, scales, zeros, matrix = random_groups(rng, outputs, inputs, size, symmetric)
        groups = np.arange(inputs) // size
        if act_order:
            groups = rng.permutation(groups)
            matrix = ((codes - zeros[:, groups]) * scales.astype(np.float32)[:, groups]).astype(np.float32)
        tensors = {"qweight": stream(codes.T, 0, 4), "qzeros": stream((zeros.T - less) % 16, 1, 4), "scales": half(scales.T)}
        if with_index:
            tensors["g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return {f"{name}.{key}": value for key, value in tensors.items()}, matrix

    return write


def packed(group, symmetric, dtype=torch.bfloat16, bits=4):
    """compressed-tensors' pack-quantized."""

    def write(rng, name, outputs, inputs):
        size = group or inputs
        codes, scales, zeros, _ = random_groups(rng, outputs, inputs, size, symmetric, bits)
        scales = torch.from_numpy(scales.astype(np.float32)).to(dtype)
        steps = (codes - by_input(zeros, size, inputs)).astype(np.float32)
        tensors = {"weight_packed": stream(codes, 1, bits), "weight_scale": scales, "weight_shape": torch.tensor([outputs, inputs])}
        if not symmetric:
            tensors["weight_zero_point"] = stream(zeros, 0, bits)
        return {f"{name}.{key}": value for key, value in tensors.items()}, steps * by_input(scales.float().numpy(), size, inputs)

    return write


def rows_of_8_bits(kind, by_row):
    """compressed-tensors' W8A8; kind: "int" or "float"."""

    def write(rng, name, outputs, inputs):
        if kind == "int":
            codes = torch.from_numpy(rng.integers(-127, 128, (outputs, inputs)).astype(np.int8))
        else:
            codes = torch.from_numpy(rng.standard_normal((outputs, inputs)).astype(np.float32) * 60).to(torch.float8_e4m3fn)
        scales = torch.from_numpy(rng.uniform(0.0005, 0.001, (outputs, 1) if by_row else (1,)).astype(np.float32)).to(torch.bfloat16)
        matrix = codes.float().numpy() * scales.float().numpy()
        return {f"{name}.weight": codes, f"{name}.weight_scale": scales}, matrix

    return write


def fp8_blocks(suffix):
    def write(rng, name, outputs, inputs):
        codes = torch.from_numpy(rng.standard_normal((outputs, inputs)).astype(np.float32) * 60).to(torch.float8_e4m3fn)
        scales = rng.uniform(0.0005, 0.001, (-(-outputs // 128), -(-inputs // 128))).astype(np.float32)
        matrix = codes.float().numpy()
        for row in range(outputs):
            for block in range(scales.shape[1]):
                matrix[row, 128 * block : 128 * block + 128] *= scales[row // 128, block]
        return {f"{name}.weight": codes, f"{name}.{suffix}": torch.from_numpy(scales)}, matrix

    return write


def bitsandbytes(kind, nested):
    """Codes look up a table of 16 numbers, in blocks of 64 numbers of the flattened matrix."""

    def write(rng, name, outputs, inputs):
        table = np.linspace(-1, 1, 16).astype(np.float32) ** 3
        codes = rng.integers(0, 16, outputs * inputs)
        blocks = -(-len(codes) // 64)
        state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [outputs, inputs]}
        pairs = np.append(codes, [0] * (len(codes) % 2)).reshape(-1, 2) @ [16, 1]
        tensors = {"": torch.from_numpy(pairs.astype(np.uint8)[:, None]), ".quant_map": torch.from_numpy(table)}
        if nested:
            found, scales = np.linspace(-1, 1, 256).astype(np.float32), rng.uniform(0.01, 0.02, -(-blocks // 256)).astype(np.float32)
            indices = rng.integers(0, 256, blocks).astype(np.uint8)
            tensors |= {".absmax": torch.from_numpy(indices), ".nested_absmax": torch.from_numpy(scales)}
            tensors |= {".nested_quant_map": torch.from_numpy(found)}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0625}
            absmax = found[indices] * scales[np.arange(blocks) // 256] + np.float32(0.0625)
        else:
            absmax = rng.uniform(0.01, 0.1, blocks).astype(np.float32)
            tensors[".absmax"] = torch.from_numpy(absmax)
        tensors[f".quant_state.bitsandbytes__{kind}"] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        matrix = (table[codes] * np.repeat(absmax, 64)[: len(codes)]).reshape(outputs, inputs)
        return {f"{name}.weight{key}": value for key, value in tensors.items()}, matrix

    return write
