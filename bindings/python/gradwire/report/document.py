"""What a report holds: plain data, written as JSON (docs/report.md says what each key means)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional

from gradwire.bench.differences import Difference, Estimate
from gradwire.bench.types import Document

SCHEMA = "gradwire-report/1"
QUESTION = "Which gradient compression should I use on which network, and is it worth it at all?"


@dataclass(frozen=True)
class Run:
    """Files that make up one sweep: one machine, one version."""

    label: str  # "A", "B", ...; "" where there is one run
    files: List[str]
    version: Optional[str]
    commit: Optional[str]
    machine: Document
    network: str
    seeds: List[int]
    ended: List[str]  # of each file
    commands: List[str]  # of each file, one shell line each
    settings: List[Document]  # of each file


@dataclass(frozen=True)
class Method:
    """One method on one link; means over seeds."""

    method: str
    peer: bool  # not of gradwire: PyTorch's own, for comparison
    dense: bool  # sends the gradient as it is
    exchange: Optional[str]
    seeds: List[int]
    reached: int  # seeds that reached the target
    stopped_by: List[str]
    seconds_to_target: Optional[Estimate]  # of the seeds that reached it
    seconds: Optional[Estimate]  # of training, to the end of the run
    final_accuracy: Optional[Estimate]
    accuracy_minus_dense: Optional[Difference]  # None unless both trained for equal epochs
    step_ms: Optional[Estimate]
    compute_ms: Optional[float]
    exposed_exchange_ms: Optional[float]
    compression_ms: Optional[float]
    wire_bytes_per_step: Optional[float]
    interface_bytes_per_step: Optional[float]
    bytes_sent: Optional[float]  # per worker, to the end of the run
    times_dense: Optional[float]  # how many times sooner than no compression
    on_front: bool  # no other is at least as good in accuracy, time and bytes, and better in one


@dataclass(frozen=True)
class Curve:
    method: str
    seed: int
    points: List[Document]  # step, seconds, bytes, accuracy


@dataclass(frozen=True)
class Verdict:
    """kind: "compress", "do not compress", "too close to call", "not reached" or "not measured"."""

    kind: str
    methods: List[str]  # those to take, or those too close to call
    text: str
    note: str  # how sure


@dataclass(frozen=True)
class Span:
    name: str
    begin_ms: float
    ms: float


@dataclass(frozen=True)
class Track:
    name: str
    spans: List[Span]


@dataclass(frozen=True)
class Timeline:
    """One step of one rank, milliseconds since it began; of a trace since its first gradient."""

    source: str  # a trace's file; of a row the method
    step: Optional[int]
    tracks: List[Track]
    step_ms: Optional[float] = None  # None: of a trace, which has the exchange alone
    seed: Optional[int] = None


@dataclass(frozen=True)
class Link:
    name: str
    where: str  # "50 Mbit/s"
    bits_per_s: Optional[float]
    verdict: Verdict
    methods: List[Method]
    curves: List[Curve]
    timelines: List[Timeline] = field(default_factory=list)  # of dense, auto and the best method


@dataclass(frozen=True)
class Study:
    """One workload with one number of workers in one run."""

    run: str
    workload: str
    workers: int
    parameters: Optional[int]
    target_accuracy: Optional[float]
    links: List[Link]


@dataclass(frozen=True)
class Point:
    workers: int
    step_ms: float
    samples_per_s: float
    simulated: bool
    model_ms: Optional[float] = None  # what the planner says; simulated steps are scaled to a measured one


@dataclass(frozen=True)
class Scaling:
    run: str
    workload: str
    link: str
    where: str
    method: str
    points: List[Point]


@dataclass(frozen=True)
class Prediction:
    """what: "step time, ms" or "bytes per step"; by: what predicted it."""

    run: str
    workload: str
    workers: int
    where: str
    method: str
    what: str
    predicted: float
    measured: float
    by: str


@dataclass(frozen=True)
class Decision:
    """One choice of method "auto"; chosen and why as the log has them, the rest in details."""

    run: str
    workload: str  # "" where a log stands beside rows and not in one
    where: str
    seed: int
    step: Optional[int]
    chosen: str
    why: str
    details: Dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """One quantity of one method on one link: run minus base."""

    workload: str
    workers: int
    where: str
    method: str
    quantity: str
    base: Estimate
    other: Estimate
    difference: float
    half_width: Optional[float]
    basis: str  # "paired", "welch", "steps" or "none"
    beyond: bool


@dataclass(frozen=True)
class Comparison:
    base: str
    run: str
    verdict: str
    unlike: List[str]  # settings that differ, each "name: of base | of run"
    rows: List[Compared]
    only_base: List[str]
    only_run: List[str]


@dataclass(frozen=True)
class Report:
    runs: List[Run]
    studies: List[Study]
    scaling: List[Scaling] = field(default_factory=list)
    predictions: List[Prediction] = field(default_factory=list)
    decisions: List[Decision] = field(default_factory=list)
    timelines: List[Timeline] = field(default_factory=list)
    comparisons: List[Comparison] = field(default_factory=list)
    not_measured: List[str] = field(default_factory=list)
    question: str = QUESTION
    schema: str = SCHEMA

    def document(self) -> Document:
        """The JSON object, its schema first."""
        found = asdict(self)
        return {"schema": found.pop("schema"), "question": found.pop("question"), **found}
