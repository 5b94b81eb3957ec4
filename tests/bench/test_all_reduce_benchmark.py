"""What `minllm bench all-reduce` computes around its measurements, and what it says without several GPUs."""

from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from minllm.bench import all_reduce
from minllm.cli.app import app
from minllm.errors import InvalidOptionError, KernelArgumentError, MinLLMError
from minllm.kernels.all_reduce.peers import launch_together
from minllm.runtime import peer_devices


class HostArray(np.ndarray):
    """An array of a simulated GPU."""

    copy_to_host = np.ndarray.copy


class SimulatedDevices:
    """GPUs in the simulator; the last one's results are wrong by `error`."""

    def __init__(self, count):
        self.devices, self.error = range(count), 0

    def zeros(self, rank, shape, dtype):
        return np.zeros(shape, dtype).view(HostArray)

    def array(self, rank, host):
        return host.copy().view(HostArray)

    def load(self, launches):
        pass

    def launch(self, launches):
        launch_together(launches)
        launches[-1].arguments[3][-1][0, 0] += self.error

    synchronize = partial(int)


class PaperDevices:
    """GPUs whose graphs take no time."""

    def __init__(self):
        self.launched = self.replays = 0

    def synchronize(self):
        pass

    def graphs(self, launch_all):
        launch_all()

        def replay():
            self.replays += 1

        return replay


def test_a_graph_holds_more_small_all_reduces_than_large_ones():
    for nbytes, count in ((8 << 10, 1000), (4 << 20, 256), (64 << 20, 20)):
        devices, calls = PaperDevices(), []
        assert all_reduce.replayed(devices, partial(calls.append, 1), nbytes) >= 0
        assert len(calls) == count and devices.replays == all_reduce.REPLAYS * all_reduce.ROUNDS


def test_the_rows_that_ranks_divide_are_checked_before_they_are_timed(monkeypatch):
    monkeypatch.setattr(all_reduce, "PeerDevices", SimulatedDevices)
    for name, small in (("HIDDEN", 64), ("PAGE_BYTES", 256), ("SIZES", (2048,)), ("LARGEST_OF_LOW_LATENCY", 2048)):
        monkeypatch.setattr(all_reduce, name, small)
    ranks = all_reduce.Ranks(2)
    launches, outs = ranks.launches("sequence_parallel", 2048)
    assert len(launches) == 2 and outs[0].shape == (16, 64) and np.abs(outs[0].astype(np.float32)).max() > 1
    with pytest.raises(KernelArgumentError, match="2304 bytes are not whole pages of 2 ranks"):
        ranks.launches("sequence_parallel", 2304)
    ranks.devices.error = 1
    with pytest.raises(MinLLMError, match="sequence_parallel: the ranks have different results"):
        ranks.launches("sequence_parallel", 2048)


def test_gemvs_that_send_their_sums_are_checked_beside_those_that_do_not(monkeypatch):
    class Devices(SimulatedDevices, PaperDevices):
        def __init__(self, count):
            SimulatedDevices.__init__(self, count)
            PaperDevices.__init__(self)

        def launch(self, launches):
            launch_together(launches)

        def call(self, rank, launcher, x, weight, out):
            launcher(x, weight, out)
            out += self.error

    monkeypatch.setattr(all_reduce, "PeerDevices", Devices)
    small = dict(HIDDEN=8, SIZES=(256,), LARGEST_OF_LOW_LATENCY=256, WEIGHTS=1, MOST=1, FEWEST=1, REPLAYS=1, ROUNDS=2)
    for name, value in small.items():
        monkeypatch.setattr(all_reduce, name, value)
    ranks = all_reduce.Ranks(2)
    assert min(all_reduce.gemv_microseconds(ranks, 8)) >= 0
    ranks.devices.error = 1
    with pytest.raises(MinLLMError, match="gemv_low_latency: the ranks have different results"):
        all_reduce.gemv_microseconds(ranks, 8)


def test_wrong_results_stop_the_measurement():
    ones = [np.ones(8, np.float32)] * 2
    all_reduce.check("ring", ones, [np.full(8, 2, np.float32)] * 2)
    with pytest.raises(MinLLMError, match="ring: the sum is wrong by 1.0"):
        all_reduce.check("ring", ones, [np.full(8, 3, np.float32)] * 2)
    with pytest.raises(MinLLMError, match="ring: the ranks have different results"):
        all_reduce.check("ring", ones, [np.full(8, 2, np.float32), np.full(8, 3, np.float32)])


def test_a_row_says_how_many_gpus_and_which_message():
    row = all_reduce.row(2, 65536, "one_shot", 4.0, 8.0)
    assert (row.benchmark, row.case, row.variant, row.value, row.peer_value, row.ratio) == (
        "all-reduce", "2 GPUs, 64 KiB, bfloat16", "one_shot", 4.0, 8.0, 2.0,
    )  # fmt: skip
    assert all_reduce.row(2, 1 << 21, "ring", 4.0, None).peer is None


def test_without_two_gpus_it_says_so(monkeypatch):
    monkeypatch.setattr(peer_devices, "devices_available", lambda: 1)
    result = CliRunner().invoke(app, ["bench", "all-reduce"])
    assert result.exit_code == 1 and "this needs 2 GPUs, and there are 1" in result.output
    with pytest.raises(InvalidOptionError, match="--against is 'mpi'; it may be torch"):
        all_reduce.run(2, "mpi", None)
