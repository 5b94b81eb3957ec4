"""The GPUs of this machine beside the first, and how each pair reaches each other's memory."""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Peers:
    """names: of all GPUs. A pair (i, j), i < j, with `access` can map each other's memory; with `atomics` too, over NVLink."""

    names: tuple[str, ...]
    access: frozenset[tuple[int, int]] = frozenset()
    atomics: frozenset[tuple[int, int]] = frozenset()  # pairs whose link carries atomics, which PCIe does not

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of GPUs."""
        return list(itertools.combinations(range(len(self.names)), 2))


def look_at_peers() -> Peers:
    """The facts, without a context; no GPUs if there is no driver or it does not answer."""
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
