"""Pages of several ranks side by side on GPUs: kernels of each process store in the memory of all. On one GPU, the ranks share it."""

import itertools

import numpy as np
import pytest

from minllm.errors import DeviceError
from minllm.parallel.processes import RankProcesses
from minllm.parallel.ranks_per_gpu import RANKS_PER_GPU
from minllm.runtime.device import device_names
from minllm.runtime.exported_memory import ExportedMemory
from minllm.runtime.memory import to_device
from minllm.runtime.peer_devices import why_no_peers
from tests.gpu import shared_rows

RANKS = 2
LOST_BYTES = 8 << 20  # less than a rank's pages of one round


@pytest.mark.alone
def test_kernels_of_two_processes_store_in_pages_of_both_which_close_returns(monkeypatch):
    words = to_device(np.zeros(1000, np.uint8))
    shared_rows.store(words, 1)
    np.testing.assert_array_equal(words.copy_to_host().view(np.uint32), shared_rows.numbers(1, 1000))  # --compile-only ends here
    if len(device_names()) == 1:
        monkeypatch.setenv(RANKS_PER_GPU, str(RANKS))
        try:
            ExportedMemory(1).close()
        except DeviceError as error:  # WSL cannot
            pytest.skip(f"processes cannot share this GPU's memory: {error}")
    elif reason := why_no_peers(RANKS):
        pytest.skip(reason)
    processes = RankProcesses(RANKS, shared_rows.answer, None)
    try:
        free = [shared_rows.stored(processes.own), *processes.replies()]
    finally:
        processes.close()
    for rounds in free:
        assert all(after > before - LOST_BYTES for before, after in itertools.pairwise(rounds)), rounds
