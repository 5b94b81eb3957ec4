"""Several GPUs: one process (a rank) per GPU, and what the ranks tell each other.

    communicator.py       Communicator: the collective operations that ranks share, as one protocol
    sockets.py            between hosts, of NumPy arrays
    shared_memory.py      within a host, of NumPy arrays
    nccl.py               between GPUs
    peer_communicator.py  between GPUs of a host, all-reduces by kernels of our own; peer_memory.py maps what they share
    processes.py          ranks that rank 0 starts on its host, and ends
    launched/             ranks that a launcher has started
    grid.py               which rank is in which stage
    split_weights.py      what each rank holds
    tensor_parallel.py    what crosses between the ranks of a stage, pipeline.py between stages, context_parallel.py within a context
    cuda_ranks.py         the same on a GPU; dry_run_ranks.py finds out which kernels it launches
"""
