"""`make smoke` on machines that this one is not: without a GPU, with a broken driver, and with a piece that fails."""

from minllm.machine.devices import Device, Machine
from tests.gpu import smoke

CPU_ONLY = dict(python=(3, 12), system="Linux")
H200 = Device("NVIDIA H200", (9, 0), free_bytes=140 * 10**9, total_bytes=141 * 10**9)
WITH_GPU = dict(driver_cuda=(13, 0), device_files=True, toolkit_majors=(13,), device=H200)


def verdicts(monkeypatch, capsys, pieces, **facts):
    """(exit code, lines) on a machine of these facts."""
    monkeypatch.setattr(smoke, "look", lambda try_kernel: Machine(**CPU_ONLY, **facts))
    monkeypatch.setattr(smoke, "PIECES", pieces)
    return smoke.main(), capsys.readouterr().out.splitlines()


def graphs():
    """Replays."""
    raise ValueError("no graph")


def memory():
    """Copies."""
    return "all of it"


def test_without_a_gpu_it_says_so_and_fails(monkeypatch, capsys):
    code, lines = verdicts(monkeypatch, capsys, {graphs: "mend"})
    assert code == 1 and lines[-1].startswith("There is no GPU here")


def test_a_broken_installation_is_not_tried(monkeypatch, capsys):
    code, lines = verdicts(monkeypatch, capsys, {graphs: "mend"}, **WITH_GPU, missing_compilers=("nvJitLink",))
    assert code == 1 and lines[-1] == "This installation does not work."
    (at,) = [place for place, line in enumerate(lines) if line.startswith("FAILED")]
    assert "nvJitLink not found" in lines[at] and "pip install" in lines[at + 1]


def test_a_piece_that_fails_is_named_with_what_to_do_and_the_others_are_tried(monkeypatch, capsys):
    code, lines = verdicts(monkeypatch, capsys, {graphs: "another driver", memory: "more"}, **WITH_GPU)
    failure, mend, success, end = lines[-4:]
    assert code == 1 and end == "This GPU fails at graphs."
    assert failure.startswith("FAILED  graphs (") and failure.endswith("Replays. ValueError: no graph")
    assert mend.strip() == "to fix it: another driver" and success.startswith("ok      memory (")


def test_a_gpu_that_works_is_called_so(monkeypatch, capsys):
    code, lines = verdicts(monkeypatch, capsys, {memory: "more"}, **WITH_GPU)
    assert code == 0 and lines[-1] == "This GPU, its driver and this installation work."
