"""The files that `minllm race --new` writes: a kernel that works, and is slow."""
