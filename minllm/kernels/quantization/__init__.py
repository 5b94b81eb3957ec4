"""Numbers in fewer bits: formats of cached keys and values, and the arithmetic from float32 to codes and back."""
