"""Time against density, and against ranks, one SVG per link; for exchange.py."""

import io
import math

from gradwire import drawing
from gradwire.bench import files, plots


def write_plots(rows, found, rule, folder):
    """`found`: crossings by 'LINK RANKS'; `rule`: what the switch rule takes. Returns the files."""
    if not plots.can_draw():
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for link in dict.fromkeys(row["link"] for row in rows):
        path = folder / f"exchange-{link}.svg"
        files.write_whole(path, plot([row for row in rows if row["link"] == link], found, rule))
        written.append(path)
    return written


def plot(rows, found, rule):
    """The SVG text of one link: a panel per number of ranks, and one against ranks at 1 %."""
    import matplotlib
    from exchange import density_curves
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    link = rows[0]["link"]
    ranks = sorted({row["ranks"] for row in rows})
    settings = {"svg.hashsalt": "gradwire", "svg.fonttype": "none", "font.family": "sans-serif",
                "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(4.2 * (len(ranks) + 1), 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        panels = figure.subplots(1, len(ranks) + 1, sharey=True, squeeze=False)[0]
        styles = {}
        by_ranks = {}
        for axes, world_size in zip(panels, ranks):
            curves = density_curves(rows, link, world_size)
            for name, curve in curves.items():
                points = sorted(curve.items())
                _draw(axes, name, points, styles)
                at = min(curve, key=lambda density: abs(math.log(density / 0.01)))
                by_ranks.setdefault(name, []).append((world_size, curve[at]))
            for density, below, above in found.get(f"{link} {world_size}", ()):
                if not _leads(curves, density, below, above):
                    continue
                axes.axvline(density, color="#999999", linewidth=0.6)
                axes.annotate(f"{below} | {above} {density:.2%}", (density, 0.02), rotation=90,
                              xycoords=("data", "axes fraction"), fontsize=6, color="#666666")
            for each in rule:
                if (each["link"], each["ranks"]) == (link, world_size):
                    axes.plot(each["density"], each["measured"][each["choice"]], marker="s",
                              markersize=9, fillstyle="none", color="#000000", linestyle="")
            axes.set_title(f"{world_size} ranks (squares: what the rule takes)", fontsize=9)
            axes.set_xlabel("density")
        for name, points in by_ranks.items():
            _draw(panels[-1], name, points, styles)
        panels[-1].set_title("density 1%", fontsize=9)
        panels[-1].set_xticks(ranks, [str(each) for each in ranks], minor=False)
        panels[-1].minorticks_off()
        panels[-1].set_xlabel("ranks")
        panels[0].set_ylabel("seconds, slowest rank")
        panels[-1].legend(fontsize=7, frameon=False)
        numel = max(row["numel"] for row in rows)
        figure.suptitle(f"{numel:,} floats, {link} per rank, both ways", fontsize=10)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _leads(curves, density, below, above):
    """Whether one of two curves that cross is the lowest of all beside the crossing."""
    low = max(d for d in curves[below] if d <= density)
    high = min(d for d in curves[above] if d >= density)
    return below == min(curves, key=lambda name: curves[name].get(low, math.inf)) or above == min(
        curves, key=lambda name: curves[name].get(high, math.inf))


def _draw(axes, name, points, styles):
    number = styles.setdefault(name, len(styles))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(True, which="major", color="#eeeeee", linewidth=0.8)
    axes.plot(*zip(*points), label=name, linewidth=1.4, marker="o", markersize=3,
              color=drawing.COLOURS[number % len(drawing.COLOURS)],
              linestyle=drawing.STYLES[number % len(drawing.STYLES)])
