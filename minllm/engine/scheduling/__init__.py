"""The scheduler, which decides which sequences compute which tokens next, and its policies, one per file."""
