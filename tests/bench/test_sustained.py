"""The benchmark of sustained GEMMs, with launches that only take time, and a nvidia-smi that is a script."""

import time

from minllm.bench import sustained


def fake_smi(folder, monkeypatch):
    """Put a nvidia-smi on the PATH that reports 1500 MHz and 700 W until it is stopped, and once that it knows nothing."""
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '[N/A]'\nwhile true; do echo '1500, 700.5'; sleep 0.01; done\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_speed_at_first_and_later(tmp_path, monkeypatch):
    """Launches take 5 ms, and after half of the time before they settle, 10 ms."""
    fake_smi(tmp_path, monkeypatch)
    for name, value in (("REST", 0.0), ("SETTLED", 0.2), ("SECONDS", 0.3)):
        monkeypatch.setattr(sustained, name, value)
    start = time.perf_counter()
    first, later, samples = sustained.speeds(lambda: time.sleep(0.005 if time.perf_counter() - start < 0.1 else 0.02), lambda: None, 1e10)
    assert first > 1.5 * later and 0.1 < later < 0.5, "10 GFLOP in 20 ms are 0.5 TFLOP/s"
    assert samples.text() == "1500 MHz, 700 W" and len(samples.clocks) > 3


def test_without_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with sustained.sampled() as samples:
        pass
    assert "not found" in samples.text()


def test_a_row_names_clock_and_power_where_they_were_read():
    ours, theirs = (800.0, 680.0, sustained.Samples([1500.0], [700.0])), (790.0, 670.0, sustained.Samples())
    rows = [sustained.row("2048x4096x4096, bfloat16", name, ours, theirs, at) for at, name in enumerate(("first 20 ms", "after 1 s"))]
    assert [(row.value, row.peer_value, row.note) for row in rows] == [(800.0, 790.0, ""), (680.0, 670.0, "1500 MHz, 700 W")]
    assert rows[1].ratio == 1.015 and sustained.row("c", "v", ours, None, 0).peer is None
