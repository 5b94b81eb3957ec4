"""What a GPU leaves undefined: memory order after a shuffle, values of lanes outside a mask, indices that have wrapped in an array."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from minllm.errors import SimulationError
from minllm.sim import simulate

FULL = 0xFFFFFFFF


def exchange(space, how):
    """Each lane stores an element, and after a warp-wide instruction reads that of another lane."""

    def kernel(x, out):
        tile = cuda.shared.array(32, float32)
        lane, other = cuda.threadIdx.x, 31 - cuda.threadIdx.x
        if space == "shared":
            tile[lane] = x[lane]
        else:
            out[lane, 0] = x[lane]
        if how == "shuffle":
            cuda.shfl_sync(FULL, lane, 0)
        elif how == "ballot":
            cuda.ballot_sync(FULL, lane < 16)
        else:
            cuda.syncwarp()
        out[lane, 1] = tile[other] if space == "shared" else out[other, 0]

    return kernel


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize("how", ["shuffle", "ballot", "syncwarp"])
def test_shuffles_and_votes_order_no_memory(space, how):
    x, out = np.arange(32, dtype=np.float32), np.zeros((32, 2), np.float32)
    if how == "syncwarp":
        simulate(exchange(space, how), 1, 32, x, out, detect=True)
        assert out[:, 1].tolist() == x[::-1].tolist()
    else:
        with pytest.raises(SimulationError, match=f"race on {space} memory: this thread reads"):
            simulate(exchange(space, how), 1, 32, x, out, detect=True)


def half_warp_sum(stored):
    """The sum of 16 lanes; `stored` lanes store what they have."""

    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane < 16:
            total = x[lane]
            for distance in (8, 4, 2, 1):
                total += cuda.shfl_down_sync(0xFFFF, total, distance)
            if lane < stored:
                out[lane] = total

    return kernel


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_a_value_of_a_lane_outside_the_mask_must_not_be_stored(dtype):
    x, out = np.arange(32).astype(dtype), np.zeros(32, dtype)
    simulate(half_warp_sum(1), 1, 32, x, out, detect=True)
    assert out[0] == sum(range(16))
    match = (
        r"an undefined value is stored in the global array out; it comes from shfl_down with mask 0x0000ffff: lane \d+ reads from lane "
        r"\d+, which is not in the mask \(.*test_undefined_values.py:\d+ in kernel\)"
    )
    with pytest.raises(SimulationError, match=match):
        simulate(half_warp_sum(16), 1, 32, x, out, detect=True)


def test_an_undefined_value_is_no_index():
    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane < 16:
            out[0] = x[cuda.shfl_up_sync(0xFFF0 if lane > 3 else 0xF, lane, 4)]  # lanes 4 to 7 read from lanes 0 to 3

    with pytest.raises(SimulationError, match="an undefined value is an index into the global array x; it comes from shfl_up"):
        simulate(kernel, 1, 32, np.zeros(32), np.zeros(1), detect=True)


def offsets_in(dtype, mask):
    """Each thread notes an offset, and then reads there."""

    def kernel(x, offsets, out, stride):
        i = cuda.threadIdx.x
        offsets[i] = (i * stride) & mask
        out[i] = x[offsets[i]]

    return kernel, np.zeros(4, dtype)


def test_an_offset_that_wraps_when_it_is_stored():
    x, out = np.zeros(64, np.float32), np.zeros(4, np.float32)
    kernel, offsets = offsets_in(np.int32, -1)
    match = r"index 16 into the global array x has overflowed: it is 4294967312 without the 32-bit store at .*values.py:\d+ in kernel"
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, 1, 4, x, offsets, out, 2**32 + 16, detect=True)
    kernel, offsets = offsets_in(np.int32, 63)  # masked before the store: nothing wraps
    simulate(kernel, 1, 4, x, offsets, out, 2**32 + 16, detect=True)


def test_an_element_that_has_wrapped_can_be_written_again():
    def kernel(x, offsets, out, stride):
        offsets[0] = stride
        offsets[0] = int32(3)
        out[0] = x[offsets[0]]
        hashed = offsets[1] + stride * 2654435761
        offsets[1] = hashed
        out[1] = x[offsets[1] & 3]

    x, out = np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    simulate(kernel, 1, 1, x, np.zeros(2, np.int32), out, 2**32 + 3, detect=True)
    assert out[0] == 3


def neighbours(guarded):
    """Sums of each element and the next; lanes beyond the input have no value to give."""

    def kernel(x, n, out):
        i = cuda.threadIdx.x
        if i < n:
            value = x[i]
        following = cuda.shfl_down_sync(0xFFFFFFFF, value, 1)
        if i + 1 < n if guarded else i < n:
            out[i] = value + following

    return kernel


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_lane_without_a_value_takes_part_in_a_shuffle(dtype):
    x, out = np.arange(4, dtype=dtype), np.zeros(4, dtype)
    for detect in (False, True):
        simulate(neighbours(True), 1, 32, x, 4, out, detect=detect)
        assert out.tolist() == [1, 3, 5, 0]
    match = "is stored in the global array out; it comes from the variable 'value', to which this thread assigns nothing"
    with pytest.raises(SimulationError, match=match):
        simulate(neighbours(False), 1, 32, x, 4, out, detect=True)
