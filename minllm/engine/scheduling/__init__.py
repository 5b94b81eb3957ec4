"""Which sequences compute which tokens next: the scheduler, and its policies, one a file."""
