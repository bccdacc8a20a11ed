"""What `gradwire simulate`, `plan` and `recommend` draw with --plot."""

from typing import Any, Dict, List

from .drawing import COLOURS, HATCHES, STYLES, draw

__all__ = ["plot_plan", "plot_recommendation", "plot_steps"]

Document = Dict[str, Any]


def plot_steps(path: str, document: Document) -> None:
    """The parts of a step per schedule; the scaling curve and the sensitivities where there are any."""
    steps = document["predictions"]
    panels = [lambda axes: _parts(axes, steps)]
    if "scaling" in steps[0]:
        panels.append(lambda axes: _scaling(axes, steps))
    if "sensitivities" in steps[0]:
        panels.append(lambda axes: _sensitivities(axes, steps[0]))
    title = f"{document['model']}, {document['workers']} workers: predicted step"
    draw(path, panels, title, (5, 3.8))


def _parts(axes: Any, steps: List[Document]) -> None:
    left = [0.0] * len(steps)
    names = [step["schedule"] for step in steps]
    for i, (key, label) in enumerate(
            (("compute_s", "computing"), ("exposed_s", "exposed exchange"), ("input_s", "input"))):
        widths = [1e3 * step[key] for step in steps]
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
        axes.plot(counts, [point["speedup"] for point in step["scaling"]], label=step["schedule"],
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


def _sensitivities(axes: Any, step: Document) -> None:
    rows = [row for row in step["sensitivities"] if not row["no_effect"]]
    values = [row["elasticity"] for row in rows]
    axes.barh([row["input"] for row in rows], values, edgecolor="white", linewidth=0.5,
              color=[COLOURS[2] if value > 0 else COLOURS[1] for value in values],
              hatch=[HATCHES[1] if value > 0 else HATCHES[0] for value in values])
    axes.axvline(0, color=COLOURS[0], linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{step['schedule']}: % of a step for 1% more of it")


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
