"""The diagnosis of a machine: its problems, and the commands that fix them.

`diagnose` is a pure function from the facts of devices.py to findings, so that tests can construct every fault. A machine without an NVIDIA
driver is healthy: minllm computes with NumPy there, and a finding says so.
"""

import shlex
import sys
from dataclasses import dataclass
from typing import Literal

from minllm.machine import driver
from minllm.machine.devices import COMPILER_LIBRARIES, Machine
from minllm.machine.hardware import find_gpu

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
OLDEST_COMPUTE_CAPABILITY = (7, 5)  # the oldest that CUDA 13's compilers support
FIRST_WITH_BFLOAT16 = (8, 0)
LITTLE_MEMORY = 2 * 10**9  # bytes; less free memory is enough only for the bundled model

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis. mend: the command or the step that fixes a problem."""

    level: Level
    subject: str
    text: str
    mend: str = ""


def diagnose(machine: Machine) -> list[Finding]:
    """Findings about `machine`, in the order in which to fix them."""
    checks = (_python, _packages, _bundled_model, _driver, _toolkit, _gpu, _several_gpus, _kernel)
    return [finding for check in checks for finding in check(machine)]


def is_broken(findings: list[Finding]) -> bool:
    """Whether any finding is a problem."""
    return any(finding.level == "problem" for finding in findings)


def pip_install(*requirements: str) -> str:
    """The command that installs `requirements` into the running Python."""
    return " ".join([sys.executable, "-m", "pip", "install", *map(shlex.quote, requirements)])


def _version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _python(machine: Machine) -> list[Finding]:
    version = _version(machine.python)
    if OLDEST_PYTHON <= machine.python <= NEWEST_PYTHON:
        return [Finding("ok", "Python", version)]
    wanted = f"{_version(OLDEST_PYTHON)} to {_version(NEWEST_PYTHON)}"
    return [Finding("problem", "Python", f"{version} is outside {wanted}", "make PYTHON=python3.12 demo")]


def _packages(machine: Machine) -> list[Finding]:
    findings = []
    for requirement, version in machine.broken_requirements:
        found = f"{version} is installed" if version else "it is not installed"
        why = ""
        if requirement.startswith("numpy") and version:
            why = "; Numba 0.68 refuses a newer NumPy"
        findings.append(Finding("problem", "packages", f"minllm needs {requirement} and {found}{why}", pip_install(requirement)))
    for module, error in machine.import_errors.items():
        package = module.split(".")[0]
        reinstall = pip_install("--force-reinstall", "--no-deps", "numba-cuda" if module == "numba.cuda" else package)
        findings.append(Finding("problem", "packages", f"import {module} fails: {error}", reinstall))
    return findings or [Finding("ok", "packages", "all that minllm needs are here")]


def _bundled_model(machine: Machine) -> list[Finding]:
    if machine.bundled_model:
        return [Finding("ok", "bundled model", "here")]
    return [Finding("problem", "bundled model", "minllm/data is missing from this installation", "make clean demo")]


def _driver(machine: Machine) -> list[Finding]:
    if machine.driver_cuda is None:
        if machine.device_files:
            text = f"/dev/nvidiactl is here, so there is a GPU, but {machine.driver_error}"
            return [Finding("problem", "driver", text, "in a container: start it with --gpus all; else reinstall the NVIDIA driver")]
        return [Finding("note", "driver", f"no NVIDIA driver: minllm runs on the CPU, with NumPy ({machine.driver_error})")]
    version = _version(machine.driver_cuda)
    if not driver.fitting_extra(machine.driver_cuda):
        oldest = driver.SUPPORTED_MAJORS[0]
        text = f"it supports CUDA {version}, and minllm's kernels need {oldest}.0 or newer"
        return [Finding("problem", "driver", text, "install a newer NVIDIA driver (release 525 or newer)")]
    return [Finding("ok", "driver", f"supports CUDA up to {version}")]


def _toolkit(machine: Machine) -> list[Finding]:
    versions = ", ".join(f"{wheel} {version}" for wheel, version in machine.toolkit_versions.items())
    if machine.driver_cuda is None:
        text = f"{versions}: kernels compile, and have no GPU to run on" if versions else "not installed, and not needed without a GPU"
        return [Finding("note", "CUDA toolkit", text)]
    extra = driver.fitting_extra(machine.driver_cuda)
    if not extra:
        return []
    install = pip_install(f"numba-cuda[{extra}]==0.30.4")
    too_new = [major for major in machine.toolkit_majors if major > machine.driver_cuda[0]]
    if too_new:
        supported = _version(machine.driver_cuda)
        text = f"the wheels are of CUDA {too_new[0]} and the driver supports only {supported}: what they compile does not load"
        uninstall = f"{sys.executable} -m pip uninstall --yes nvidia-nvvm nvidia-cuda-nvrtc nvidia-nvjitlink"
        return [Finding("problem", "CUDA toolkit", text, f"{uninstall} && {install}")]
    if machine.missing_compilers:
        missing = ", ".join(machine.missing_compilers)
        return [Finding("problem", "CUDA toolkit", f"kernels cannot be compiled: {missing} not found", install)]
    text = f"{versions or 'found outside pip'}: {', '.join(COMPILER_LIBRARIES)} load"
    return [Finding("ok", "CUDA toolkit", text), *_newer_minor(machine)]


def _newer_minor(machine: Machine) -> list[Finding]:
    """A note if the toolkit's minor version is newer than the driver's."""
    for version in machine.toolkit_versions.values():
        toolkit = tuple(map(int, version.split(".")[:2]))
        if machine.driver_cuda < toolkit < (machine.driver_cuda[0] + 1, 0):
            newer = f"{_version(toolkit)} is newer than the driver ({_version(machine.driver_cuda)})"
            return [Finding("note", "CUDA toolkit", f"{newer}: its PTX would not load, but kernels are linked to machine code, which does")]
    return []


def _gpu(machine: Machine) -> list[Finding]:
    device = machine.device
    if device is None:
        return []
    if device.error:
        text = f"{device.name}: no context could be made ({device.error})"
        return [Finding("problem", "GPU", text, "nvidia-smi shows which processes hold it")]
    capability, free, total = _version(device.compute_capability), device.free_bytes / 1e9, device.total_bytes / 1e9
    if device.compute_capability < OLDEST_COMPUTE_CAPABILITY:
        text = f"{device.name} has compute capability {capability}, and {_version(OLDEST_COMPUTE_CAPABILITY)} is the least"
        return [Finding("problem", "GPU", text, "use --device cpu")]
    findings = [Finding("ok", "GPU", f"{device.name}, compute capability {capability}, {free:.1f} of {total:.1f} GB free")]
    if device.free_bytes < LITTLE_MEMORY:
        mend = "nvidia-smi shows which processes hold it; end those that may go"
        findings.append(Finding("problem", "GPU", f"only {free:.1f} GB is free", mend))
    if device.compute_capability < FIRST_WITH_BFLOAT16:
        findings.append(Finding("note", "GPU", "no bfloat16: checkpoints in it are computed in float16"))
    gpu = find_gpu(device.name)
    ceiling = f"{gpu.ceiling_tb_s} TB/s ({gpu.ceiling_source})" if gpu else "unknown: it is not in minllm/machine/hardware.py"
    findings.append(Finding("note", "GPU", f"memory bandwidth ceiling {ceiling}"))
    return findings


def _several_gpus(machine: Machine) -> list[Finding]:
    """Findings about links and peer access, which tensor parallelism depends on; none with one GPU."""
    peers, subject = machine.peers, "several GPUs"
    if len(peers.names) < 2:
        return []
    if len(set(peers.names)) > 1:
        text = f"{', '.join(peers.names)}: ranks need GPUs of one kind, which compute the same bits"
        return [Finding("note", subject, f"{text}; choose some with CUDA_VISIBLE_DEVICES")]
    count, missing = f"{len(peers.names)} x {peers.names[0]}", [pair for pair in peers.pairs if pair not in peers.access]
    if missing:
        pairs = ", ".join(f"{i} and {j}" for i, j in missing)
        return [Finding("note", subject, f"{count}; no peer access between {pairs}: NCCL copies through the host's memory there, slowly")]
    link = "NVLink" if len(peers.atomics) == len(peers.pairs) else "PCIe for some pairs" if peers.atomics else "PCIe"
    return [Finding("ok", subject, f"{count}, with peer access between all pairs over {link}")]


def _kernel(machine: Machine) -> list[Finding]:
    """A finding about the trial kernel; none if an earlier finding already explains why it cannot run."""
    known = is_broken([*_driver(machine), *_toolkit(machine), *_gpu(machine)])
    if machine.device is None or known:
        return []
    if machine.kernel_error:
        install = pip_install("--force-reinstall", f"numba-cuda[{driver.fitting_extra(machine.driver_cuda)}]==0.30.4", "numpy<2.6")
        return [Finding("problem", "kernels", f"a kernel was tried on the GPU and failed: {machine.kernel_error}", install)]
    return [Finding("ok", "kernels", "one was compiled, ran on the GPU and computed what its reference does")]
