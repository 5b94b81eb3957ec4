"""Attention with a soft cap on its scores."""
