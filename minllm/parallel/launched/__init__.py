"""Ranks started by a launcher (mpirun, srun or torchrun), on one host or on several. Every process runs the same program.

    environment.py   reads the rank of this process from the launcher's environment variables
    rendezvous.py    connects the ranks over TCP
    memory.py        memory that the ranks of one host share
    ranks.py         LaunchedRanks: the other ranks, seen from one of them; ends all ranks when one ends
"""  # fmt: skip
