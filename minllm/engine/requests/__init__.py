"""Requests: prompts, sampling parameters, the sequences made from them, and their outputs."""
