"""Requests: prompts, sampling parameters, the sequences that they become, and their outputs."""
