"""The simulated clock: the host does one thing after another, the GPU what was launched, and gaps are found."""

from types import SimpleNamespace

from minllm.course.host_and_gpu import GPU, HOST, HostAndGpu, StepTimes, TimedResult, TimedRunner, TimedScheduler


def test_launched_work_begins_when_it_is_launched_and_its_predecessor_has_ended():
    machine = HostAndGpu()
    machine.work("plan", 10)
    assert machine.launch("first", 100) == 110 and machine.launch("second", 50) == 160 and machine.now == 10
    machine.wait(110, "read")
    machine.wait(60)  # later already
    assert machine.now == 110 and machine.bubbles() == [] and machine.gpu_share == 1.0
    machine.wait(160)
    machine.work("plan", 40)
    machine.launch("third", 50)
    assert machine.bubbles() == [("third", 40)] and machine.gpu_share == 200 / 240
    assert [(span.lane, span.start, span.end) for span in machine.spans if span.name == "third"] == [(GPU, 200, 250)]
    hosts = [span for span in machine.spans if span.lane == HOST]
    assert all(before.end == after.start for before, after in zip(hosts, hosts[1:]))


def test_planning_uploads_replays_and_reading_take_time():
    machine, times = HostAndGpu(), StepTimes(gpu=lambda step: step.microseconds, schedule=1, upload=2, replay=4, take=8)
    steps = [SimpleNamespace(entered=[], grown=[], microseconds=100), SimpleNamespace(entered=["A"], grown=[], microseconds=200), None]
    scheduler = TimedScheduler(SimpleNamespace(schedule=lambda: steps.pop(0), take=lambda *given: given, running=7), machine, times)
    result = SimpleNamespace(wait=lambda: "tokens")
    runner = TimedRunner(SimpleNamespace(execute=lambda step: [result]), machine, times, steps_ahead=1)
    [first] = runner.execute(scheduler.schedule())
    [second] = runner.execute(scheduler.schedule())
    assert machine.now == 1 + 4 + 1 + 2 + 4 and isinstance(first, TimedResult) and runner.steps_ahead == 1
    assert first.wait() == "tokens" and machine.now == 105
    assert scheduler.take("step", [1], None) == ("step", [1], None) and machine.now == 113
    assert scheduler.schedule() is None and machine.now == 113 and scheduler.running == 7  # nothing was planned
    assert second.wait() == "tokens" and machine.now == 305
