"""Checkpoint readers, tokenizer, and one decoder forward for all families."""
