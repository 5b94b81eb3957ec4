"""Rotary position embedding: a position turns pairs of a head's components by an angle."""
