"""Sentences that HTML and Markdown share."""

from __future__ import annotations

import json
from typing import List

from gradwire.report.document import Report, Study
from gradwire.report.units import percent

HOW_TO_READ = (
    "Seconds are training time of one worker: start-up and evaluation are left out.",
    "A step is computing plus waiting for exchanges that nothing hid. Compression goes on beside both, "
    "on threads of its own, so that it is no third part of the sum.",
    "One step drawn is rank 0's of median time, of the second half of its run. An exchange holds what it "
    "waits for other workers; what of it was decoding and summing is drawn at its end, wherever it was.",
    "Bytes are those that one worker sends, as the transport counts them; interface: as its network "
    "interface does, with all headers.",
    "± is a 95% interval: over seeds by Student's t; with one seed, of the step time alone.",
    "“Nothing beats it”: no other method is at least as good in accuracy, time and bytes at the end of "
    "its run, and better in one of them.",
    "Simulated steps come from gradwire.planner: computing and compression of the measured row, bytes by "
    "the exchange's formula, each worker with processors of its own. They are predictions.",
    "Peers are methods of PyTorch itself, for comparison. Dense is no compression.",
)

SCALED = (
    "simulated ones are predictions, not measurements: what the planner says, times measured over what it "
    "says at the largest measured size"
)


def heading(study: Study) -> str:
    run = f"{study.run}: " if study.run else ""
    return f"{run}{study.workload}, {study.workers} workers"


def facts(study: Study) -> str:
    """What a study is about, beneath its heading."""
    found = []
    if study.parameters:
        found.append(f"{study.parameters:,} parameters")
    if study.target_accuracy:
        found.append(f"until {percent(study.target_accuracy)} of the test samples are right")
    else:
        found.append("no target accuracy: methods are compared by the time of a step")
    seeds = sorted({s for link in study.links for m in link.methods for s in m.seeds})
    found.append(f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}")
    return ", ".join(found)


def subtitle(report: Report) -> str:
    methods = {m.method for s in report.studies for link in s.links for m in link.methods}
    links = {link.name for s in report.studies for link in s.links}
    cpus = list(dict.fromkeys(str(run.machine.get("cpu", "a machine")) for run in report.runs))
    files = sum(len(run.files) for run in report.runs)
    made = "run" if len(report.runs) == 1 else "runs"
    return (
        f"{len(methods)} methods on {len(links)} links, {len(report.runs)} {made} "
        f"from {files} file{'s' if files > 1 else ''}, measured on {', '.join(cpus)}"
    )


def run_lines(report: Report) -> List[str]:
    """What tells runs apart, one line each."""
    return [
        f"{run.label or 'this run'}: {', '.join(run.files)}; gradwire {run.version or 'of no version'}"
        f"{f', commit {run.commit[:10]}' if run.commit else ''}; {run.machine.get('cpu', 'a machine')}, "
        f"{run.machine.get('cores', '?')} cores"
        for run in report.runs
    ]


def settings_lines(report: Report) -> List[str]:
    """Each file's settings in one line."""
    return [
        f"{name}: " + ", ".join(f"{k} {_plain(v)}" for k, v in settings.items())
        for run in report.runs
        for name, settings in zip(run.files, run.settings)
    ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
