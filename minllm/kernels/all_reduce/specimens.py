"""Specimens of the all-reduce kernels, for 2, 4 and the most ranks."""

from minllm.kernels.all_reduce.fused_norm import fused_norm_kernel
from minllm.kernels.all_reduce.low_latency import THREADS as LOW_LATENCY_THREADS
from minllm.kernels.all_reduce.low_latency import low_latency_kernel
from minllm.kernels.all_reduce.one_shot import THREADS as ONE_SHOT_THREADS
from minllm.kernels.all_reduce.one_shot import one_shot_kernel
from minllm.kernels.all_reduce.peers import MOST_RANKS
from minllm.kernels.all_reduce.ring import THREADS as RING_THREADS
from minllm.kernels.all_reduce.ring import ring_kernel
from minllm.kernels.all_reduce.two_shot import THREADS as TWO_SHOT_THREADS
from minllm.kernels.all_reduce.two_shot import two_shot_kernel
from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.normalization.row import HELD, THREADS
from minllm.kernels.specimen import FLOAT32, INT32, UINT32, Specimen, array
from minllm.kernels.vector import VECTOR_BYTES
from minllm.machine.numba_cuda import types

WIDE, FLAGS = ("LDG*128*", "STG*128*"), ("ST*STRONG.SYS*", "LD*STRONG.SYS*")


def specimens():
    """All kernels. One block per SM: a launch has fewer blocks than a GPU has SMs."""
    line, words, inbox = array(UINT32, 1), array(UINT32, 1), array(types.uint64, 1)
    for ranks in (2, 4, MOST_RANKS):
        shared = INT32, types.UniTuple(words, ranks), types.UniTuple(words, ranks), line, line, INT32
        inboxes = INT32, types.UniTuple(inbox, ranks), line, line, INT32
        for dtype in FLOAT_DTYPES:
            x, matrix, most = array(dtype.name, 1), array(dtype.name, 2), HELD * dtype.itemsize // VECTOR_BYTES
            name = f"{ranks}/{dtype}"
            yield Specimen(f"all_reduce/ring/{name}", ring_kernel(ranks), (x, x, *shared), RING_THREADS, blocks=1, contains=FLAGS)
            for stage, kernel, threads in (
                ("one_shot", one_shot_kernel(dtype, ranks), ONE_SHOT_THREADS),
                ("two_shot", two_shot_kernel(dtype, ranks), TWO_SHOT_THREADS),
            ):
                yield Specimen(f"all_reduce/{stage}/{name}", kernel, (x, x, *shared), threads, blocks=1, contains=WIDE + FLAGS)
            kernel = low_latency_kernel(dtype, ranks)
            arguments = (x, x, *inboxes)
            yield Specimen(f"all_reduce/low_latency/{name}", kernel, arguments, LOW_LATENCY_THREADS, blocks=1, contains=WIDE + FLAGS)
            for pieces in (1, most):
                kernel, arguments = fused_norm_kernel(dtype, ranks, pieces), (matrix, matrix, x, matrix, FLOAT32, *inboxes)
                yield Specimen(f"all_reduce/fused_norm/{pieces}/{name}", kernel, arguments, THREADS, blocks=1, contains=WIDE + FLAGS)
