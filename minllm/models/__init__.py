"""Checkpoint readers, tokenizers, and one forward pass of the decoder for all model families."""
