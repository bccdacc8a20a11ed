"""What `gradwire simulate`, `plan` and `recommend` draw with --plot."""

import json
from typing import Any, Dict, List, Sequence, Tuple

from .drawing import COLOURS, HATCHES, STYLES, draw

__all__ = ["named", "plot_plan", "plot_recommendation", "plot_steps", "plot_timeline"]

Document = Dict[str, Any]


def named(step: Document) -> str:
    """A predicted step's schedule, and over how many streams where it is of several."""
    streams = step.get("streams", 1)
    return str(step["schedule"]) + (f" ({streams} streams)" if streams > 1 else "")


def plot_steps(path: str, document: Document) -> None:
    """The parts of a step per schedule; scaling, other links and sensitivities where there are any."""
    steps = document["predictions"]
    panels = [lambda axes: _parts(axes, steps)]
    if "scaling" in steps[0]:
        panels.append(lambda axes: _scaling(axes, steps))
    if "links" in steps[0]:
        panels.append(lambda axes: _links(axes, steps))
    if "sensitivities" in steps[0]:
        panels.append(lambda axes: _sensitivities(axes, steps[0]))
    title = f"{document['model']}, {document['workers']} workers: predicted step"
    draw(path, panels, title, (5, 3.8))


def _parts(axes: Any, steps: List[Document]) -> None:
    left = [0.0] * len(steps)
    names = [named(step) for step in steps]
    for i, (key, label) in enumerate(
            (("compute_s", "computing"), ("exposed_s", "exposed exchange"), ("input_s", "input"))):
        widths = [1e3 * step[key] for step in steps]
        if i > 0 and not any(widths):
            continue
        axes.barh(names, widths, left=left, label=label, color=COLOURS[i + 1], hatch=HATCHES[i],
                  edgecolor="white", linewidth=0.5)
        left = [a + b for a, b in zip(left, widths)]
    for row, total in enumerate(left):
        axes.annotate(f"{total:.4g}", (total, row), xytext=(3, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("a step, ms")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _scaling(axes: Any, steps: List[Document]) -> None:
    counts = [point["workers"] for point in steps[0]["scaling"]]
    axes.plot(counts, counts, color="#999999", linewidth=0.8, label="ideal")
    for i, step in enumerate(steps):
        axes.plot(counts, [point["speedup"] for point in step["scaling"]], label=named(step),
                  color=COLOURS[i % len(COLOURS)], linestyle=STYLES[i % len(STYLES)],
                  marker="osv^Dx+"[i % 7], markersize=3.5, linewidth=1.3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("times one worker's samples per second")
    axes.grid(True, color="#eeeeee", linewidth=0.8)
    axes.legend(frameon=False)


def _links(axes: Any, steps: List[Document]) -> None:
    for i, step in enumerate(steps):
        points = sorted(step["links"], key=lambda point: float(point["bytes_per_s"]))
        rates = [8e-9 * point["bytes_per_s"] for point in points]
        look = dict(color=COLOURS[(i + 1) % len(COLOURS)], markersize=3.5, linewidth=1.3)
        axes.plot(rates, [1e3 * point["step_s"] for point in points], marker="osv^Dx+"[i % 7],
                  label=named(step), **look)
        if "dense_step_s" in points[0]:
            axes.plot(rates, [1e3 * point["dense_step_s"] for point in points], linestyle="--",
                      label=f"{named(step)}, not compressed", **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("link, Gbit/s")
    axes.set_ylabel("a step, ms")
    axes.grid(True, color="#eeeeee", linewidth=0.8)
    axes.legend(frameon=False)


def _sensitivities(axes: Any, step: Document) -> None:
    rows = [row for row in step["sensitivities"] if not row["no_effect"]]
    values = [row["elasticity"] for row in rows]
    axes.barh([row["input"] for row in rows], values, edgecolor="white", linewidth=0.5,
              color=[COLOURS[2] if value > 0 else COLOURS[1] for value in values],
              hatch=[HATCHES[1] if value > 0 else HATCHES[0] for value in values])
    axes.axvline(0, color=COLOURS[0], linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{named(step)}: % of a step for 1% more of it")


# What a task's name begins with, in the order of the palette.
_KINDS = ("update", "backward", "exchange", "decompress", "compress", "forward", "copy", "io",
          "host_to_device", "hand_over")


def plot_timeline(path: str, document: Document, traces: Sequence[str]) -> None:
    """What runs when, from the traces of planner.trace(): of every schedule a row of computing and one of
    messages. Layers of one pass are one bar; a message begins at a white line."""
    def panel(axes: Any) -> None:
        rows: List[str] = []
        seen: List[str] = []
        for step, trace in zip(document["predictions"], traces):
            spans = _spans(trace)
            for row in ("computing", "exchange"):
                place = len(rows)
                rows.append(f"{named(step)}: {row}")
                for i, kind in enumerate(_KINDS):
                    if kind in spans and (kind == "exchange") == (row == "exchange"):
                        axes.broken_barh(_joined(spans[kind]), (place - 0.4, 0.8), edgecolor="none",
                                         facecolor=COLOURS[i % len(COLOURS)],
                                         label="" if kind in seen else kind)
                        seen.append(kind)
            starts = [x for begin, _ in spans.get("exchange", []) for x in (begin, begin, float("nan"))]
            edges = [len(rows) - 1.4, len(rows) - 0.6, float("nan")] * (len(starts) // 3)
            axes.plot(starts, edges, color="white", linewidth=0.4)  # one line, so that the file stays small
            end = 1e3 * step["step_s"]
            axes.annotate(f"{end:.4g} ms", (end, len(rows) - 1.5), xytext=(4, 0), va="center",
                          textcoords="offset points")
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.set_xlabel("since the step began, ms")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)

    title = f"{document['model']}, {document['workers']} workers: one predicted step"
    draw(path, [panel], title, (8, 0.9 + 0.75 * len(traces)))


def _spans(trace: str) -> Dict[str, List[Tuple[float, float]]]:
    """(begin, length) in milliseconds of every task, by the first word of its name."""
    spans: Dict[str, List[Tuple[float, float]]] = {}
    for event in json.loads(trace)["traceEvents"]:
        if event["ph"] == "X":
            kind = event["name"].split()[0]
            spans.setdefault(kind, []).append((event["ts"] / 1e3, event["dur"] / 1e3))
    return spans


def _joined(spans: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Spans that follow one another without a gap as one."""
    joined: List[Tuple[float, float]] = []
    for begin, length in sorted(spans):
        if joined and begin - sum(joined[-1]) < 1e-6:
            first, before = joined[-1]
            joined[-1] = (first, max(before, begin + length - first))
        else:
            joined.append((begin, length))
    return joined


def plot_plan(path: str, document: Document) -> None:
    """When each bucket is ready, leaves and is through; and what every plan considered would take."""
    exchanges = sorted({f"{b['spec']}, {b['exchange']}" for b in document["buckets"]})

    def buckets(axes: Any) -> None:
        seen = set()
        for row, bucket in enumerate(document["buckets"]):
            name = f"{bucket['spec']}, {bucket['exchange']}"
            i = exchanges.index(name)
            axes.barh(row, 1e3 * (bucket["end_s"] - bucket["start_s"]), left=1e3 * bucket["start_s"],
                      color=COLOURS[(i + 1) % len(COLOURS)], hatch=HATCHES[i % len(HATCHES)],
                      edgecolor="white", linewidth=0.5, label="" if name in seen else name)
            seen.add(name)
        axes.axvline(1e3 * document["backward_end_s"], color=COLOURS[0], linestyle="--", linewidth=0.9,
                     label="backward ends")
        axes.invert_yaxis()
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("since backward began, ms")
        axes.set_ylabel("bucket")
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    def candidates(axes: Any) -> None:
        rows = document["candidates"][:16]
        colours = [COLOURS[2] if i == document["chosen"] else COLOURS[1] for i in range(len(rows))]
        hatches = [HATCHES[1] if i == document["chosen"] else HATCHES[0] for i in range(len(rows))]
        places = range(len(rows))
        axes.barh(places, [1e3 * row["end_s"] for row in rows], color=colours, hatch=hatches,
                  edgecolor="white", linewidth=0.5)
        axes.set_yticks(places, [row["name"] for row in rows], fontsize=7)
        axes.axvline(1e3 * document["backward_end_s"], color=COLOURS[0], linestyle="--", linewidth=0.9)
        axes.invert_yaxis()
        axes.set_xlabel("end of communication, ms; hatched: chosen")

    draw(path, [buckets, candidates], f"{document['workers']} workers over {document['link']}", (6, 4.2))


def plot_recommendation(path: str, document: Document) -> None:
    """Cost against time of every configuration; the Pareto front is a line with names."""
    def front(axes: Any) -> None:
        every = document["configurations"]
        best = sorted((c for c in every if c["on_front"]), key=lambda c: float(c["epoch_s"]))
        others = [c for c in every if not c["on_front"]]
        axes.plot([c["epoch_s"] / 60 for c in others], [c["cost_usd"] for c in others], linestyle="none",
                  marker="x", markersize=4, color=COLOURS[6], label="beaten in time and cost")
        axes.plot([c["epoch_s"] / 60 for c in best], [c["cost_usd"] for c in best], color=COLOURS[1],
                  marker="o", markersize=5, drawstyle="steps-post", label="front")
        for place, one in enumerate(best):
            axes.annotate(f"{one['count']} x {one['instance']}, {one['plan']}",
                          (one["epoch_s"] / 60, one["cost_usd"]), xytext=(5, -11 if place % 2 else 5),
                          textcoords="offset points", fontsize=7)
        if document["chosen"] is not None:
            one = every[document["chosen"]]
            axes.plot(one["epoch_s"] / 60, one["cost_usd"], linestyle="none", marker="o", markersize=11,
                      fillstyle="none", color=COLOURS[2], label="recommended")
        axes.axvline(document["budget_s"] / 60, color=COLOURS[0], linestyle="--", linewidth=0.9,
                     label="budget")
        axes.set_xscale("log")
        axes.set_xlabel("an epoch, minutes")
        axes.set_ylabel("USD")
        axes.grid(True, color="#eeeeee", linewidth=0.8)
        axes.legend(frameon=False, fontsize=8)

    draw(path, [front], "configurations by time and cost of an epoch", (6.5, 4.5))
