"""Several GPUs: one process (a rank) per GPU, and what the ranks tell each other.

communicator.py  Communicator: the collective operations that ranks share, as one protocol
"""
