"""Speculative decoding on the device: several tokens of a sequence are guessed, computed in one step, and kept as far as they are right."""
