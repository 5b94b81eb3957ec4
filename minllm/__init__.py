"""minllm: the LLM inference engine that you can read."""
