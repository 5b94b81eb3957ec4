"""ldmatrix, stmatrix, movmatrix: 8x8 tiles to and from the fragments of mma.sync.

The tiles have 16-bit elements and are in shared memory. Fragments are `cuda.local.array`s, which the compiler keeps in registers if all
indices are constants. Lane l of a warp holds one word of each tile: element (l // 4, 2 * (l % 4)) and the next one of the row, or with
.trans element (2 * (l % 4), l // 4) and the one below. PTX ISA, "ldmatrix", "stmatrix" and "movmatrix".
"""

import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.sim.arrays import fail
from minllm.sim.machine import collective
from minllm.sim.thread import current_thread

I32 = ir.IntType(32)
GROUP, WITHIN = np.arange(32) // 4, np.arange(32) % 4
NO_BYTES = np.empty(0, np.uint8)


def registers(fragment, at, count, kind="read"):
    """The bytes of `count` 32-bit registers: the elements from `at` on of a thread's local array."""
    return fragment.window(int(at), 4 * count, alignment=4, kind=kind)


def row_window(name, address, tiles, kind):
    """The 16 bytes at the running lane's address, one row of a tile; empty if the lane provides no row."""
    thread = current_thread()
    if thread.lane >= 8 * tiles:
        return NO_BYTES
    if int(address) % 16:
        fail(f"{name} at shared address {int(address)}, which is not aligned to 16 bytes")
    return thread.block.shared_root.window(int(address), 16, kind=kind)


def make_ldmatrix(tiles, transposed):
    """The function for ldmatrix of 1, 2 or 4 tiles, with or without .trans."""
    modifier = ".trans" if transposed else ""

    def load(typing_context, fragment, at, address):
        def lower(context, builder, signature, arguments):
            target = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            source = context.cast(builder, arguments[2], signature.args[2], types.uint32)
            words = ", ".join(f"${i}" for i in range(tiles))
            text = f"ldmatrix.sync.aligned.m8n8.x{tiles}{modifier}.shared.b16 {{{words}}}, [${tiles}];"
            result = I32 if tiles == 1 else ir.LiteralStructType([I32] * tiles)
            value = assembly(text, ["=r"] * tiles + ["r"], result, [I32], convergent=True)
            loaded = call_assembly(builder, value, [source], convergent=True)
            for i in range(tiles):
                word = loaded if tiles == 1 else builder.extract_value(loaded, i)
                builder.store(word, builder.gep(target, [I32(i)]))
            return context.get_dummy_value()

        return types.void(fragment, at, address), lower

    def gather(windows):
        rows = np.concatenate([windows[lane] for lane in range(8 * tiles)]).view(np.uint16).reshape(tiles, 8, 8)
        rows = rows.transpose(0, 2, 1) if transposed else rows
        low, high = rows[:, GROUP, 2 * WITHIN].astype(np.uint32), rows[:, GROUP, 2 * WITHIN + 1].astype(np.uint32)
        words = low | high << np.uint32(16)  # [tiles, 32 lanes]
        return np.ascontiguousarray(words.T).view(np.uint8)  # [32 lanes, 4 * tiles bytes]

    def emulation(fragment, at, address):
        words = collective(name, row_window(name, address, tiles, "read"), gather)
        registers(fragment, at, tiles, "write")[:] = words

    name = load.__name__ = emulation.__name__ = f"ldmatrix_x{tiles}{'_trans' if transposed else ''}"
    tiling = f"{tiles} 8x8 tiles of 16-bit elements{', each transposed' if transposed else ''}"
    emulation.__doc__ = f"""{name}(fragment, at, address): load {tiling}, into fragment[at:at+{tiles}] (uint32). Lane l provides the
    shared address of row l % 8 of tile l // 8, 16 bytes each. PTX ISA, "ldmatrix"."""
    return emulated(intrinsic(load), emulation)


def make_stmatrix(tiles, transposed):
    """The function for stmatrix of 1, 2 or 4 tiles, with or without .trans."""
    modifier = ".trans" if transposed else ""

    def store(typing_context, address, fragment, at):
        def lower(context, builder, signature, arguments):
            source = element_pointer(context, builder, signature.args[1], arguments[1], signature.args[2], arguments[2])
            target = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            words = ", ".join(f"${1 + i}" for i in range(tiles))
            text = f"stmatrix.sync.aligned.m8n8.x{tiles}{modifier}.shared.b16 [$0], {{{words}}};"
            value = assembly(text, ["r"] * (tiles + 1), ir.VoidType(), [I32] * (tiles + 1), convergent=True)
            loaded = [builder.load(builder.gep(source, [I32(i)])) for i in range(tiles)]
            call_assembly(builder, value, [target, *loaded], convergent=True)
            return context.get_dummy_value()

        return types.void(address, fragment, at), lower

    def scatter(values):
        words = np.concatenate([values[lane][1] for lane in range(32)]).view(np.uint16).reshape(32, tiles, 2)
        rows = np.empty((tiles, 8, 8), np.uint16)
        for half in (0, 1):
            rows[:, GROUP, 2 * WITHIN + half] = words[:, :, half].T
        rows = rows.transpose(0, 2, 1) if transposed else rows
        for lane, row in enumerate(rows.reshape(8 * tiles, 8)):
            values[lane][0][:] = np.ascontiguousarray(row).view(np.uint8)
        return dict.fromkeys(values)

    def emulation(address, fragment, at):
        collective(name, (row_window(name, address, tiles, "write"), registers(fragment, at, tiles).copy()), scatter)

    name = store.__name__ = emulation.__name__ = f"stmatrix_x{tiles}{'_trans' if transposed else ''}"
    tiling = f"{tiles} 8x8 tiles of 16-bit elements{', each transposed' if transposed else ''}"
    emulation.__doc__ = f"""{name}(address, fragment, at): store {tiling}, from fragment[at:at+{tiles}] (uint32). Lane l provides the
    shared address of row l % 8 of tile l // 8, 16 bytes each. PTX ISA, "stmatrix"."""
    return emulated(intrinsic(store), emulation)


ldmatrix_x1, ldmatrix_x2, ldmatrix_x4 = (make_ldmatrix(tiles, False) for tiles in (1, 2, 4))
ldmatrix_x1_trans, ldmatrix_x2_trans, ldmatrix_x4_trans = (make_ldmatrix(tiles, True) for tiles in (1, 2, 4))
stmatrix_x1, stmatrix_x2, stmatrix_x4 = (make_stmatrix(tiles, False) for tiles in (1, 2, 4))
stmatrix_x1_trans, stmatrix_x2_trans, stmatrix_x4_trans = (make_stmatrix(tiles, True) for tiles in (1, 2, 4))


def transpose_tile(values):
    """The transpose of an 8x8 tile of 16-bit elements; argument and result are {lane: word}."""
    tile = np.array([values[lane] for lane in range(32)], np.uint32).view(np.uint16).reshape(8, 8)
    return dict(enumerate(np.ascontiguousarray(tile.T).view(np.uint32).reshape(32)))


def movmatrix_trans(word):
    """movmatrix_trans(word) -> uint32: transpose an 8x8 tile of 16-bit elements; each lane holds one word. PTX ISA, "movmatrix"."""
    return collective("movmatrix_trans", int(word), transpose_tile)


movmatrix_trans = instruction("movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "r", "r", emulation=movmatrix_trans, convergent=True)
