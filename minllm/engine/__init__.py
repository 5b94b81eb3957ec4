"""LLM, requests, sampling parameters and the generation loop."""
