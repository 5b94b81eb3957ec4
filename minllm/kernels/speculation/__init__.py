"""Speculative decoding on the device: drafting several tokens, verifying them in one step, accepting the right ones."""
