"""`minllm serve`: an OpenAI-compatible HTTP server in one process, and the engine in another."""
