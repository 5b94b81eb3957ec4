"""What lessons and minllm.nano run and engines do not: new keys and values are appended by a kernel of their own."""
