"""Ranks that a launcher has started: mpirun, srun or torchrun, on one host or on several. Every process runs the same program.

    environment.py   what the launcher says in environment variables: which rank this is
    rendezvous.py    how the ranks find each other over TCP
    memory.py        memory that the ranks of one host share
    ranks.py         LaunchedRanks: the other ranks as one of them sees them, and how all end when one does
"""
