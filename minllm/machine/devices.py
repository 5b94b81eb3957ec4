"""Facts about this machine: Python, packages, CUDA toolkit, driver and GPU. doctor.py diagnoses them."""

import importlib
import importlib.metadata
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from minllm.machine import driver
from minllm.machine.peers import Peers, look_at_peers

# Libraries of the CUDA toolkit that compile a kernel, by cuda.pathfinder's names.
COMPILER_LIBRARIES = ("nvvm", "nvrtc", "nvJitLink")
# {wheel of the toolkit's runtime compiler: its major version of CUDA}
TOOLKIT_WHEELS = {"nvidia-cuda-nvrtc-cu12": 12, "nvidia-cuda-nvrtc": 13}


@dataclass(frozen=True)
class Device:
    """One GPU as the driver describes it. error: why no context could be created, or ""."""

    name: str
    compute_capability: tuple[int, int]
    free_bytes: int
    total_bytes: int
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """The facts about one machine."""

    python: tuple[int, int]
    system: str
    broken_requirements: list[tuple[str, str]] = field(default_factory=list)  # (requirement, installed version or "")
    import_errors: dict[str, str] = field(default_factory=dict)  # module -> the error that its import raised
    bundled_model: bool = True
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA version that the driver supports
    driver_error: str = ""
    device_files: bool = False  # whether /dev/nvidiactl exists, which means that NVIDIA's kernel module is loaded
    toolkit_majors: tuple[int, ...] = ()
    toolkit_versions: dict[str, str] = field(default_factory=dict)  # wheel -> version
    missing_compilers: tuple[str, ...] = ()
    device: Device | None = None
    peers: Peers = Peers(())  # all GPUs, and the pairs that can access each other's memory
    kernel_error: str = ""  # why the trial kernel failed on the GPU; "" if it ran, or if there is no GPU


def look(try_kernel: Callable[[], str]) -> Machine:
    """The facts about this machine. Never raises, since a failure is a fact too.

    try_kernel: runs a kernel on the GPU and returns an error message or ""; called only if there is a usable GPU and a compiler.
    """
    try:
        driver_cuda, driver_error = driver.cuda_version(), ""
    except driver.NoDriver as error:
        driver_cuda, driver_error = None, str(error)
    device = look_at_device() if driver_cuda else None
    missing = missing_compilers()
    can_try = device is not None and not device.error and not missing
    versions = {wheel: version for wheel in TOOLKIT_WHEELS if (version := installed_version(wheel))}
    return Machine(
        python=tuple(map(int, platform.python_version_tuple()[:2])),
        system=platform.system(),
        broken_requirements=broken_requirements(),
        import_errors=import_errors("numpy", "numba", "numba.cuda", "tokenizers", "safetensors"),
        bundled_model=(Path(__file__).parent.parent / "data").is_dir(),
        driver_cuda=driver_cuda,
        driver_error=driver_error,
        device_files=Path("/dev/nvidiactl").exists(),
        toolkit_majors=tuple(TOOLKIT_WHEELS[wheel] for wheel in versions),
        toolkit_versions=versions,
        missing_compilers=missing,
        device=device,
        peers=look_at_peers() if driver_cuda else Peers(()),
        kernel_error=try_kernel() if can_try else "",
    )


def installed_version(distribution: str) -> str:
    """The installed version of `distribution`, or ""."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def broken_requirements() -> list[tuple[str, str]]:
    """(requirement, installed version or "") of minllm's requirements, without extras, that the installed packages do not meet."""
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires("minllm") or []]
    except importlib.metadata.PackageNotFoundError:  # minllm runs from a source tree that is not installed
        return []
    broken = []
    for requirement in requirements:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        if not version or not requirement.specifier.contains(version, prereleases=True):
            broken.append((f"{requirement.name}{requirement.specifier}", version))
    return broken


def import_errors(*modules: str) -> dict[str, str]:
    """{module: error} for the `modules` that cannot be imported."""
    errors = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            errors[module] = f"{type(error).__name__}: {error}"
    return errors


def missing_compilers() -> tuple[str, ...]:
    """The compiler libraries of the CUDA toolkit that cannot be loaded."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return COMPILER_LIBRARIES
    missing = []
    for library in COMPILER_LIBRARIES:
        try:
            load_nvidia_dynamic_lib(library)
        except DynamicLibNotFoundError:
            missing.append(library)
    return tuple(missing)


def look_at_device() -> Device:
    """The first GPU. Creates a context temporarily, because the driver reports free memory only within one."""
    try:
        from cuda.bindings import driver as cuda
    except ImportError as error:
        return Device("GPU 0", (0, 0), 0, 0, error=str(error))

    def call(result):
        status, *values = result
        if status != cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(status.name)
        return values[0] if len(values) == 1 else values

    attribute = cuda.CUdevice_attribute
    name, capability, total = "GPU 0", (0, 0), 0
    try:
        call(cuda.cuInit(0))
        device = call(cuda.cuDeviceGet(0))
        name = call(cuda.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        total = call(cuda.cuDeviceTotalMem(device))
        major = call(cuda.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
        minor = call(cuda.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        capability = (major, minor)
        call(cuda.cuCtxSetCurrent(call(cuda.cuDevicePrimaryCtxRetain(device))))
        try:
            free, total = call(cuda.cuMemGetInfo())
        finally:
            call(cuda.cuDevicePrimaryCtxRelease(device))
    except RuntimeError as error:
        return Device(name, capability, 0, total, error=str(error))
    return Device(name, capability, free, total)
