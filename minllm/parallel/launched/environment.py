"""The rank that a launcher has assigned to this process, read from environment variables.

    torchrun    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
    Open MPI    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE
    Slurm       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NNODES

mpirun and srun do not set the address of rank 0: with one host it is this host, with several MASTER_ADDR must be set. A torchrun that keeps
its own store at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE) leaves the next port to the program.

Sources: PyTorch, "torchrun", Environment Variables; Open MPI, "Environment variables that Open MPI sets"; Slurm, "srun", Output environment
variables.
"""

from collections.abc import Mapping
from typing import NamedTuple

from minllm.errors import InvalidOptionError, shown

PORT = 29500  # torchrun's default
HERE = "127.0.0.1"
LAUNCHERS = (  # variables of (rank, world size, rank on the host)
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


class LaunchedRank(NamedTuple):
    """One of `world_size` processes. Rank 0 listens at address:port."""

    rank: int
    world_size: int
    local_rank: int  # number of the rank on its host, and of its GPU
    address: str = HERE
    port: int = PORT

    @property
    def first_of_host(self) -> int:
        """The lowest rank on this rank's host; the ranks of a host have consecutive numbers."""
        return self.rank - self.local_rank


def launched_rank(environment: Mapping[str, str], wanted: int) -> LaunchedRank:
    """The rank of this process. wanted: the number of ranks by the options.

    Raises InvalidOptionError for variables that are missing, not numbers, or contradict each other or the options.
    """
    names = next((names for names in LAUNCHERS if names[0] in environment), None)
    if names is None:
        raise InvalidOptionError(
            'distributed_executor_backend="external_launcher" reads RANK, WORLD_SIZE and LOCAL_RANK, which are not set: start the program '
            "with torchrun, mpirun or srun, or leave the option out."
        )
    rank, world_size, local_rank = (_number(environment, name) for name in names)
    if rank >= world_size or local_rank > rank:
        raise InvalidOptionError(
            f"{names[0]}={rank}, {names[1]}={world_size}, {names[2]}={local_rank} contradict each other: ranks are numbered from 0, first "
            "those of the first host (with srun: --distribution=block)."
        )
    if world_size != wanted:
        raise InvalidOptionError(
            f"{names[1]}={world_size} processes were launched, and tensor_parallel_size x pipeline_parallel_size is {wanted}: they must be "
            "equal."
        )
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else PORT
    port += environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not 0 < port < 1 << 16:
        raise InvalidOptionError(f"MASTER_PORT={port} is no port: take one from 1 to {(1 << 16) - 1} that is free on the host of rank 0.")
    return LaunchedRank(rank, world_size, local_rank, _address(environment, names, world_size), port)


def _address(environment: Mapping[str, str], names: tuple[str, ...], world_size: int) -> str:
    """The address at which rank 0 listens. Raises InvalidOptionError if it is unknown."""
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    on_one_host = {
        "OMPI_COMM_WORLD_RANK": environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(world_size),
        "SLURM_PROCID": environment.get("SLURM_NNODES") == "1",
    }
    if on_one_host.get(names[0], False):
        return HERE
    raise InvalidOptionError(
        "MASTER_ADDR is not set: set it to the address of rank 0's host on all ranks (mpirun -x MASTER_ADDR=..., srun "
        "--export=ALL,MASTER_ADDR=...)."
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    """The value of a variable. Raises InvalidOptionError unless it is a number of at least 0."""
    text = environment.get(name)
    if text is None or not (text.isascii() and text.isdecimal()):
        raise InvalidOptionError(f"{name}={shown(text)} must be a number of at least 0; the launcher sets it on every process.")
    return int(text)
