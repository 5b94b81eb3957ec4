"""Reading Nsight Compute's table and matching it with simulated launches, on tables written here: no GPU and no ncu."""

import importlib.util
import json
from pathlib import Path

import pytest

from minllm.bench.counts_table import counts_table
from minllm.bench.hardware_counters import ALLOWED, COUNTERS, COUNTS, compared, least_of_rounds, measured, number, parse
from minllm.bench.results_table import BEGIN, END
from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import Launch

ROOT = Path(__file__).parents[2]
LOADED, STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
LDMATRIX = "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum"
UNKNOWN = "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum"
TABLE = f'''==PROF== Connected to process 41 (/usr/bin/python3.12)
==PROF== Profiling "first_kernel" - 0: 0%....50%....100% - 2 passes
==PROF== Disconnected from process 41
"ID","Process ID","Kernel Name","Block Size","{LOADED}","{STORED}","{LDMATRIX}","{CONFLICTS}"
"","","","","sector","Ksector","",""
"0","41","package::first_kernel(Array<float, 1>, float)","(32, 1, 1)","1,024","1.5","n/a","31"
"1","41","somebody_elses(int)","(32, 1, 1)","7","7","7","7"
"2","41","package::second_kernel[abi:v1]","(64, 1, 1)","96","0","4","(!) nan"
'''


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_counts", Path(__file__).parents[2] / "tools" / "check_counts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def counted(tool):
    """(case, kernel, counts) of every launch, simulated once."""
    return list(tool.simulated())


def simulated(loaded, stored=0, loads=0, stores=0):
    return dict(zip(COUNTS, (loaded, stored, loads, stores)))


@pytest.mark.parametrize(
    "text, unit, value",
    [("1,234,567", "sector", 1234567), ("1.5", "Ksector", 1500), ("12", "", 12), ("2", "M", 2e6), ("n/a", "", None), ("", "", None)],
)
def test_numbers_with_separators_and_scaled_units(text, unit, value):
    assert number(text, unit) == value


def test_not_a_number_and_units_that_are_no_counts_are_not_measured():
    assert number("nan") is None and number("5", "cycle/second") is None


def test_the_table_is_found_between_other_lines_and_read_by_column():
    launches = parse(TABLE)
    assert [name.split("::")[-1].split("(")[0] for name, _ in launches] == ["first_kernel", "somebody_elses", "second_kernel[abi:v1]"]
    first = launches[0][1]
    assert set(first) == set(COUNTERS)
    assert (first[LOADED], first[STORED], first[LDMATRIX], first[CONFLICTS]) == (1024, 1500, None, 31)
    assert launches[2][1][CONFLICTS] is None


def test_no_table_is_no_launches():
    assert parse("==ERROR== ERR_NVGPUCTRPERM\n") == [] == parse("")


def test_the_least_of_several_rounds_counts():
    rounds = [("a", {"x": 66.0, "y": None}), ("b", {"x": 5.0, "y": 1.0}), ("a", {"x": 64.0, "y": 7.0}), ("b", {"x": 6.0, "y": None})]
    assert least_of_rounds(rounds, 2) == [("a", {"x": 64.0, "y": 7.0}), ("b", {"x": 5.0, "y": 1.0})]
    assert least_of_rounds([("a", {"x": None}), ("a", {"x": None})], 2) == [("a", {"x": None})]
    assert least_of_rounds(rounds[:3], 2) == rounds[:3]  # no whole rounds: nothing is left out
    assert least_of_rounds([], 2) == []


def test_the_counter_of_loads_holds_asynchronous_copies():
    assert measured("sectors loaded", {LOADED: 96.0}) == (96, True)


def test_conflicts_of_ldmatrix_are_added_to_those_of_loads():
    assert measured("conflicts of loads", {CONFLICTS: 96.0, LDMATRIX: 4.0}) == (100, True)
    assert measured("conflicts of loads", {CONFLICTS: 96.0}) == (96, False)
    assert measured("conflicts of loads", {LDMATRIX: 4.0})[0] is None


@pytest.mark.parametrize("loads, agrees", [(1500, None), (1024, True), (900, False)])
def test_a_sum_without_one_of_its_counters_judges_only_what_is_too_low(loads, agrees):
    rows, _ = compared([("a", "first_kernel", simulated(0, loads=loads))], [("first_kernel", {CONFLICTS: 1024.0})])
    assert rows[2].agrees is agrees


def test_launches_are_matched_by_name_and_in_order():
    launches = [("a", "first_kernel", simulated(1024, 1500, 31)), ("b", "second_kernel", simulated(95))]
    rows, counters = compared(launches, parse(TABLE))
    by_count = {(row.case, row.count): row for row in rows}
    assert len(rows) == 8 and [entry["kernel"] for entry in counters] == ["first_kernel", "second_kernel"]
    assert all(by_count["a", count].agrees and by_count["a", count].ratio == 1 for count in ("sectors loaded", "sectors stored"))
    assert by_count["b", "sectors loaded"].hardware == 96 and by_count["b", "sectors loaded"].agrees  # 1 % off
    assert by_count["b", "sectors stored"].ratio == 1  # none and none
    unknown = by_count["b", "conflicts of loads"]
    assert unknown.hardware is None and unknown.agrees is None


@pytest.mark.parametrize("stored, agrees", [(1500, True), (1530, True), (1531, False), (1469, False), (0, False)])
def test_more_than_two_percent_differ(stored, agrees):
    rows, _ = compared([("a", "first_kernel", simulated(1024, stored))], parse(TABLE))
    assert rows[1].agrees is agrees


def test_a_count_where_the_hardware_has_none_differs():
    rows, _ = compared([("b", "second_kernel", simulated(96, stored=1))], parse(TABLE))
    assert rows[1].agrees is False and rows[1].ratio is None


def test_a_kernel_that_was_not_launched_is_not_measured():
    rows, counters = compared([("c", "third_kernel", simulated(1))], parse(TABLE))
    assert rows and all(row.hardware is None for row in rows) and counters[0]["counters"] == {}


def test_the_simulator_s_counts_of_a_tile_turned_without_padding(tool, monkeypatch):
    monkeypatch.setattr(tool, "CASES", {"turn a tile": tool.CASES["turn a tile"]})
    [(case, kernel, counts)] = tool.simulated()
    # A warp loads 4 sectors and stores 32; a store to a column of the tile and a load of one take 31 turns too many.
    assert (case, kernel, counts) == ("turn a tile", "turn_tile_kernel", simulated(32 * 4, 32 * 32, 32 * 31, 32 * 31))


def test_every_case_launches_the_same_kernels_with_arrays_of_a_gpu(tool, counted, monkeypatch):
    launched = []
    monkeypatch.setattr(Launch, "__call__", lambda self, *arguments: launched.append(self.kernel.__name__))
    for run in tool.CASES.values():
        run(lambda host: DeviceArray(4096, host.shape, host.dtype, None, None))
    assert launched == [kernel for _, kernel, _ in counted]


@pytest.fixture(scope="module")
def record():
    return json.loads((ROOT / "docs" / "results" / "h200_counts.json").read_text(encoding="utf-8"))


def test_the_record_says_where_it_is_from_and_that_all_agree(record):
    assert record["device"] == "NVIDIA H200" and record["command"] == "python tools/check_counts.py"
    assert record["date"] >= "2026-11-20" and record["ncu"].startswith("Version")
    assert len({row["kernel"] for row in record["rows"]}) >= 6
    for row in record["rows"]:
        assert row["agrees"] is True and abs(row["simulator"] - row["hardware"]) <= ALLOWED * row["hardware"], row


def test_the_simulator_still_counts_what_was_recorded(counted, record):
    now = [(case, kernel, count, number) for case, kernel, counts in counted for count, number in counts.items()]
    assert now == [(row["case"], row["kernel"], row["count"], row["simulator"]) for row in record["rows"]]


def test_the_table_on_the_simulator_s_page_is_the_record(record):
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == counts_table(record)
    assert "| qkv_rope_append, `qkv_rope_append_vector_kernel` | 174 | 96 | 0 | 0 |" in page


def a_profiler(folder, counted):
    """A program in ncu's place: it fails on a counter that it does not know, the first time, and then counts."""
    path = folder / "ncu"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) echo "Version 2026.1"; exit 0;; *{UNKNOWN}*)\n'
        f' echo "==ERROR== Failed to find metric {UNKNOWN}"; exit 1;; esac\n'
        f'cat <<\'END\'\n"ID","Kernel Name","{LOADED}"\n"","","sector"\n"0","x::turn_tile_kernel","{counted}"\nEND\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("counted, code", [("128", 0), ("140", 1)])
def test_what_was_compared_is_written_and_the_exit_code_says_whether_it_agrees(tool, monkeypatch, tmp_path, capsys, counted, code):
    monkeypatch.setattr(tool, "CASES", {"turn a tile": tool.CASES["turn a tile"]})
    monkeypatch.setattr(tool, "launch_all", lambda: None)
    monkeypatch.setattr(tool, "current_device", lambda: type("Device", (), {"name": "NVIDIA H200"}))
    profiler = a_profiler(tmp_path, counted)
    assert tool.check(profiler, tmp_path) == code
    record = json.loads((tmp_path / "h200_counts.json").read_text())
    assert record["device"] == "NVIDIA H200" and record["ncu"] == "Version 2026.1"
    assert [row["hardware"] for row in record["rows"]] == [float(counted), None, None, None]
    assert "once more without" in capsys.readouterr().out


def test_without_ncu_the_exit_code_is_2(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "find_ncu", lambda: None)
    monkeypatch.setattr("sys.argv", ["check_counts.py"])
    assert tool.main() == 2 and "install Nsight Compute" in capsys.readouterr().err
