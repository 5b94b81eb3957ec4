"""`minllm race`: a reader's GEMM, softmax or decode attention against the package's kernels, in the simulator and on a GPU."""
