"""All-reduce: the sum of all ranks' messages on every rank, by kernels that access the peers' memory over NVLink.

Tensor parallelism (costs/parallel.py) leaves a partial sum on each GPU after the output projection and after the feed-forward. The ladder:

    ladder/ring         the fewest bytes, the most steps; reference.py has its equation
    one_shot            every rank reads all messages: one wait
    two_shot            reduce-scatter, then all-gather: few bytes and two waits
    low_latency         words that hold data and flag: waits only for the data
    gemv_low_latency    low_latency of a row that the GEMV sends
    fused_norm          low_latency or one_shot, with the residual addition and the RMSNorm that follow
    sequence_parallel   two_shot with both of them between its halves, on each rank for its own rows; GEMMs store into the peers' memory

ladder/ is for lessons: choice.py does not choose the ring.

peers.py has the memory that the ranks share, signals.py their flags, choice.py the choice of the algorithm by message size. Each launcher
returns the RankLaunch of one rank; `launch_together` runs the launches of all ranks in the simulator. NVLink multicast is not used.
"""

from minllm.kernels.variants import Variant, Variants

VARIANTS = Variants(
    __name__,
    Variant("ring", ".ladder.ring", "ring", reads="message"),
    Variant("one_shot", ".one_shot", "one_shot", reads="message"),
    Variant("two_shot", ".two_shot", "two_shot", reads="message"),
    Variant("low_latency", ".low_latency", "low_latency", reads="message"),
    Variant("gemv_low_latency", ".gemv_low_latency", "gemv_low_latency", reads="row and weight"),
    Variant("fused_norm", ".fused_norm", "fused_norm", reads="message and norm"),
    Variant("sequence_parallel", ".sequence_parallel", "sequence_parallel_norm", reads="partial sums and norm"),
)
