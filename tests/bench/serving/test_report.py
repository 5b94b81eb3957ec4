"""Tables, rows, lines of JSON, pictures and the live display of a run on the engine without a model."""

import io
import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from minllm.bench.serving.comparisons import ServingBench, compare_policies, compare_preemption, sweep_concurrency
from minllm.bench.serving.live_table import LiveTable, live_table
from minllm.bench.serving.metrics import ServedRun, StepSample, calculate_metrics, pooled
from minllm.bench.serving.plots import MOST_POINTS, checked_folder, cumulative, thinned, write_plots
from minllm.bench.serving.report import detail_table, json_line, rate_name, rows, summary_line
from minllm.bench.serving.run import Progress
from minllm.bench.serving.virtual_clock import VirtualClock
from minllm.bench.serving.workload import Lengths, Workload, fixed
from minllm.errors import InvalidOptionError
from tests.bench.serving.fake_engine import opener


def bench(clock, made=None, **settings):
    workload = Workload(24, Lengths((4, 40), is_range=True), fixed(10))
    engine = opener(clock, made, step_seconds=0.1)
    return ServingBench(engine, f"fake, {workload}", workload.requests(), clock=clock, num_warmups=2, **settings)


def text_of(table):
    console = Console(file=io.StringIO(), width=250)
    console.print(table)
    return console.file.getvalue()


def test_one_engine_serves_every_rate_after_a_warm_up():
    clock, made = VirtualClock(time=100.0), []
    slow, fast = bench(clock, made, limits=dict(ttft=150.0)).measure("default", [2.0, math.inf], block_size=16)
    [(options, engine)] = made
    assert options == dict(block_size=16) and len(engine.added) == 2 + 24 + 24
    assert slow.metrics.ttft.p99 < 201 and fast.metrics.output_throughput == pytest.approx(240)
    assert slow.metrics.request_throughput == pytest.approx(24 / slow.metrics.duration)
    prompts = [tuple(prompt) for _, _, prompt in engine.added[2:]]
    assert len({prompt[0] for prompt in prompts}) > 1 and not set(prompts[:24]) & set(prompts[24:])  # nothing for a prefix cache to find
    assert [len(prompt) for prompt in prompts[:24]] == [len(prompt) for prompt in prompts[24:]]


def test_policies_see_the_same_arrivals_around_capacity_in_both_orders():
    clock, made = VirtualClock(time=100.0), []
    found = list(compare_policies(bench(clock, made), policies=("static", "in_flight")))
    [(_, engine)] = made
    assert engine.policies == ["static"] * 3 + ["in_flight"] * 6 + ["static"] * 3
    assert [result.variant for result in found] == ["in_flight"] * 3 + ["static"] * 3
    capacity = 24.0  # requests/s: 24 requests at once take ten steps of 0.1 s
    assert [result.rate for result in found[:3]] == pytest.approx([0.5 * capacity, 0.8 * capacity, 1.1 * capacity], rel=0.01)
    starts = [[request.start for request in result.run.requests[:24]] for result in found]
    assert starts[0] == starts[3] and starts[2] == starts[5] and all(result.metrics.completed == 48 for result in found)
    assert found[3].metrics.ttft.p99 > found[0].metrics.ttft.p99  # the fake engine's static policy serves one request at a time


def test_two_runs_pooled_have_the_throughput_and_the_latencies_of_both():
    [slow] = bench(VirtualClock(time=100.0)).measure("slow", [2.0])
    [fast] = bench(VirtualClock(time=100.0)).measure("fast", [math.inf])
    both = calculate_metrics(pooled([slow.run, fast.run]))
    assert both.duration == pytest.approx(slow.metrics.duration + fast.metrics.duration)
    assert both.completed == 48 and both.num_steps == slow.metrics.num_steps + fast.metrics.num_steps
    assert both.ttft.mean == pytest.approx((slow.metrics.ttft.mean + fast.metrics.ttft.mean) / 2)
    assert both.itl.p99 == pytest.approx(slow.metrics.itl.p99)


def test_preemption_is_an_option_of_the_engine():
    clock, made = VirtualClock(time=100.0), []
    assert len(list(compare_preemption(bench(clock, made), [math.inf]))) == 3
    assert [options for options, _ in made] == [dict(preemption=mode) for mode in ("recompute", "swap", "drop")]


def test_every_client_sends_as_many_requests():
    clock, made = VirtualClock(time=100.0), []
    found = list(sweep_concurrency(bench(clock, made), [math.inf], clients=(1, 8)))
    assert [options for options, _ in made] == [{}] and [result.variant for result in found] == ["max_concurrency 1", "max_concurrency 8"]
    assert [(result.metrics.completed, result.metrics.max_running) for result in found] == [(3, 1), (24, 8)]
    assert found[1].metrics.output_throughput == pytest.approx(8 * found[0].metrics.output_throughput)


@pytest.fixture(scope="module")
def results():
    clock = VirtualClock(time=100.0)
    return list(bench(clock, limits=dict(ttft=500.0, tpot=101.0)).measure("default", [5.0, 50.0, math.inf]))


def test_tables_hold_the_figures(results):
    lines = [summary_line(result.variant, result.rate, result.metrics) for result in results]
    assert "5 requests/s" in lines[0] and "all at once" in lines[2] and all("24 of 24" in line for line in lines)
    assert rate_name(None) == "as recorded"
    detail = text_of(detail_table(results[2]))
    assert "240.0 tokens/s" in detail and "TTFT" in detail and "mean 100.00, p50 100.00, p95 100.00, p99 100.00 ms" in detail


def test_a_line_of_json_has_vllms_keys(results):
    line = json_line(results[2])
    found = json.loads(line)
    assert "\n" not in line and found["request_rate"] == "inf" and found["completed"] == 24 and found["failed"] == 0
    for key in ("duration", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput", "request_goodput"):
        assert found[key] > 0
    assert found["mean_ttft_ms"] == found["median_tpot_ms"] == found["p99_itl_ms"] == pytest.approx(100)
    assert json.loads(json_line(results[0]))["request_rate"] == 5.0


def test_rows_identify_the_run_and_compare_with_the_peer(results):
    slower = replace(results[2].metrics, output_throughput=120.0)
    (row,) = rows(replace(results[2], peer="transformers 5", peer_metrics=slower))
    assert row.case == "fake, 24 requests, prompts 4:40, outputs 10, all at once" and row.variant == "default"
    assert (row.value, row.peer_value, row.ratio) == (240.0, 120.0, 2.0)
    assert row.metrics["median_tpot_ms"] == row.metrics["p99_itl_ms"] == 100 and row.metrics["num_preemptions"] == 0
    assert row.metrics.items() <= json.loads(json_line(results[2])).items() and "request_goodput" in row.metrics
    assert rows(results[2])[0].peer is None


def test_a_run_without_a_success_is_reported(results):
    run = ServedRun([replace(request, succeeded=False) for request in results[0].run.requests], [])
    empty = replace(results[0], metrics=calculate_metrics(run, dict(ttft=1.0)), run=run)
    assert "0 of 24" in summary_line("", None, empty.metrics) and "24 failed" in text_of(detail_table(empty))
    assert json.loads(json_line(empty))["failed"] == 24
    (row,) = rows(empty)
    assert row.value == 0 and row.metrics.keys() == {"request_throughput", "request_goodput", "num_preemptions"}


def test_pictures_are_drawn(results, tmp_path):
    folder = checked_folder(tmp_path / "new" / "pictures", "--plot")
    files = write_plots(results, folder)
    names = {path.name for path in files}
    assert {"default-5-requests-s-batch.svg", "default-all-at-once-kv-cache.svg", "throughput-ttft.svg"} <= names
    assert "default-5-requests-s-ttft.svg" in names and len(names) == len(files)
    for path in files:
        assert ElementTree.parse(path).getroot().tag.endswith("svg") and "nan" not in path.read_text()
        assert path.stat().st_size < 12_000


def test_a_run_of_nothing_draws_nothing(results, tmp_path):
    assert write_plots([replace(results[0], run=ServedRun([], []))], tmp_path) == []


def test_a_file_is_no_folder_for_pictures(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOptionError, match="--plot"):
        checked_folder(tmp_path / "file", "--plot")


def test_long_lines_are_thinned_and_keep_their_ends():
    points = [(float(i), float(i)) for i in range(10_000)]
    thin = thinned(points)
    assert len(thin) == MOST_POINTS and thin[0] == points[0] and thin[-1] == points[-1] and thin == sorted(thin)
    assert cumulative([0.003, 0.001]) == [(1.0, 50.0), (3.0, 100.0)]


def test_the_live_table_draws_rarely_and_averages_the_last_second():
    class Screen:
        drawn = []

        def update(self, table, refresh):
            self.drawn.append(text_of(table))

    table, progress = LiveTable(Screen(), "title"), Progress(num_requests=9, added=9, ended=4)
    for step in range(1, 31):  # steps of 0.1 s, five tokens each
        progress.output_tokens += 5
        progress.sample = StepSample(step / 10, 5, 3, 0.5, 2, 5)
        table(progress)
    assert 9 <= len(Screen.drawn) <= 12
    assert "4 of 9" in Screen.drawn[-1] and "50%" in Screen.drawn[-1] and "50 " in Screen.drawn[-1]


def test_there_is_a_live_table_on_a_terminal_only():
    with live_table("title", Console(file=io.StringIO())) as on_step:
        assert on_step is None
    screen = io.StringIO()
    with live_table("title", Console(file=screen, force_terminal=True, width=120)) as on_step:
        on_step(Progress(9, 3, 1, 20, StepSample(0.5, 2, 1, 0.25, 0, 2)))
    assert "1 of 9" in screen.getvalue()
