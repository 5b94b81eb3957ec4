"""ldmatrix and mma.sync of all warps at once."""

import numpy as np

from minllm.ptx import matrix, mma
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.lanes.accesses import NAMES, READ, WRITE
from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import some
from minllm.sim.lanes.warps import whole_warps
from minllm.sim.lanes.windows import flat_view, units

WORD = np.dtype(np.uint32)
GROUP, WITHIN = np.arange(32) // 4, np.arange(32) % 4


def report_rows(lanes, name, warps, rows, kind):
    """Report an instruction's accesses to rows of 16 bytes. rows: [warps, lanes that give an address]."""
    lanes.collective(name)
    if lanes.watch is None and lanes.tracer is None:
        return
    base = lanes.shared_base()
    lane = lanes.lane.reshape(-1, 32)[slice(None) if warps is None else warps, : rows.shape[1]].reshape(-1)
    if lanes.tracer is not None:
        lanes.tracer.access(lanes, (lanes.serial - lanes.first)[lane], "shared", "", rows.reshape(-1), 16, NAMES[kind])
    if lanes.watch is None:
        return
    start = rows.reshape(-1) + (base if type(base) is int else base[lane])
    mask, lanes.mask = lanes.mask, np.zeros(lanes.size, bool)
    lanes.mask[lane] = True
    for number in range(2):
        lanes.watch.access(lanes, lanes.memory.root, start // 8 + number, 8, kind)
    lanes.mask = mask


def make_ldmatrix(tiles, transposed):
    """The form of ldmatrix."""

    def load(lanes, fragment, at, address):
        warps = whole_warps(lanes)
        lanes.shared_base()
        places = (np.asarray(address) + np.zeros(lanes.size, np.int64)).reshape(-1, 32)
        given = places[:, : 8 * tiles] if warps is None else places[warps, : 8 * tiles]
        if some((given < 0) | (given + 16 > lanes.memory.top) | (given % 16 != 0)):
            raise Fault("a row of ldmatrix is out of bounds or not aligned")
        report_rows(lanes, load.__name__, warps, given, READ)
        if warps is not None:
            rows = np.zeros((places.shape[0], 8 * tiles), np.int64)
            rows[warps] = given
            given = rows
        base = lanes.shared_base()
        base = 0 if type(base) is int else base.reshape(-1, 32)
        fragment = flat_view(fragment)
        for tile in range(tiles):
            rows = given[:, 8 * tile : 8 * tile + 8]
            if transposed:
                halves = units(lanes.memory.root, np.dtype(np.uint16))
                low, high = (halves[(rows[:, 2 * WITHIN + half] + base) // 2 + GROUP].astype(np.int64) for half in (0, 1))
                words = low | high << 16
            else:
                words = units(lanes.memory.root, WORD)[(rows[:, GROUP] + base) // 4 + WITHIN].astype(np.int64)
            lanes.store(fragment, words.reshape(-1), at + tile)

    load.__name__ = f"ldmatrix_x{tiles}{'_trans' * transposed}"
    return load


def make_stmatrix(tiles, transposed):
    """The form of stmatrix."""

    def store(lanes, address, fragment, at):
        warps = whole_warps(lanes)
        words, base = words_of(lanes, fragment, at, tiles, warps).view(np.uint16).reshape(-1, 32, tiles, 2), lanes.shared_base()
        rows = np.empty((words.shape[0], tiles, 8, 8), np.uint16)
        for half in (0, 1):
            rows[:, :, GROUP, 2 * WITHIN + half] = words[:, :, :, half].transpose(0, 2, 1)
        rows = rows.transpose(0, 1, 3, 2) if transposed else rows
        places = (np.asarray(address) + np.zeros(lanes.size, np.int64)).reshape(-1, 32)
        given = (places if warps is None else places[warps])[:, : 8 * tiles]
        if some((given < 0) | (given + 16 > lanes.memory.top) | (given % 16 != 0)):
            raise Fault("a row of stmatrix is out of bounds or not aligned")
        report_rows(lanes, store.__name__, warps, given, WRITE)
        if type(base) is not int:
            base = base.reshape(-1, 32)[slice(None) if warps is None else warps, : 8 * tiles]
        halves = units(lanes.memory.root, np.dtype(np.uint16))
        halves[((given + base) // 2)[:, :, None] + np.arange(8)] = rows.reshape(-1, 8 * tiles, 8)

    store.__name__ = f"stmatrix_x{tiles}{'_trans' * transposed}"
    return store


def make_mma(name, kind):
    """The form of mma.sync."""

    def multiply(lanes, acc, acc_at, a, a_at, b, b_at):
        warps = whole_warps(lanes)
        a_bytes, b_bytes, d_bytes = (
            words_of(lanes, array, at, count, warps) for array, at, count in ((a, a_at, 4), (b, b_at, 2), (acc, acc_at, 4))
        )
        a_place, b_place = mma.PLACES[kind.per_word]
        lanes.collective(name, 2 * 16 * 8 * kind.depth)
        d = np.matmul(kind.values(a_bytes)[:, a_place], kind.right.values(b_bytes)[:, b_place])
        d = d + d_bytes.view(np.int32 if kind.integer else np.float32)[:, mma.D_PLACE]
        d = d.reshape(-1, 128)[:, mma.D_ELEMENTS].reshape(-1, 4)
        acc = flat_view(acc)
        for number in range(4):
            column = d[:, number]
            if warps is not None:
                spread = np.zeros((lanes.size // 32, 32), column.dtype)
                spread[warps] = column.reshape(-1, 32)
                column = spread.reshape(-1)
            lanes.store(acc, column.astype(np.int64) if kind.integer else column, acc_at + number)

    return multiply


def words_of(lanes, array, at, count, warps):
    """The bytes of `count` words of a fragment of all lanes of a warp, [warps, bytes]."""
    array = flat_view(array)
    if array.itemsize != 4:
        raise NotInLanes("fragments of elements that are not of four bytes")
    found = np.empty((lanes.size, count), array.dtype)
    for number in range(count):
        found[:, number] = lanes.load(array, at + number)
    found = found.reshape(-1, 32 * count)
    return (found if warps is None else found[warps]).view(np.uint8)


for _tiles in (1, 2, 4):
    for _suffix in ("", "_trans"):
        in_lanes(getattr(matrix, f"ldmatrix_x{_tiles}{_suffix}"))(make_ldmatrix(_tiles, bool(_suffix)))
        in_lanes(getattr(matrix, f"stmatrix_x{_tiles}{_suffix}"))(make_stmatrix(_tiles, bool(_suffix)))
for _name in [name for name in vars(mma) if name.startswith("mma_m16n8")]:
    in_lanes(getattr(mma, _name))(make_mma(_name, getattr(mma, _name).emulation.kind))


@in_lanes(matrix.movmatrix_trans)
def movmatrix_trans(lanes, word):
    """The 8x8 tile of 16-bit elements that the words of each warp hold, transposed."""
    whole_warps(lanes)
    lanes.collective("movmatrix_trans")
    words = (np.asarray(word) + np.zeros(lanes.size, np.int64)).astype(np.uint32).reshape(-1, 32)
    tiles = words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(tiles).view(np.uint32).reshape(-1).astype(np.int64)
