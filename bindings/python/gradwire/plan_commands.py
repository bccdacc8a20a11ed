"""`gradwire plan` and `gradwire recommend`: their options, tables and JSON (docs/planner.md)."""

from __future__ import annotations  # in a build without the planner its classes are missing

import argparse
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import drawing, effects, json_output, planner, planner_plots
from .errors import InvalidArgument
from .profile_source import add_source, assumed, read_source, rules_of_source
from .simulating import aligned

__all__ = ["add_plan", "add_recommend"]

_SPECS = "topk:1%,int4;int8"
# Of Plan.memory(), in the order of the table. What the Reducer has room for besides, a gradient's own
# memory, register() never writes to: gradients travel where DDP has them.
_HELD = ("residuals", "estimates", "compressors", "scratch", "payloads", "messages")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Options of `gradwire plan`."""
    parser.description = (
        "Says how the gradients of a step should travel, of a profiled one or of a model by name: "
        "buckets, compressor, exchange and streams of each, how much every other plan that was "
        "considered loses, and what each has a rank hold in memory. Compressors are timed on this "
        "machine for some seconds when they are first asked for (kept in "
        "~/.cache/gradwire/codecs.json), links are as given.")
    effects.remember_given(parser)
    add_source(parser.add_argument_group("the step"))
    parser.add_argument("--workers", type=int, required=True, help="ranks")
    _add_link(parser)
    parser.add_argument("--specs", default=_SPECS, metavar="SPEC;..",
                        help="compressors besides none and bf16; + is read as a comma "
                             f"[{_SPECS}]".replace("%", "%%"))
    parser.add_argument("--streams", default="1", metavar="N,..",
                        help="numbers of streams to choose from [1]")
    parser.add_argument("--tolerance", type=float, default=0.03, metavar="PART",
                        help="of plans within this part of the fastest take the one that sends most "
                             "[0.03]")
    parser.add_argument("--threads", type=int, default=1, help="of the compressors [1]")
    parser.add_argument("--json", metavar="FILE", help="write the plan there, - for stdout")
    parser.add_argument("--plot", metavar="FILE",
                        help="draw the buckets, and what each plan would take (.svg, .png, .pdf)")
    parser.set_defaults(run=_plan)


def add_recommend(parser: argparse.ArgumentParser) -> None:
    """Options of `gradwire recommend`."""
    parser.description = (
        "Says which instances, how many and which plan train an epoch within a time at the least "
        "cost, and what else is neither slower nor dearer than anything. A step takes what it takes "
        "on one GPU, and its exchange, of which nothing is hidden: an upper bound.")
    effects.remember_given(parser)
    parser.add_argument("--step", action="append", required=True, metavar="GPU=TIME",
                        help="what a step takes on one GPU of this kind, e.g. V100=210ms; repeatable")
    parser.add_argument("--gradient", required=True, metavar="BYTES",
                        help="of float32 gradient, e.g. 102MB")
    parser.add_argument("--samples", type=float, required=True, help="of an epoch")
    parser.add_argument("--batch", type=float, required=True, help="samples per GPU and step")
    parser.add_argument("--budget", required=True, metavar="TIME", help="of an epoch, e.g. 2h")
    parser.add_argument("--counts", default="1,2,4,8", metavar="N,..",
                        help="numbers of instances [1,2,4,8]")
    parser.add_argument("--plans", default="none,bf16", metavar="PLAN,..",
                        help="none, bf16 or NAME=RATIO: a compressor that sends a RATIO-th of the "
                             "bytes to every rank [none,bf16]")
    parser.add_argument("--prices", metavar="FILE",
                        help="a price table: instance,gpu,gpus,usd_per_hour [AWS p2 and p3, 2022]")
    _add_link(parser)
    parser.add_argument("--node-link", default="pcie3", metavar="LINK",
                        help="between GPUs of an instance [pcie3]")
    parser.add_argument("--json", metavar="FILE", help="write it there, - for stdout")
    parser.add_argument("--plot", metavar="FILE",
                        help="draw time and cost, and the front (.svg, .png, .pdf)")
    parser.set_defaults(run=_recommend)


def _add_link(parser: argparse.ArgumentParser) -> None:
    presets = "pcie3, pcie4, nvlink, 10gbe, 25gbe, 100gbe, infiniband"
    parser.add_argument("--link", default="10gbe", metavar="LINK",
                        help=f"{presets} or a rate such as 10gbit or 1.2GB/s [10gbe]")
    parser.add_argument("--alpha", metavar="TIME", help="start-up of a message, e.g. 60us")
    parser.add_argument("--stream-bandwidth", metavar="RATE", help="what one stream can have")


def _link(args: argparse.Namespace) -> planner.PlannedLink:
    link = planner.PlannedLink(args.link)
    if args.alpha is not None:
        link.alpha_s = _read("--alpha", planner.parse_seconds, args.alpha)
    if args.stream_bandwidth is not None:
        link.stream_bytes_per_s = _read("--stream-bandwidth", planner.parse_rate, args.stream_bandwidth)
    return link


def _read(option: str, parse: Callable[[str], float], text: str) -> float:
    """What the text says; an error names the option."""
    try:
        return parse(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{option}: {error}") from None


def _integers(option: str, text: str) -> List[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"{option}: '{text}', expected whole numbers such as 1,2,4") from None


def _put(args: argparse.Namespace, document: Dict[str, Any], text: str,
         plot: Callable[[str, Dict[str, Any]], None]) -> int:
    if args.plot:
        plot(args.plot, document)
    if args.json != json_output.STDOUT:
        print("\n".join([*document["without_effect"], text]))
    json_output.put(document, args.json, indent=2)
    return 0


def _memory_table(candidates: Sequence[Dict[str, Any]], chosen: int, copy: int) -> str:
    """What a rank holds by each plan, the chosen one first, in MB and in copies of the gradients."""
    rows = [["MB of a rank", *_HELD, "together", "copies"]]
    for candidate in (candidates[chosen], *candidates[:chosen], *candidates[chosen + 1:]):
        held = [candidate["memory"][part] for part in _HELD]
        rows.append([candidate["name"], *(f"{part / 1e6:.1f}" for part in (*held, sum(held))),
                     f"{sum(held) / copy:.2f}"])
    return ("\n".join(aligned(rows)) + f"\na copy is {copy / 1e6:.1f} MB, of float32 gradients; a copy of "
            "them and one of DDP's buckets are DDP's own, and no part of this\n")


def _plan(args: argparse.Namespace) -> int:
    json_output.check(args.json)
    if args.plot:
        drawing.need_matplotlib(args.plot)
    link = _link(args)
    streams = _integers("--streams", args.streams)
    # Before compressors are timed.
    for option, least in (("--workers", args.workers), ("--streams", min(streams)),
                          ("--threads", args.threads)):
        if least < 1:
            raise InvalidArgument(f"{option}: {least}, must be at least 1")
    gradients = planner.gradients_of_profile(read_source(args))
    specs = [spec.strip().replace("+", ",") for spec in args.specs.split(";") if spec.strip()]
    from .codec_cache import needed_codecs  # there is none in a build without the planner

    codecs = needed_codecs(["bf16", *specs], args.threads)
    plan = planner.plan_buckets(
        gradients, link=link, world_size=args.workers, codecs=codecs, specs=specs,
        streams=streams, tolerance=args.tolerance)
    rows = [
        [str(i), str(len(b["gradients"])), str(b["numel"]), b["spec"], b["exchange"], str(b["streams"]),
         planner.seconds_text(b["start_s"]), planner.seconds_text(b["end_s"])]
        for i, b in enumerate(plan.buckets)]
    copy = 4 * sum(numel for _, numel, _ in gradients)
    head = ["bucket", "gradients", "elements", "spec", "exchange", "streams", "starts", "ends"]
    text = "\n".join(aligned([head, *rows]))
    document = {
        "link": link.name, "workers": args.workers, "end_s": plan.end_s,
        "backward_end_s": plan.backward_end_s, "encode_s": plan.encode_s, "exact": plan.exact,
        "buckets": plan.buckets, "candidates": plan.candidates, "chosen": plan.chosen,
        "gradient_bytes": copy, "codecs": codecs,
        "notes": [*assumed(args), *effects.notes_of_first_steps(specs)]}
    full = link.effective_bytes_per_s(1) >= link.effective_bytes_per_s(max(streams))
    document["without_effect"] = effects.without_effect(args, [
        *effects.of_all(("--link", "--alpha", "--stream-bandwidth", "--streams"), args.workers == 1,
                        "one worker exchanges nothing"),
        ("--streams", full, "one stream carries all of the link (--stream-bandwidth)"),
        *_stream_rules(link),
        *rules_of_source(args),
    ])
    notes = "".join(f"\n{note}" for note in document["notes"])
    memory = _memory_table(plan.candidates, plan.chosen, copy)
    return _put(args, document, f"{text}\n\n{memory}\n{plan.explain().rstrip()}{notes}",
                planner_plots.plot_plan)


def _stream_rules(link: planner.PlannedLink) -> List[effects.Rule]:
    less = 0 < link.stream_bytes_per_s < link.efficiency * link.bytes_per_s
    return [("--stream-bandwidth", not less, "the link carries no more than that")]


def _step_times(texts: Sequence[str]) -> Dict[str, float]:
    steps: Dict[str, float] = {}
    for text in texts:
        gpu, equals, seconds = text.partition("=")
        if not gpu or not equals:
            raise InvalidArgument(f"--step: '{text}', expected a GPU and a time such as V100=210ms")
        if gpu in steps:
            raise InvalidArgument(f"--step: {gpu} is given twice, expected once")
        steps[gpu] = _read(f"--step {gpu}", planner.parse_seconds, seconds)
    return steps


def _plans(text: str) -> Dict[str, Tuple[float, bool]]:
    """Name -> (dense bytes / payload bytes, whether every payload goes to every rank)."""
    plans: Dict[str, Tuple[float, bool]] = {}
    for part in text.split(","):
        name, equals, ratio = part.partition("=")
        if not equals:
            if name not in ("none", "bf16"):
                raise InvalidArgument(f"--plans: '{name}', expected none, bf16 or NAME=RATIO")
            plans[name] = (1.0 if name == "none" else 2.0, False)
            continue
        try:
            value = float(ratio)
        except ValueError:
            value = math.nan
        if not 1 <= value < math.inf or not name:
            raise InvalidArgument(f"--plans: '{part}', expected NAME=RATIO with a ratio from 1 up")
        plans[name] = (value, True)
    return plans


def _epoch_time(
    args: argparse.Namespace, steps: Dict[str, float], plans: Dict[str, Tuple[float, bool]],
) -> Callable[[planner.Instance, int, str], Optional[float]]:
    between, within = _link(args), planner.PlannedLink(args.node_link)
    numel = math.ceil(_read("--gradient", planner.parse_bytes, args.gradient) / 4)

    def epoch_s(instance: planner.Instance, count: int, plan: str) -> Optional[float]:
        if instance.gpu not in steps:
            return None
        ratio, gathers = plans[plan]
        ranks = instance.gpus * count
        payload = math.ceil(4 * numel / ratio)
        # One exchange among all: as fast as its slowest kind of link.
        link = between if count > 1 else within
        exchange = planner.exchange_seconds(
            "gather" if gathers else "ring", numel, payload, ranks, link)
        return planner.epoch_seconds(args.samples, args.batch, ranks, steps[instance.gpu] + exchange)

    return epoch_s


def _priced(path: str) -> List[planner.Instance]:
    try:
        return planner.read_instances(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--prices: {path} cannot be read ({error}), expected a text file") from None


def _recommend(args: argparse.Namespace) -> int:
    json_output.check(args.json)
    if args.plot:
        drawing.need_matplotlib(args.plot)
    plans = _plans(args.plans)
    instances = planner.default_instances() if args.prices is None else _priced(args.prices)
    steps = _step_times(args.step)
    usable = [i for i in instances if i.gpu in steps]
    if not usable:
        known = ", ".join(sorted({i.gpu for i in instances}))
        raise InvalidArgument(
            f"--step: no instance of the price table has {', '.join(steps)}, known: {known}")
    found = planner.recommend(
        instances, _epoch_time(args, steps, plans),
        budget_s=_read("--budget", planner.parse_seconds, args.budget),
        counts=_integers("--counts", args.counts), plans=list(plans))
    rows = [
        [f"{c.count} x {c.instance.name}", c.plan, planner.seconds_text(c.epoch_s), f"{c.cost_usd:.2f}",
         "yes" if c.within_budget else "no", "yes" if c.on_front else ""]
        for c in found.configurations]
    head = ["configuration", "plan", "epoch", "USD", "in budget", "front"]
    text = "\n".join(aligned([head, *rows]))
    listed = [
        {"instance": c.instance.name, "count": c.count, "plan": c.plan, "epoch_s": c.epoch_s,
         "cost_usd": c.cost_usd, "within_budget": c.within_budget, "on_front": c.on_front}
        for c in found.configurations]
    chosen = next((i for i, c in enumerate(found.configurations) if c.within_budget), None)
    document: Dict[str, Any] = {"budget_s": found.budget_s, "chosen": chosen, "configurations": listed}
    counts = _integers("--counts", args.counts)
    document["without_effect"] = effects.without_effect(args, [
        ("--node-link", 1 not in counts or all(i.gpus == 1 for i in usable),
         "no configuration is one instance with several GPUs"),
        *effects.of_all(("--link", "--alpha", "--stream-bandwidth"), max(counts) == 1,
                        "every configuration is one instance"),
        *_stream_rules(_link(args)),
    ]) + [f"--step {gpu} has no effect: no instance of the price table has this GPU"
          for gpu in steps if all(i.gpu != gpu for i in instances)]
    return _put(args, document, f"{text}\n\n{found.explain().splitlines()[0]}",
                planner_plots.plot_recommendation)
