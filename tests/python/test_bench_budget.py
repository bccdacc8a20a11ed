"""What fits into a time: the plan is a pure function; a clock that the tests turn drives the rest."""

from dataclasses import replace
from pathlib import Path

import bench_support  # noqa: F401  (makes the package importable)
import pytest
from test_bench_report import report

from gradwire.bench import budget, estimate, measure
from gradwire.bench.arguments import parse_duration, parse_link
from gradwire.bench.errors import RunError, UsageError
from gradwire.bench.estimate import Cost
from gradwire.bench.job import Case, Job, Trial

JOB = Job(
    trainer=Path("/t"), data=None, workers=4, threads=1, transport="gloo", hidden=[8],
    exchange="auto", bucket_kib=1024, overlap=True, optimizer="sgd", learning_rate=0.1,
    local_steps=1, outer="diloco", outer_rate=None, schedule="constant", warmup_steps=0,
    batch_size=64, epochs=20, max_steps=0, eval_every=0, target_accuracy=0.9, stop_at_target=True,
    timeout_s=30.0,
)  # fmt: skip
FREE, SLOW = parse_link("none"), parse_link("8mbit")  # a byte takes a microsecond
METHODS = {"none": (0.010, 100_000), "int4": (0.012, 12_500), "odd": (0.5, 100_000)}


def trials(seeds=(1,), methods=METHODS, links=(SLOW, FREE), job=JOB):
    return [Trial(job, Case(link, m, s)) for s in seeds for link in links for m in methods]


def costs(of=None, start_s=1.0):
    found = budget.Costs()
    for trial in of or trials():
        step_s, sent = METHODS[trial.case.method]
        found.add(trial, Cost(start_s, step_s, 0.0, sent, FREE, 5))
    return found


def seconds(step_s, steps, start_s=1.0):
    return start_s + 1.15 * steps * step_s


# By hand: 100 steps of 10, 12 and 500 ms, and at 8 Mbit/s 100, 12.5 and 100 ms more.
WHOLE = sum(seconds(s, 100) for s in (0.010, 0.012, 0.5, 0.110, 0.0245, 0.6))


def test_a_run_is_its_start_and_its_steps_on_its_link():
    slow, free = trials(methods=["none"])
    known = costs()
    assert known.run_s(free) == pytest.approx(1 + 1.15 * 100 * 0.010)
    assert known.run_s(slow) == pytest.approx(1 + 1.15 * 100 * 0.110)
    # Measured at 8 Mbit/s it holds the bytes already; on a free link they cost nothing.
    cost = Cost(1.0, 0.110, 0.0, 100_000, SLOW, 5)
    assert cost.step_on(SLOW) == pytest.approx(0.110)
    assert cost.step_on(FREE) == pytest.approx(0.010)
    often = replace(JOB, eval_every=10)
    each = Cost(1.0, 0.010, 0.5, 0.0, FREE, 5).run_s(Trial(often, Case(FREE, "none", 1)), 100)
    assert each == pytest.approx(1 + 1.15 * (100 * 0.010 + 11 * 0.5))


def test_all_of_it_is_kept_where_it_fits():
    made = budget.plan(trials(), costs(), WHOLE + 0.1)
    assert (made.trials, made.left_out) == (trials(), [])
    assert made.estimate_s == pytest.approx(WHOLE)


def test_seeds_go_first_and_no_more_than_needed():
    made = budget.plan(trials(seeds=(1, 2, 3)), costs(), 2 * WHOLE + 1)
    assert {trial.case.seed for trial in made.trials} == {1, 2}
    assert [each["what"] for each in made.left_out] == ["seeds"]
    assert made.left_out[0]["values"] == [3]
    assert made.left_out[0]["says"].startswith(f"seeds 3: about {3 * WHOLE:.0f} s would be needed")
    assert [[t.case.seed for t in runs] for runs in made.seeds] == [[3] * 6]
    assert all(trial.job == JOB for trial in made.trials)


def test_then_steps_by_one_factor_and_never_below_the_least():
    made = budget.plan(trials(seeds=(1, 2)), costs(), 0.7 * WHOLE)
    assert [each["what"] for each in made.left_out] == ["seeds", "steps"]
    (steps,) = {trial.job.max_steps for trial in made.trials}
    assert 50 < steps < 100
    assert {trial.case.method for trial in made.trials} == set(METHODS)
    # By hand: the most steps of six runs that cost 6 s and 1.4444 s a step, with the margin.
    assert steps == int((0.7 * WHOLE - 6) / (1.15 * (0.010 + 0.012 + 0.5 + 0.110 + 0.0245 + 0.6)))
    assert {t.job.max_steps for runs in made.seeds for t in runs} == {steps}
    few = replace(JOB, epochs=4)  # 20 steps: fewer than the least stay as they are
    made = budget.plan(trials(job=few), costs(trials(job=few)), 1.0)
    assert {trial.job.max_steps for trial in made.trials} == {20}


def test_then_the_methods_that_win_least_but_never_none():
    made = budget.plan(trials(), costs(), 0.3 * WHOLE)
    assert [each["what"] for each in made.left_out] == ["methods", "steps"]
    assert made.left_out[0]["values"] == ["odd"]  # slower than none on both links
    assert made.estimate_s <= 0.3 * WHOLE


def test_then_trainings_from_the_last_and_links_from_the_slowest_and_what_is_left_is_whole():
    other = replace(JOB, optimizer="lamb")
    asked = trials() + trials(job=other)
    known = costs(asked)
    none_and_int4 = sum(seconds(s, 50) for s in (0.010, 0.012, 0.110, 0.0245))
    made = budget.plan(asked, known, none_and_int4 + 0.1)
    assert {trial.variant for trial in made.trials} == {"mlp, sgd, batch 64"}
    assert [each["what"] for each in made.left_out] == ["methods", "trainings", "steps"]
    assert made.left_out[1]["values"] == ["mlp, lamb, batch 64"]
    assert len(made.trials) == 4
    made = budget.plan(asked, known, 0.1)  # less than anything takes: one link, two methods
    assert [(t.case.method, t.case.link) for t in made.trials] == [("none", FREE), ("int4", FREE)]
    assert made.left_out[2]["values"] == ["8mbit"]
    assert {trial.job.max_steps for trial in made.trials} == {50}


def test_of_equal_methods_the_last_one_asked_for_goes_first(monkeypatch):
    monkeypatch.setitem(METHODS, "odd", METHODS["int4"])
    for methods in (["none", "int4", "odd"], ["none", "odd", "int4"]):
        made = budget.plan(trials(methods=methods), costs(), 0.1)
        assert made.left_out[0]["values"] == methods[2:]


def test_no_compression_stays_even_where_it_is_the_slowest(monkeypatch):
    monkeypatch.setitem(METHODS, "odd", (0.006, 100))
    asked = trials(links=[FREE])
    monkeypatch.setitem(METHODS, "int4", (0.004, 100))
    made = budget.plan(asked, costs(asked), 0.1)
    assert {trial.case.method for trial in made.trials} == {"none", "int4"}


def test_what_was_not_probed_counts_as_the_slowest():
    known = budget.Costs()
    for trial in trials(methods=["none", "odd"]):
        known.add(trial, costs().of(trial))
    (trial,) = trials(methods=["int4"], links=[FREE])
    assert known.of(trial).step_s == 0.5


def test_a_probe_reads_the_clock_between_events():
    now = [100.0]
    watch = estimate.Watch(lambda: now[0])
    for advance, event in [
        (2.0, dict(event="start", steps_per_epoch=7)),
        (1.0, dict(event="step", bytes_sent=10)),
        (0.5, dict(event="step", bytes_sent=30)),
        (0.5, dict(event="step", bytes_sent=20)),
        (0.25, dict(event="evaluate")),
        (0.25, dict(event="done")),
    ]:
        now[0] += advance
        watch.observe(event)
    # 4.5 s in all: three steps of 0.5, an evaluation of 0.25, and what is left is the start's.
    assert watch.cost(FREE) == Cost(2.75, 0.5, 0.25, 20.0, FREE, 7)
    assert watch.cost(FREE).steps(JOB) == 140
    assert watch.cost(FREE).steps(replace(JOB, max_steps=9)) == 9


class Machine:
    """Stands for workers: each run takes the time it is told, on a clock of its own."""

    def __init__(self, monkeypatch, lasts_s, steps_s=0.01):
        self.now, self.runs, self.probes = 0.0, [], []
        self.lasts_s = lasts_s
        self.report = report([])
        monkeypatch.setattr(measure, "_measure_one", self.run)
        monkeypatch.setattr(measure.time, "monotonic", self.clock)
        monkeypatch.setattr(estimate, "probe", self.probe)
        self.steps_s = steps_s

    def clock(self):
        return self.now

    def probe(self, trial, network, folder, clock):
        self.now += 2
        self.probes.append(trial.case.method)
        return Cost(1.0, self.steps_s, 0.0, 0.0, trial.case.link, 5)

    def run(self, trial, session, progress, end_at):
        lasts = self.lasts_s(trial)
        stopped = self.now + lasts > end_at
        self.now = max(self.now, min(self.now + lasts, end_at))
        self.runs.append((trial.case.seed, trial.case.method))
        return dict(final_accuracy=None, step_ms=None, steps=1, seconds_to_target=None,
                    target_accuracy=0.9, stopped_by="time budget" if stopped else "epochs")  # fmt: skip

    def go(self, asked, limit_s, keep_going=False):
        session = measure.Session(None, self.report, Path("/s"), Path("/l"), keep_going=keep_going)
        budget.Work(asked, session, limit_s, limit_s, self.clock)()
        return self.report.document()["budget"]


def test_seeds_come_back_where_estimates_were_too_cautious(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 3.0, steps_s=0.3)
    asked = trials(seeds=(1, 2, 3), methods=["none", "int4"], links=[FREE])
    told = machine.go(asked, 100.0)
    # 36 s a run by the estimate, so that one seed fits; 3 s in truth.
    assert machine.runs == [(s, m) for s in (1, 2, 3) for m in ("none", "int4")]
    assert told["left_out"] == []


def test_runs_that_last_longer_than_expected_end_within_the_budget_and_are_named(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 30.0)
    asked = trials(methods=["none", "int4", "odd"], links=[FREE, SLOW])
    told = machine.go(asked, 60.0)
    assert machine.now <= 60.0
    (missed,) = [each for each in told["left_out"] if each["what"] == "runs"]
    assert len(machine.runs) + len(missed["values"]) == 6
    assert machine.runs[0] == (1, "none") and "no time was left" in missed["says"]


def test_a_budget_into_which_no_run_fits_is_no_success(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 30.0)
    with pytest.raises(RunError, match="--budget: no run fits into 1 s, of which .* took 2; the shortest"):
        machine.go(trials(methods=["none"], links=[FREE]), 1.0)
    told = machine.report.document()["budget"]
    assert machine.runs == [] and "0 s are left" in told["left_out"][0]["says"]


def test_probes_take_a_quarter_of_the_time_at_most(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 1.0)
    methods = [f"topk:{n}%" for n in range(1, 9)]
    told = machine.go(trials(methods=["none", *methods], links=[FREE]), 20.0)
    assert len(machine.probes) == 3  # 2 s each: the third begins within 5 s
    assert told["not_probed"] == [f"mlp, sgd, batch 64: {method}" for method in methods[2:]]


def test_every_training_is_probed_before_any_second_method(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 1.0)
    asked = trials(links=[FREE]) + trials(links=[FREE], job=replace(JOB, optimizer="lamb"))
    with pytest.raises(RunError, match="no run fits"):
        machine.go(asked, 4.0)  # one probe takes half of it
    told = machine.report.document()["budget"]
    assert machine.probes == ["none", "none"]
    assert len(told["not_probed"]) == 4


def test_a_probe_that_fails_ends_it_unless_it_keeps_going(monkeypatch):
    machine = Machine(monkeypatch, lambda trial: 1.0)

    def fail(trial, *_):
        if trial.case.method == "int4":
            raise RunError("worker 1 was lost")
        return Cost(1.0, 0.01, 0.0, 0.0, FREE, 5)

    monkeypatch.setattr(estimate, "probe", fail)
    with pytest.raises(RunError, match="worker 1 was lost"):
        machine.go(trials(), 100.0)
    machine.go(trials(), 100.0, keep_going=True)
    assert len(machine.runs) == 6  # the run says what is wrong, again


def test_times_are_read_in_seconds_minutes_and_hours():
    read = [parse_duration("--budget", text) for text in ("90", "90s", "3m", "3min", "1.5h")]
    assert read == [90, 90, 180, 180, 5400]
    for bad in ("", "3 minutes", "0", "-3m", "1e3", "9999h"):
        with pytest.raises(UsageError, match="--budget: .*expected a time"):
            parse_duration("--budget", bad)
