"""The engine whose threads are the lanes of NumPy vectors."""
