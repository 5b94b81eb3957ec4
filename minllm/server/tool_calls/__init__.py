"""Calls of tools in a model's text, found while it is generated."""
