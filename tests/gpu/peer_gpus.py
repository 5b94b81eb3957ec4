"""The ranks of a test as GPUs of this process, or as streams of its one GPU: what SimulatedRanks is in the simulator."""

from minllm.kernels.all_reduce.peers import Peers, allocate
from minllm.runtime.device import device_names
from minllm.runtime.peer_devices import PeerDevices

POLLS = 1 << 21  # about a second: a test that hangs ends soon
ONE_GPU = len(device_names()) == 1


class PeerGpus:
    """`count` ranks with the memory of an all-reduce for messages of up to `most_bytes`."""

    def __init__(self, count, most_bytes, polls=POLLS):
        self.count, self.devices = count, PeerDevices(count, ONE_GPU)
        memories = tuple(
            allocate(count, most_bytes, lambda size, dtype, rank=rank: self.devices.zeros(rank, size, dtype)) for rank in range(count)
        )
        self.peers = [Peers(rank, memories, polls) for rank in range(count)]

    def array(self, rank, host):
        """A copy of a NumPy array in a rank's memory."""
        return self.devices.array(rank, host)

    def host(self, array):
        """An array of a rank as a NumPy array."""
        return array.copy_to_host()

    def run(self, launches):
        """Launch what all ranks launch, and wait for it."""
        self.devices.load(launches)
        self.devices.launch(launches)
        self.devices.synchronize()

    def call(self, rank, launcher, *arrays, **options):
        """Call a launcher of kernels of one rank, and wait for them."""
        self.devices.call(rank, launcher, *arrays, **options)
        self.devices.synchronize()
