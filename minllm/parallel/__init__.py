"""Several GPUs: one process (a rank) per GPU, and the communication between ranks.

    communicator.py       Communicator: the collective operations of ranks, as one protocol
    sockets.py            between hosts, for NumPy arrays
    shared_memory.py      within a host, for NumPy arrays
    nccl.py               between GPUs
    peer_communicator.py  between GPUs of a host, with our own all-reduce kernels; peer_memory.py maps their shared memory,
                          sequence_memory.py arrays that lie on several of them, of pages that file_descriptors.py hands over
    shared_gpu.py         between ranks that share a GPU, for tests and lessons; ranks_per_gpu.py says how many do
    processes.py          ranks that rank 0 starts on its host, and ends
    launched/             ranks started by a launcher
    grid.py               the stage of each rank
    split_weights.py      the part of the weights on each rank
    tensor_parallel.py    communication between the ranks of a stage, pipeline.py between stages, context_parallel.py within a context
    time_limits.py        how long ranks wait for each other
    cuda_ranks.py         a rank's operations on a GPU, cuda_context_parallel.py those of ranks that share contexts; dry_run_ranks.py finds
                          the kernels that they launch
"""  # fmt: skip
