"""`gradwire simulate`: what a training step would take, as a table and JSON."""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import drawing, effects, json_output, planner, planner_plots
from .errors import InvalidArgument
from .profile_source import add_source, assumed, read_source, rules_of_source
from .uneven import uneven_workers

__all__ = ["add_arguments", "aligned", "run"]

_DDP = (2.0**20, 25 * 2.0**20)  # caps of DDP's buckets: of the first, of the others
# Formats whose layers are the messages of a run, merged by whoever made it.
_MESSAGES = ("b-caffe-merged", "kineto", "chakra")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    effects.remember_given(parser)
    what = parser.add_argument_group("the model")
    add_source(what)
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
    where.add_argument("--cores-per-worker", type=float, default=0.0, metavar="N",
                       help="of a machine's cores, shared by exchanges and computing (enough)")
    where.add_argument("--threads", type=float, default=1.0,
                       help="with which a worker computes (1)")
    where.add_argument("--message-cpu", metavar="TIME",
                       help="of a worker's processor, for a message it sends and the one it receives (0)")
    where.add_argument("--cpu-bandwidth", metavar="RATE",
                       help="and so many of their bytes a second (no time)")
    where.add_argument("--hand-over", metavar="TIME",
                       help="of computing, for each bucket that leaves (what the profile says)")
    where.add_argument("--jitter", type=float, default=0.0,
                       help="standard deviation of computing times over their mean (0)")
    where.add_argument("--seed", type=int, default=1, help="of the jitter (1)")
    where.add_argument("--speeds", metavar="SHARE,..",
                       help="of each worker at computing: 1,0.5x3 for one of the usual speed, three of half")
    where.add_argument("--worker-links", metavar="SHARE,..", help="of each worker's link: the same")
    where.add_argument("--uneven", metavar="FILE",
                       help='JSON of unequal workers: [{"speed": 0.5, "link": 1, "workers": 3}, ..]')
    how = parser.add_argument_group("the exchange")
    how.add_argument("--exchange", help="one of " + ", ".join(planner.EXCHANGES) +
                     " (ring; gather where what --codec sends does not add up)")
    how.add_argument("--servers", type=int, default=1, help="of parameter_server (1)")
    how.add_argument("--codec", metavar="SPEC[=RATE,RATE]",
                     help="a compressor: its bytes, and what encoding and decoding take, either as given "
                          "(of dense bytes: topk:1%%=2GB/s,8GB/s) or timed on this machine, once")
    how.add_argument("--schedule", default=",".join(planner.SCHEDULES),
                     help="some of " + ", ".join(planner.SCHEDULES) + " (all)")
    how.add_argument("--compression", type=float, default=1.0, help="dense bytes over sent bytes (1)")
    how.add_argument("--bucket", metavar="BYTES", help="cap of a bucket, e.g. 25MiB; ddp: 1MiB, then 25MiB")
    how.add_argument("--measured-exchanges", action="store_true",
                     help="the profile's own exchange times instead of the link")
    out = parser.add_argument_group("what is shown")
    out.add_argument("--scaling", action="store_true", help="also for 1, 2, 4, .. workers")
    out.add_argument("--links", metavar="RATE,..",
                     help="also over these links; where fewer bytes are sent, without that too: 1gbit,10gbit")
    out.add_argument("--sensitivity", action="store_true", help="also what each input changes")
    out.add_argument("--critical-path", action="store_true", help="also the tasks that decide")
    out.add_argument("--json", metavar="FILE", help="all of it as JSON, - for the terminal")
    out.add_argument("--trace", metavar="FILE", help="the first schedule's step for ui.perfetto.dev")
    out.add_argument("--measured", metavar="TRACE",
                     help="a trace of the Reducer or of torch.profiler, beside it in --trace")
    out.add_argument("--measured-step", type=int, metavar="N", help="which step of it, from 0 (the last)")
    out.add_argument("--plot", metavar="FILE",
                     help="the parts of a step, and what --scaling, --links and --sensitivity say "
                          "(.svg, .png, .pdf)")
    out.add_argument("--timeline", metavar="FILE",
                     help="what runs when in a step, one schedule below the other (.svg, .png, .pdf)")


def run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    json_output.check(args.json)
    for option, file in (("--plot", args.plot), ("--timeline", args.timeline)):
        if file:
            drawing.need_matplotlib(file, option)
    measured = planner.read_text(args.measured) if args.measured else None
    profile = read_source(args)
    cluster = _cluster(args)
    answers: List[Dict[str, Any]] = []
    for schedule in args.schedule.split(","):
        answer = planner.simulate(profile, cluster, schedule.strip())
        answer["streams"] = cluster.streams if answer["schedule"] == "multi-stream" else 1
        if args.scaling:
            answer["scaling"] = planner.scaling(profile, cluster, answer["schedule"])
        if args.links:
            answer["links"] = _over_links(profile, cluster, answer["schedule"], args.links.split(","))
        if args.sensitivity:
            answer["sensitivities"] = planner.sensitivities(profile, cluster, answer["schedule"])
        answers.append(answer)
    document = {
        "model": planner.model_of(profile),
        "workers": cluster.workers,
        "exchange": cluster.exchange,
        "compression": cluster.compression,
        "codec": cluster.codec,
        "without_effect": effects.without_effect(args, _rules(args, cluster)),
        "notes": [
            *_alone(args, profile, cluster, answers),
            *effects.notes_of_first_steps([_spec_and_rates(args.codec)[0]] if args.codec else []),
        ],
        "predictions": answers,
        "simulated_in_s": time.perf_counter() - began,
    }
    if args.json != json_output.STDOUT:
        print("\n".join(_lines(document, args)))
    json_output.put(document, args.json)
    if args.trace:
        text = planner.trace(profile, cluster, answers[0]["schedule"])
        if measured is not None:
            text = planner.beside_measured(text, measured, args.measured_step, args.measured)
        Path(args.trace).write_text(text, encoding="utf-8")
    if args.plot:
        planner_plots.plot_steps(args.plot, document)
    if args.timeline:
        planner_plots.plot_timeline(args.timeline, document, [
            planner.trace(profile, cluster, answer["schedule"]) for answer in answers])
    return 0


def _over_links(profile: str, cluster: planner.Cluster, schedule: str,
                links: Sequence[str]) -> List[Dict[str, Any]]:
    """The step over links of these rates; dense_step_s, where fewer bytes are sent, by a ring without."""
    points = []
    for link in map(str.strip, links):
        there = replace(cluster, link=link, bytes_per_s=None)
        answer = planner.simulate(profile, there, schedule)
        point = {"link": link, "bytes_per_s": planner.PlannedLink(link).bytes_per_s,
                 "step_s": answer["step_s"], "exposed_s": answer["exposed_s"]}
        if cluster.compression != 1 or cluster.codec is not None:
            dense = replace(there, compression=1.0, codec=None, exchange="ring")
            point["dense_step_s"] = planner.simulate(profile, dense, schedule)["step_s"]
        points.append(point)
    return points


def _alone(args: argparse.Namespace, profile: str, cluster: planner.Cluster,
           answers: Sequence[Dict[str, Any]]) -> List[str]:
    """Where wfbp sends more messages than DDP would, and nobody has said that it should."""
    wfbp = next((answer for answer in answers if answer["schedule"] == "wfbp"), None)
    if wfbp is None or args.bucket is not None or args.profile and args.format in _MESSAGES:
        return []
    ddp = planner.simulate(profile, replace(cluster, bucket_bytes=list(_DDP)), "wfbp")
    if ddp["exchanges"] >= wfbp["exchanges"]:
        return []
    return ["wfbp: every gradient travels alone; as DDP does it: --bucket ddp"]


def _cluster(args: argparse.Namespace) -> planner.Cluster:
    for name in ("workers", "gpus_per_node", "streams", "seed", "servers"):
        if getattr(args, name) < 0:
            raise InvalidArgument(f"{name}: {getattr(args, name)}, must be at least 0")
    caps: List[float] = list(_DDP) if args.bucket == "ddp" else []
    if args.bucket is not None and not caps:
        caps = [planner.parse_bytes(args.bucket)]

    def rate(text: Optional[str]) -> Optional[float]:
        return None if text is None else planner.parse_rate(text)

    def seconds(text: Optional[str]) -> Optional[float]:
        return None if text is None else planner.parse_seconds(text)

    exchange, compression, codec = _compressor(args)
    return planner.Cluster(
        workers=args.workers,
        link=args.link,
        gpus_per_node=args.gpus_per_node,
        intra=args.intra,
        alpha_s=seconds(args.alpha),
        bytes_per_s=rate(args.bandwidth),
        efficiency=args.efficiency,
        stream_bytes_per_s=rate(args.stream_bandwidth),
        streams=args.streams,
        cores_per_worker=args.cores_per_worker,
        threads=args.threads,
        message_cpu_s=seconds(args.message_cpu),
        cpu_bytes_per_s=rate(args.cpu_bandwidth),
        hand_over_s=seconds(args.hand_over),
        jitter=args.jitter,
        seed=args.seed,
        compression=compression,
        exchange=exchange,
        servers=args.servers,
        codec=codec,
        uneven=uneven_workers(args.workers, args.speeds, args.worker_links, args.uneven),
        bucket_bytes=caps,
        measured_exchanges=args.measured_exchanges,
    )


def _compressor(args: argparse.Namespace) -> Tuple[str, float, Optional[Tuple[float, float, float, float]]]:
    """The exchange, dense bytes over sent ones, and what coding takes."""
    if args.codec is None:
        return args.exchange or "ring", args.compression, None
    spec, rates = _spec_and_rates(args.codec)
    ratio, carriers = planner.spec_traffic(spec, max(args.workers, 2))
    if "compression" in getattr(args, "given", ()):
        ratio = args.compression
    fits = {*carriers, "parameter_server"}
    if "ring" in carriers:
        fits.add("tree")  # what adds up in flight
    if "dense" in carriers:
        fits.add("ring")  # the bytes and messages of `dense`
    exchange = args.exchange or ("ring" if "ring" in fits else "gather")
    if exchange in planner.EXCHANGES and exchange not in fits:
        raise InvalidArgument(f"--exchange: {exchange} does not carry '{spec}', "
                              f"expected one of {', '.join(e for e in planner.EXCHANGES if e in fits)}")
    if not rates:
        from .codec_cache import needed_codecs  # there is none in a build without the planner

        return exchange, ratio, needed_codecs([spec])[spec]
    encode, comma, decode = rates.partition(",")
    if not comma:
        raise InvalidArgument(f"--codec: '{args.codec}', expected rates of encoding and of decoding, such "
                              "as topk:1%=2GB/s,8GB/s")
    return exchange, ratio, (0.0, planner.parse_rate(encode), 0.0, planner.parse_rate(decode))


def _spec_and_rates(codec: str) -> Tuple[str, str]:
    """Of --codec: specs have options with = themselves."""
    spec, _, rates = codec.rpartition("=")
    return (spec, rates) if "/s" in rates or "bit" in rates else (codec, "")


def _rules(args: argparse.Namespace, cluster: planner.Cluster) -> List[effects.Rule]:
    """Where options change nothing."""
    schedules = [name.strip() for name in args.schedule.split(",")]
    link = planner.PlannedLink(cluster.link)
    rate = cluster.bytes_per_s or link.bytes_per_s
    carried = rate * (link.efficiency if cluster.efficiency is None else cluster.efficiency)
    one_stream = cluster.stream_bytes_per_s or link.stream_bytes_per_s
    between = ("--link", "--alpha", "--bandwidth", "--efficiency", "--stream-bandwidth")
    of_processors = ("--message-cpu", "--cpu-bandwidth")
    costs = (*between, *of_processors, "--intra", "--exchange", "--servers", "--compression", "--codec")
    alone, by_profile = "one worker exchanges nothing", "--measured-exchanges takes the profile's own times"
    exchanging = (*costs, "--links", "--streams", "--bucket", "--gpus-per-node", "--worker-links",
                  "--hand-over", "--cores-per-worker", "--threads")
    return [
        *effects.of_all(exchanging, cluster.workers == 1, alone),
        *effects.of_all((*costs, "--links"), cluster.measured_exchanges, by_profile),
        *effects.of_all(between, cluster.workers <= cluster.gpus_per_node,
                        "all workers are in one machine"),
        *effects.of_all((*of_processors, "--threads"), cluster.cores_per_worker == 0,
                        "there are enough cores (--cores-per-worker)"),
        *effects.of_all(of_processors, cluster.workers <= cluster.gpus_per_node,
                        "all workers are in one machine"),
        *effects.of_all(("--cores-per-worker", "--threads"),
                        not (cluster.measured_exchanges or cluster.message_cpu_s or cluster.cpu_bytes_per_s),
                        "exchanges take nothing of the processors (--message-cpu, --cpu-bandwidth)"),
        ("--intra", cluster.gpus_per_node == 1, "each machine has one worker (--gpus-per-node)"),
        ("--intra", cluster.exchange == "parameter_server", "servers are reached between machines"),
        ("--link", cluster.alpha_s is not None and cluster.bytes_per_s is not None,
         "--alpha and --bandwidth say all of it"),
        ("--streams", "multi-stream" not in schedules, "no schedule but multi-stream has several"),
        ("--stream-bandwidth", one_stream >= carried, "the link carries no more than that"),
        ("--servers", cluster.exchange != "parameter_server", f"{cluster.exchange} has no servers"),
        ("--seed", cluster.jitter == 0, "nothing is drawn without --jitter"),
        *rules_of_source(args),
        ("--measured", args.trace is None, "it is drawn into --trace"),
        ("--measured-step", args.measured is None, "it is of --measured"),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _lines(document: Dict[str, Any], args: argparse.Namespace) -> List[str]:
    lines = [f"{document['model']}, {document['workers']} workers; times of a step in ms"]
    lines += assumed(args)
    if document["codec"] is not None:
        floor, rate, decode_floor, decode_rate = document["codec"]
        lines.append(
            f"{args.codec}: {document['compression']:.3g} times fewer bytes by {document['exchange']}, "
            f"encodes {rate / 1e9:.3g} GB/s after {planner.seconds_text(floor)}, "
            f"decodes {decode_rate / 1e9:.3g} GB/s after {planner.seconds_text(decode_floor)}")
    lines += document["without_effect"] + document["notes"]
    rows = [["schedule", "step", "computing", "exposed", "input", "messages", "samples/s"]]
    for one in document["predictions"]:
        rows.append([planner_plots.named(one), _ms(one["step_s"]), _ms(one["compute_s"]),
                     _ms(one["exposed_s"]), _ms(one["input_s"]), str(one["exchanges"]),
                     f"{one['samples_per_s']:.1f}"])
    lines += aligned(rows)
    for one in document["predictions"]:
        if args.scaling:
            lines += ["", f"{planner_plots.named(one)}: scaling"]
            lines += aligned([["workers", "step", "exposed", "speedup", "efficiency"]] + [
                [str(p["workers"]), _ms(p["step_s"]), _ms(p["exposed_s"]), f"{p['speedup']:.1f}",
                 f"{p['efficiency']:.1%}"] for p in one["scaling"]])
        if args.links:
            lines += ["", f"{planner_plots.named(one)}: over other links"]
            lines += aligned([["link", "step", "exposed", "without compression"]] + [
                [p["link"], _ms(p["step_s"]), _ms(p["exposed_s"]),
                 _ms(p["dense_step_s"]) if "dense_step_s" in p else ""] for p in one["links"]])
        if args.sensitivity:
            lines += ["", f"{planner_plots.named(one)}: 1% more of it changes the step by"]
            lines += aligned([[s["input"], s["no_effect"] and f"nothing: {s['no_effect']}"
                                or f"{s['elasticity']:+.3f}%"] for s in one["sensitivities"]])
        if args.critical_path:
            lines += ["", f"{planner_plots.named(one)}: what decides"]
            lines += aligned([["from", "takes", "what"]] + [
                [_ms(t["begin_s"]), _ms(t["seconds"]), f"{t['kind']} {t['what']}".strip()]
                for t in one["critical_path"]])
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> List[str]:
    """Lines of a table, indented by two."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in rows]
