"""Every fault that the doctor knows is made up as facts about a machine, and must be found, explained and given a command."""

from dataclasses import replace

import pytest

from minllm.cli.trial_kernel import try_kernel
from minllm.machine.devices import Device, Machine, broken_requirements, import_errors, look
from minllm.machine.doctor import diagnose, is_broken
from minllm.machine.hardware import find_gpu
from minllm.machine.peers import Peers

CPU_ONLY = Machine(python=(3, 12), system="Linux", driver_error="libcuda.so.1 was not found")
H200 = Device("NVIDIA H200", (9, 0), free_bytes=140 * 10**9, total_bytes=141 * 10**9)
WITH_GPU = replace(
    CPU_ONLY,
    driver_cuda=(13, 0),
    driver_error="",
    device_files=True,
    toolkit_majors=(13,),
    toolkit_versions={"nvidia-cuda-nvrtc": "13.0.88"},
    device=H200,
)


def problems(machine):
    return [finding for finding in diagnose(machine) if finding.level == "problem"]


def test_a_machine_without_a_driver_is_healthy_and_told_so():
    findings = diagnose(CPU_ONLY)
    assert not is_broken(findings)
    assert any("NumPy" in finding.text and finding.level == "note" for finding in findings)


def test_a_whole_gpu_machine_is_healthy():
    findings = diagnose(WITH_GPU)
    assert not is_broken(findings)
    assert any("140.0 of 141.0 GB" in finding.text for finding in findings)
    assert any(f"{find_gpu('NVIDIA H200').ceiling_tb_s} TB/s (measured copy)" in finding.text for finding in findings)


# (facts that differ from a whole GPU machine, words of the explanation, words of the mend)
FAULTS = {
    "old python": (dict(python=(3, 10)), "3.10", "PYTHON="),
    "new python": (dict(python=(3, 15)), "3.15", "PYTHON="),
    "numpy 2.6": (dict(broken_requirements=[("numpy<2.6,>=2", "2.6.0")]), "newer NumPy", "pip install 'numpy<2.6,>=2'"),
    "missing package": (dict(broken_requirements=[("rich>=13.8", "")]), "not installed", "'rich>=13.8'"),
    "broken import": (dict(import_errors={"numba.cuda": "ImportError: no"}), "import numba.cuda", "numba-cuda"),
    "no model": (dict(bundled_model=False), "minllm/data", "make"),
    "device without library": (dict(driver_cuda=None, driver_error="no libcuda", device=None), "/dev/nvidiactl", "--gpus all"),
    "old driver": (dict(driver_cuda=(11, 4), device=None), "CUDA 11.4", "newer NVIDIA driver"),
    "toolkit newer than driver": (dict(driver_cuda=(12, 8)), "CUDA 13", "pip install 'numba-cuda[cu12]"),
    "no toolkit": (dict(toolkit_majors=(), missing_compilers=("nvvm", "nvrtc")), "nvvm, nvrtc not found", "'numba-cuda[cu13]"),
    "no context": (dict(device=replace(H200, error="CUDA_ERROR_OUT_OF_MEMORY")), "CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
    "ancient gpu": (dict(device=replace(H200, name="Tesla V100", compute_capability=(7, 0))), "7.0", "--device cpu"),
    "failing kernel": (dict(kernel_error="DeviceError: no"), "failed: DeviceError: no", "--force-reinstall"),
    "full gpu": (dict(device=replace(H200, free_bytes=3 * 10**8)), "0.3 GB", "nvidia-smi"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_mended(fault):
    facts, words, mend = FAULTS[fault]
    found = problems(replace(WITH_GPU, **facts))
    assert len(found) == 1
    assert words in found[0].text
    assert mend in found[0].mend


def test_a_newer_minor_of_the_toolkit_is_no_problem():
    newer = replace(WITH_GPU, toolkit_versions={"nvidia-cuda-nvrtc": "13.4.92"})
    assert not problems(newer)
    assert any("13.4" in finding.text and finding.level == "note" for finding in diagnose(newer))
    same = diagnose(WITH_GPU)
    assert not any("PTX" in finding.text for finding in same)


def test_a_gpu_without_bfloat16_is_healthy_and_told_so():
    findings = diagnose(replace(WITH_GPU, device=replace(H200, name="Tesla T4", compute_capability=(7, 5))))
    assert not is_broken(findings)
    assert any("float16" in finding.text and finding.level == "note" for finding in findings)
    assert not any("bfloat16" in finding.text for finding in diagnose(WITH_GPU))


def test_an_unknown_gpu_works_without_a_ceiling():
    findings = diagnose(replace(WITH_GPU, device=replace(H200, name="NVIDIA Something")))
    assert not is_broken(findings)
    assert any("hardware.py" in finding.text for finding in findings)


def test_a_kernel_that_cannot_run_for_a_known_reason_is_not_named_twice():
    machine = replace(WITH_GPU, missing_compilers=("nvvm",), kernel_error="KernelCompilationError: no nvvm")
    assert [finding.subject for finding in problems(machine)] == ["CUDA toolkit"]


def test_the_trial_kernel_is_run_and_compared(monkeypatch):
    """In the simulator, by leaving its arrays on the host."""
    import numpy as np

    from minllm.runtime import memory

    class HostArray(np.ndarray):
        def copy_to_host(self):
            return np.asarray(self)

    monkeypatch.setattr(memory, "to_device", lambda host: host.view(HostArray))
    assert try_kernel() == ""
    monkeypatch.setattr("minllm.kernels.activation.silu.silu_and_multiply_reference", lambda x: x[:, :128])
    assert "off by" in try_kernel()
    monkeypatch.setattr(memory, "to_device", lambda host: 1 / 0)
    assert "ZeroDivisionError" in try_kernel()


def test_this_machine_can_be_looked_at():
    machine = look(try_kernel)
    assert machine.python >= (3, 11)
    assert not machine.import_errors
    assert (machine.device is None) == (machine.driver_cuda is None)


def test_imports_that_fail_are_reported(tmp_path, monkeypatch):
    (tmp_path / "explodes.py").write_text("raise OSError('bad binary')")
    monkeypatch.syspath_prepend(tmp_path)
    errors = import_errors("json", "explodes", "no_such_module")
    assert errors["explodes"] == "OSError: bad binary"
    assert "no_such_module" in errors and "json" not in errors


def test_requirements_are_compared_with_what_is_installed(monkeypatch):
    wanted = ["pytest>=1", "pytest>=9999", "no-such-package>=1", 'torch>=9999; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    broken = dict(broken_requirements())
    assert set(broken) == {"pytest>=9999", "no-such-package>=1"}
    assert broken["no-such-package>=1"] == ""


PAIRS = frozenset({(0, 1), (0, 2), (1, 2)})


@pytest.mark.parametrize(
    ("peers", "level", "text"),
    [
        (Peers(("H",) * 3, PAIRS, PAIRS), "ok", "3 x H, with peer access between all pairs over NVLink"),
        (Peers(("H",) * 3, PAIRS, frozenset({(0, 1)})), "ok", "over PCIe for some pairs"),
        (Peers(("H",) * 3, PAIRS), "ok", "over PCIe"),
        (Peers(("H",) * 3, PAIRS - {(1, 2)}, PAIRS - {(1, 2)}), "note", "no peer access between 1 and 2: NCCL copies through the host's"),
        (Peers(("H", "L")), "note", "H, L: ranks need GPUs of one kind"),
    ],
)
def test_links_between_several_gpus_are_told(peers, level, text):
    [finding] = [one for one in diagnose(replace(WITH_GPU, peers=peers)) if one.subject == "several GPUs"]
    assert finding.level == level and text in finding.text


def test_one_gpu_has_no_links():
    assert not any(one.subject == "several GPUs" for one in diagnose(replace(WITH_GPU, peers=Peers(("H",)))))
