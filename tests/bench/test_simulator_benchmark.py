"""The benchmark of the simulator: its rows, its exit status, and that the budgets hold here."""

import json

from minllm.bench import simulator
from minllm.bench.simulator import CASES, Case, best_seconds


def test_a_tile_of_the_tensor_core_product_stays_in_its_budgets():
    tile = CASES[0]
    assert best_seconds(tile.run, False, 2) < tile.budget
    assert best_seconds(tile.run, True, 1) < tile.budget_detecting


def test_rows_carry_the_budgets(tmp_path, capsys):
    ran = []
    cases = (Case("quick", lambda: ran.append(1), 1.0, 5.0), Case("unlimited", lambda: None))
    assert simulator.main(["--repeats", "2", "--json", str(tmp_path / "record.json")], cases) == 0
    assert len(ran) == 6
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [(row["case"], row["variant"], row["limit"]) for row in rows] == [
        ("quick", "detectors off", 1.0),
        ("quick", "detectors on", 5.0),
        ("unlimited", "detectors off", None),
        ("unlimited", "detectors on", None),
    ]
    assert "quick" in capsys.readouterr().out


def test_an_overrun_budget_fails():
    assert simulator.main(["--repeats", "1"], (Case("slow", lambda: sum(range(100_000)), 1e-9, 5.0),)) == 1
