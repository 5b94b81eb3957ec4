"""Token ids become vectors: the first stage of the forward pass."""
