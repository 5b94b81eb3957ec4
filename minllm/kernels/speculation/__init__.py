"""Speculative decoding on the device: several tokens of a sequence are drafted, verified in one step, and accepted while they are right."""
