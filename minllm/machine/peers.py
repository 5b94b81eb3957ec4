"""All GPUs of this machine, and how each pair accesses each other's memory."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Peers:
    """The names of all GPUs, and the pairs (i, j), i < j, of GPUs that can access each other's memory."""

    names: tuple[str, ...]
    access: frozenset[tuple[int, int]] = frozenset()  # pairs that can map each other's memory
    atomics: frozenset[tuple[int, int]] = frozenset()  # pairs with a link that supports atomics: NVLink, not PCIe

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of GPUs."""
        return list(itertools.combinations(range(len(self.names)), 2))


def look_at_peers() -> Peers:
    """The Peers of this machine, found without a context; without GPUs if there is no driver or a call to it fails."""
    try:
        from cuda.bindings import driver as cuda

        def call(result):
            status, *values = result
            if status != cuda.CUresult.CUDA_SUCCESS:
                raise RuntimeError(status.name)
            return values[0] if values else None

        call(cuda.cuInit(0))
        devices = [call(cuda.cuDeviceGet(index)) for index in range(call(cuda.cuDeviceGetCount()))]
        names = tuple(call(cuda.cuDeviceGetName(128, one)).split(b"\0")[0].decode() for one in devices)
        attribute = cuda.CUdevice_P2PAttribute
        found = {}
        for name, asked in (
            ("access", attribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED),
            ("atomics", attribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED),
        ):
            pairs = itertools.combinations(range(len(devices)), 2)
            found[name] = frozenset(
                (i, j)
                for i, j in pairs
                if call(cuda.cuDeviceGetP2PAttribute(asked, devices[i], devices[j]))
                and call(cuda.cuDeviceGetP2PAttribute(asked, devices[j], devices[i]))
            )
        return Peers(names, **found)
    except (ImportError, RuntimeError):
        return Peers(())
