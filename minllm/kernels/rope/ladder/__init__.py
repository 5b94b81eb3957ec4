"""What lessons and minllm.nano run and engines do not: RoPE as a kernel of its own."""
