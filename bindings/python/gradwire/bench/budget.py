"""`--budget 3m`: which runs fit into a time, what is left out, and why.

What does not fit is left out in this order: seeds, the last first, down to one; then steps, for all
runs by the same factor, but to no fewer than LEAST_STEPS; then methods, first those from which least
is expected: the ones whose step on the link that suits them best is slowest beside `none`'s. `none`
stays, and one method beside it. Then trainings (workloads, optimizers, batch sizes), the last first;
then links, first the one whose runs take longest. Last, runs for whose beginning no time is left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Sequence, Tuple

from gradwire.bench import estimate, measure
from gradwire.bench.errors import RunError
from gradwire.bench.estimate import Cost
from gradwire.bench.job import Trial
from gradwire.bench.summary import BASELINE
from gradwire.bench.types import Document
from gradwire.streams import note

LEAST_STEPS = 50
_PROBES = 0.25  # of the time, at most; then what was not probed is taken to be the slowest
_TELLING = 0.94  # of the time is for runs, the rest for tables and plots
_AGAIN = 1.1  # a seed is added when what the last one took, times this, is still there


class Costs:
    """Of every job and method; where one was not measured, the job's slowest counts."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[str, str], Cost] = {}

    def add(self, trial: Trial, cost: Cost) -> None:
        self._known[trial.variant, trial.case.method] = cost

    def of(self, trial: Trial) -> Cost:
        found = self._known.get((trial.variant, trial.case.method))
        if found:
            return found
        same = [c for (variant, _), c in self._known.items() if variant == trial.variant]
        return max(same or list(self._known.values()), key=lambda cost: cost.step_on(trial.case.link))

    def run_s(self, trial: Trial) -> float:
        cost = self.of(trial)
        return cost.run_s(trial, cost.steps(trial.job))

    def total_s(self, trials: Sequence[Trial]) -> float:
        return sum(self.run_s(trial) for trial in trials)


@dataclass
class Plan:
    """The runs that fit, and what was left out for it."""

    trials: List[Trial]
    estimate_s: float
    left_out: List[Document] = field(default_factory=list)
    seeds: List[List[Trial]] = field(default_factory=list)  # left out; made if time is left after all


def plan(trials: Sequence[Trial], costs: Costs, seconds: float) -> Plan:
    """A pure function: the same costs and seconds give the same plan."""
    kept = list(trials)
    left_out: List[Document] = []
    spare: List[List[Trial]] = []
    asked_s = costs.total_s(kept)
    seeds = list(dict.fromkeys(trial.case.seed for trial in kept))
    while len(seeds) > 1 and costs.total_s(kept) > seconds:
        last = seeds.pop()
        spare.insert(0, [trial for trial in kept if trial.case.seed == last])
        kept = [trial for trial in kept if trial.case.seed != last]
    if spare:
        gone = [runs[0].case.seed for runs in spare]
        left_out.append(_told("seeds", gone, f"seeds {_list(gone)}", asked_s, seconds))
    if costs.total_s(kept) > seconds:
        kept = _shorter(kept, costs, seconds, left_out)
        most = {trial.variant: trial.job for trial in kept}
        spare = [[replace(t, job=most[t.variant]) for t in runs if t.variant in most] for runs in spare]
        places = {(t.variant, t.case.method, t.case.link) for t in kept}
        spare = [
            [t for t in runs if (t.variant, t.case.method, t.case.link) in places] for runs in spare
        ]
    return Plan(kept, costs.total_s(kept), left_out, spare)


def _shorter(
    kept: List[Trial], costs: Costs, seconds: float, left_out: List[Document]
) -> List[Trial]:
    """With fewer steps, and where the least is still too many without some methods."""
    before_s = costs.total_s(kept)
    steps = {trial.variant: costs.of(trial).steps(trial.job) for trial in kept}
    methods = list(dict.fromkeys(trial.case.method for trial in kept))
    gone: List[str] = []
    least = _with_steps(kept, steps, 0.0)
    least_s = costs.total_s(least)
    while costs.total_s(least) > seconds and len(methods) > 2:
        # Of equals, as where none was probed, the one that was asked for last.
        candidates = [method for method in reversed(methods) if method != BASELINE]
        dull = max(candidates, key=lambda method: _slowness(kept, method, costs))
        methods.remove(dull)
        gone.append(dull)
        least = [trial for trial in least if trial.case.method != dull]
    if gone:
        left_out.append(_told("methods", gone, f"methods {_list(gone)}", least_s, seconds))
    least = _fewer(least, "trainings", lambda trial: trial.variant, costs, seconds, left_out)
    least = _fewer(least, "links", lambda trial: trial.case.link.name, costs, seconds, left_out)
    still = {trial.key for trial in least}
    kept = [trial for trial in kept if trial.key in still]
    steps = {variant: most for variant, most in steps.items() if any(t.variant == variant for t in kept)}
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        fits = costs.total_s(_with_steps(kept, steps, middle)) <= seconds
        low, high = (middle, high) if fits else (low, middle)
    fewer = _with_steps(kept, steps, low)
    for variant, most in steps.items():
        now = next((t.job.max_steps for t in fewer if t.variant == variant), 0)
        if 0 < now < most:
            what = f"steps of {variant} beyond {now} (of {most})"
            left_out.append(_told("steps", [variant, most, now], what, before_s, seconds))
    return fewer


def _fewer(
    least: List[Trial],
    what: str,
    of: Callable[[Trial], str],
    costs: Costs,
    seconds: float,
    left_out: List[Document],
) -> List[Trial]:
    """Without the last trainings, or the slowest links, until it fits or one is left."""
    needed_s = costs.total_s(least)
    names = list(dict.fromkeys(of(trial) for trial in least))
    if what == "links":
        names.sort(key=lambda name: costs.total_s([t for t in least if of(t) == name]))
    gone: List[str] = []
    while costs.total_s(least) > seconds and len(names) > 1:
        gone.append(names.pop())
        least = [trial for trial in least if of(trial) in names]
    if gone:
        left_out.append(_told(what, gone, f"{what} {_joined(gone)}", needed_s, seconds))
    return least


def _with_steps(trials: Sequence[Trial], steps: Dict[str, int], factor: float) -> List[Trial]:
    def shortened(trial: Trial) -> Trial:
        most = steps[trial.variant]
        count = max(min(most, LEAST_STEPS), int(most * factor))
        return replace(trial, job=replace(trial.job, max_steps=count))

    return [shortened(trial) for trial in trials]


def _slowness(trials: Sequence[Trial], method: str, costs: Costs) -> float:
    """The method's step beside that of no compression, where it does best."""
    ratios = []
    for trial in trials:
        if trial.case.method == method:
            dense = replace(trial, case=replace(trial.case, method=BASELINE))
            link = trial.case.link
            ratios.append(costs.of(trial).step_on(link) / max(1e-9, costs.of(dense).step_on(link)))
    return min(ratios)


def _by_turns(trials: Sequence[Trial]) -> List[Trial]:
    """One trial of every training and method: the first method of each training, then the second .."""
    once = list({(t.variant, t.case.method): t for t in reversed(trials)}.values())[::-1]
    turns: Dict[str, int] = {}
    placed = []
    for trial in once:
        turns[trial.variant] = turns.get(trial.variant, -1) + 1
        placed.append((turns[trial.variant], trial))
    placed.sort(key=lambda pair: pair[0])
    return [trial for _, trial in placed]


def _told(what: str, values: Sequence[object], words: str, needed_s: float, seconds: float) -> Document:
    why = f"about {needed_s:.0f} s would be needed, {max(0.0, seconds):.0f} s are left"
    return {"what": what, "values": list(values), "why": why, "says": f"{words}: {why}"}


def _joined(values: Sequence[str]) -> str:
    return "; ".join(values)


def _list(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


@dataclass
class Work:
    """Probes, plans and runs what fits; the report's ``budget`` says what did not."""

    trials: List[Trial]
    session: measure.Session
    end_at: float  # on the clock
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def __call__(self) -> None:
        session, more = self.session, self.session.report.more
        began = self.end_at - self.seconds
        session.end_at = began + _TELLING * self.seconds
        told: Document = {"seconds": self.seconds, "left_out": []}
        more["budget"] = told
        if not self.trials:
            return
        costs = self._probe(told)
        chosen = plan(self.trials, costs, session.end_at - self.clock())
        told["left_out"] += chosen.left_out
        told["estimate_s"] = chosen.estimate_s
        note(f"{len(chosen.trials)} runs, about {chosen.estimate_s:.0f} s")
        for each in chosen.left_out:
            note(f"left out: {each['says']}")
        session.reserve_s = lambda trial: costs.of(trial).start_s
        session.least_s = lambda trial: costs.of(trial).start_s + costs.of(trial).step_on(trial.case.link)
        started = self.clock()
        missed = measure.measure(chosen.trials, session)
        took = self.clock() - started
        if missed:
            names = [trial.key for trial in missed]
            says = f"{len(names)} run(s) for which no time was left: {'; '.join(names)}"
            told["left_out"].append(
                {"what": "runs", "values": names, "why": "no time was left", "says": says}
            )
        else:
            self._more_seeds(chosen, took / max(1, len(chosen.trials)), told)
        told["took_s"] = self.clock() - began
        if len(missed) == len(chosen.trials) and not session.report.rows:
            raise RunError(
                f"--budget: no run fits into {self.seconds:g} s, of which finding out what runs take took "
                f"{started - began:.0f}; the shortest needs about {min(map(costs.run_s, missed)):.0f} more"
            )

    def _probe(self, told: Document) -> Costs:
        """Each job and method once, on the fastest link: the first method of every job, then others as
        long as there is time for probes."""
        costs = Costs()
        end = self.clock() + _PROBES * self.seconds
        link = estimate.fastest([trial.case.link for trial in self.trials])
        probes = _by_turns(self.trials)
        variants = len({trial.variant for trial in probes})
        told["not_probed"] = []
        for number, trial in enumerate(probes):
            if number >= variants and self.clock() > end:
                told["not_probed"].append(f"{trial.variant}: {trial.case.method}")
                continue
            tried = replace(trial, case=replace(trial.case, link=link))
            try:
                cost = estimate.probe(tried, self.session.network,
                                      self.session.scratch / f"probe{number}", self.clock)
            except RunError:
                if not self.session.keep_going or number < variants:
                    raise
                continue  # its run says what is wrong
            costs.add(trial, cost)
        return costs

    def _more_seeds(self, chosen: Plan, run_s: float, told: Document) -> None:
        """Seeds that were left out, while what they take is still there: estimates are cautious."""
        assert self.session.end_at is not None
        for runs in chosen.seeds:
            if self.clock() + _AGAIN * run_s * len(runs) > self.session.end_at:
                return
            seed = runs[0].case.seed
            note(f"there is time for seed {seed} as well")
            if measure.measure(runs, self.session):
                return
            for each in told["left_out"]:
                if each["what"] == "seeds":
                    each["values"].remove(seed)
                    each["says"] = f"seeds {_list(each['values'])}: {each['why']}"
            told["left_out"] = [e for e in told["left_out"] if e["what"] != "seeds" or e["values"]]

