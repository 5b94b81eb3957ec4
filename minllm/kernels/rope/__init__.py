"""Rotary position embedding (RoPE): rotates pairs of a head's components by an angle that depends on the position."""
