"""`gradwire simulate`: what a training step would take, as a table and JSON."""

import argparse
import json
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from . import planner
from .errors import InvalidArgument

__all__ = ["add_arguments", "aligned", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("the model")
    source = what.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a model by name: bert-base, bert-large, gpt2, gpt2-medium, gpt2-xl")
    source.add_argument("--profile", help="a file with a measured profile")
    add_profile_format(what)
    what.add_argument("--tflops", type=float, default=50.0, metavar="N",
                      help="of --model: 10^12 operations per second that a worker reaches (50)")
    what.add_argument("--batch", type=int, default=8, help="of --model and pipedream: samples per worker (8)")
    what.add_argument("--tokens", type=int, help="of --model: tokens per sample")
    what.add_argument("--step-on-one", metavar="TIME",
                      help="the measured step on one worker, e.g. 392ms: sets the model's one constant")
    where = parser.add_argument_group("the machines")
    where.add_argument("--workers", type=int, default=8, help="how many (8)")
    where.add_argument("--gpus-per-node", type=int, default=1, help="workers that share a link (1)")
    where.add_argument("--link", default="10gbit",
                       help="between machines: a preset (25gbe, infiniband, ..) or a rate (10gbit)")
    where.add_argument("--intra", help="inside a machine: the same")
    where.add_argument("--alpha", metavar="TIME", help="start-up of a message, e.g. 60us")
    where.add_argument("--bandwidth", metavar="RATE", help="of the link, e.g. 1.2GB/s")
    where.add_argument("--efficiency", type=float, help="share of the bandwidth that can be had")
    where.add_argument("--stream-bandwidth", metavar="RATE", help="the most one stream gets")
    where.add_argument("--streams", type=int, default=2, help="of the schedule multi-stream (2)")
    where.add_argument("--jitter", type=float, default=0.0,
                       help="standard deviation of computing times over their mean (0)")
    where.add_argument("--seed", type=int, default=1, help="of the jitter (1)")
    how = parser.add_argument_group("the exchange")
    how.add_argument("--schedule", default=",".join(planner.SCHEDULES),
                     help="some of " + ", ".join(planner.SCHEDULES) + " (all)")
    how.add_argument("--compression", type=float, default=1.0, help="dense bytes over sent bytes (1)")
    how.add_argument("--bucket", metavar="BYTES", help="cap of a bucket, e.g. 25MiB; ddp: 1MiB, then 25MiB")
    how.add_argument("--measured-exchanges", action="store_true",
                     help="the profile's own exchange times instead of the link")
    out = parser.add_argument_group("what is shown")
    out.add_argument("--scaling", action="store_true", help="also for 1, 2, 4, .. workers")
    out.add_argument("--sensitivity", action="store_true", help="also what each input changes")
    out.add_argument("--critical-path", action="store_true", help="also the tasks that decide")
    out.add_argument("--json", metavar="FILE", help="all of it as JSON, - for the terminal")
    out.add_argument("--trace", metavar="FILE", help="the first schedule's step for ui.perfetto.dev")


def add_profile_format(group: argparse._ActionsContainer) -> None:
    """Options that say how --profile is to be read."""
    group.add_argument("--format", default="profile", choices=planner.FORMATS, help="of --profile")
    group.add_argument("--step", type=int, default=0, help="of a kineto trace, from 0 (0)")


def run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    profile = _profile(args)
    cluster = _cluster(args)
    answers: List[Dict[str, Any]] = []
    for schedule in args.schedule.split(","):
        answer = planner.simulate(profile, cluster, schedule.strip())
        if args.scaling:
            answer["scaling"] = planner.scaling(profile, cluster, answer["schedule"])
        if args.sensitivity:
            answer["sensitivities"] = planner.sensitivities(profile, cluster, answer["schedule"])
        answers.append(answer)
    document = {
        "model": planner.model_of(profile),
        "workers": cluster.workers,
        "predictions": answers,
        "simulated_in_s": time.perf_counter() - began,
    }
    if args.json == "-":
        print(json.dumps(document, indent=1))
    else:
        print("\n".join(_lines(document, args)))
        if args.json:
            Path(args.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.trace:
        text = planner.trace(profile, cluster, answers[0]["schedule"])
        Path(args.trace).write_text(text, encoding="utf-8")
    return 0


def _profile(args: argparse.Namespace) -> str:
    if args.model is not None:
        profile = planner.profile_of_model(args.model, args.tflops * 1e12, args.batch, args.tokens)
    else:
        profile = planner.read_profile(args.profile, args.format, args.step, args.batch)
    if args.step_on_one is not None:
        profile = planner.calibrated(profile, planner.parse_seconds(args.step_on_one))
    return profile


def _cluster(args: argparse.Namespace) -> planner.Cluster:
    for name in ("workers", "gpus_per_node", "streams", "seed"):
        if getattr(args, name) < 0:
            raise InvalidArgument(f"{name}: {getattr(args, name)}, must be at least 0")
    mib = 2.0**20
    caps: List[float] = [mib, 25 * mib] if args.bucket == "ddp" else []
    if args.bucket is not None and not caps:
        caps = [planner.parse_bytes(args.bucket)]

    def rate(text: Optional[str]) -> Optional[float]:
        return None if text is None else planner.parse_rate(text)

    return planner.Cluster(
        workers=args.workers,
        link=args.link,
        gpus_per_node=args.gpus_per_node,
        intra=args.intra,
        alpha_s=None if args.alpha is None else planner.parse_seconds(args.alpha),
        bytes_per_s=rate(args.bandwidth),
        efficiency=args.efficiency,
        stream_bytes_per_s=rate(args.stream_bandwidth),
        streams=args.streams,
        jitter=args.jitter,
        seed=args.seed,
        compression=args.compression,
        bucket_bytes=caps,
        measured_exchanges=args.measured_exchanges,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _lines(document: Dict[str, Any], args: argparse.Namespace) -> List[str]:
    lines = [f"{document['model']}, {document['workers']} workers; times of a step in ms"]
    if args.model is not None:
        lines.append(f"assumed: {args.tflops:g} TFLOP/s per worker, {args.batch} samples each")
    rows = [["schedule", "step", "computing", "exposed", "input", "messages", "samples/s"]]
    for one in document["predictions"]:
        rows.append([one["schedule"], _ms(one["step_s"]), _ms(one["compute_s"]), _ms(one["exposed_s"]),
                     _ms(one["input_s"]), str(one["exchanges"]), f"{one['samples_per_s']:.1f}"])
    lines += aligned(rows)
    for one in document["predictions"]:
        if args.scaling:
            lines += ["", f"{one['schedule']}: scaling"]
            lines += aligned([["workers", "step", "exposed", "speedup", "efficiency"]] + [
                [str(p["workers"]), _ms(p["step_s"]), _ms(p["exposed_s"]), f"{p['speedup']:.1f}",
                 f"{p['efficiency']:.1%}"] for p in one["scaling"]])
        if args.sensitivity:
            lines += ["", f"{one['schedule']}: 1% more of it changes the step by"]
            lines += aligned([[s["input"], s["no_effect"] and f"nothing: {s['no_effect']}"
                                or f"{s['elasticity']:+.3f}%"] for s in one["sensitivities"]])
        if args.critical_path:
            lines += ["", f"{one['schedule']}: what decides"]
            lines += aligned([["from", "takes", "what"]] + [
                [_ms(t["begin_s"]), _ms(t["seconds"]), f"{t['kind']} {t['what']}".strip()]
                for t in one["critical_path"]])
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> List[str]:
    """Lines of a table, indented by two."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in rows]
