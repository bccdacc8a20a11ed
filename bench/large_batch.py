"""Final accuracy of every optimizer as the batch grows, at equal epochs, each at its own best rate.

    python bench/large_batch.py --markdown                                     # digits
    python bench/large_batch.py --data DIR --batches 256,1024,4096 --epochs 5 --seeds 3 --markdown

Each optimizer and batch trains at every rate of one grid, half a decade apart, and at the three
best of them with two more seeds that nothing else uses; the rate with the best mean then trains
with the seeds that are reported. `recipe` takes an optimizer's best rate at the smallest batch and
asks gradwire.large_batch() for the rest: nothing is tuned at the larger batch. All runs warm up
linearly for a tenth of their steps, or as the recipe says, and then fall to 0. The model is a deep
perceptron without normalisation; biases take no decay and no layer-wise adaptation. `lost` is
against the same optimizer at the smallest batch, paired by seed, with 95% intervals.

Runs go on --jobs processors at once, one thread each. --json FILE keeps every run as soon as it has
ended: started again with it, only what is missing runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from text_table import print_table

import gradwire
from gradwire.bench import digits
from gradwire.bench.files import write_whole
from gradwire.bench.intervals import mean_interval
from gradwire.bench.job import find_trainer

OPTIMIZERS = ("sgd", "lars", "lamb", "adamw")
GRID = [10 ** (k / 2) for k in range(-8, 6)]  # 1e-4 to 316
TUNING_SEEDS = (1000, 1001, 1002)
WARMUP = 0.1  # of a run's steps


@dataclass(frozen=True)
class Setting:
    """What a run does; equal settings end alike."""

    optimizer: str
    rate: float
    warmup: int
    batch: int
    seed: int


class Runs:
    """Runs of the trainer, and what is known of them already."""

    def __init__(self, args):
        self.args = args
        self.folder = str(args.data or digits.digits_folder())
        self.trainer = str(find_trainer(args.trainer))
        self.job = {"data": args.data.name if args.data else "digits", "epochs": args.epochs,
                    "hidden": args.hidden}
        self.known = {}
        self.examples = None
        if args.json and args.json.exists():
            self.read(json.loads(args.json.read_text()))

    def read(self, document):
        if document["job"] != self.job:
            sys.exit(f"{self.args.json}: its runs are of {document['job']}, expected {self.job}")
        for run in document["runs"]:
            self.known[Setting(**run["setting"])] = run["accuracy"]

    def save(self):
        if self.args.json:
            runs = [{"setting": asdict(s), "accuracy": a} for s, a in self.known.items()]
            write_whole(self.args.json, json.dumps({"job": self.job, "runs": runs}, indent=1))

    def events(self, options):
        """The events of one run of the trainer; SystemExit with its words where it fails."""
        command = [self.trainer, "--data", self.folder, "--world-size", "1", "--threads", "1",
                   "--hidden", self.args.hidden, "--events", "-", "--schedule", "polynomial",
                   *map(str, options)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        events = [json.loads(line) for line in done.stdout.splitlines()]
        failed = [event for event in events if event["event"] == "error"]
        if failed and failed[0]["kind"] == "non_finite_gradient":
            return None  # diverged
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}: {done.stderr.strip()}")
        return events

    def count_examples(self):
        """Of the training set, as the trainer has read it."""
        if self.examples is None:
            start = self.events(["--max-steps", 1])[0]
            self.examples = start["train_examples"]
        return self.examples

    def steps(self, batch):
        return self.args.epochs * max(1, self.count_examples() // batch)

    def tuned(self, optimizer, rate, batch, seed):
        return Setting(optimizer, rate, round(WARMUP * self.steps(batch)), batch, seed)

    def one(self, setting):
        events = self.events(["--optimizer", setting.optimizer, "--learning-rate", setting.rate,
                              "--warmup-steps", setting.warmup, "--batch-size", setting.batch,
                              "--seed", setting.seed, "--epochs", self.args.epochs])  # fmt: skip
        done = [event for event in events or [] if event["event"] == "done"]
        return done[0]["final_accuracy"] if done else None

    def all(self, settings):
        """Runs what is not known yet."""
        missing = [s for s in dict.fromkeys(settings) if s not in self.known]
        with ThreadPoolExecutor(self.args.jobs) as pool:
            for i, (setting, accuracy) in enumerate(zip(missing, pool.map(self.one, missing)), 1):
                self.known[setting] = accuracy
                self.save()
                said = "diverged" if accuracy is None else f"{accuracy:.4f}"
                print(f"[{i}/{len(missing)}] {setting.optimizer} at {setting.rate:.3g}, batch "
                      f"{setting.batch}, seed {setting.seed}: {said}", file=sys.stderr, flush=True)

    def tuning(self, optimizer, batch, rates, seeds):
        return [self.tuned(optimizer, rate, batch, seed) for rate in rates for seed in seeds]

    def mean(self, optimizer, batch, rate, seeds):
        """Of the accuracies; a run that diverged counts as 0."""
        return statistics.fmean(self.known[s] or 0 for s in self.tuning(optimizer, batch, [rate], seeds))

    def best_rates(self, optimizer, batch):
        """The three of the grid that the first seed puts first."""
        return sorted(GRID, key=lambda r: -self.mean(optimizer, batch, r, TUNING_SEEDS[:1]))[:3]

    def best_rate(self, optimizer, batch):
        return max(self.best_rates(optimizer, batch),
                   key=lambda r: self.mean(optimizer, batch, r, TUNING_SEEDS))  # fmt: skip


def recipe(runs, optimizer, batch, seed):
    """What large_batch() makes of the optimizer's best setting at the smallest batch."""
    small = runs.args.batches[0]
    large = gradwire.large_batch(optimizer, runs.best_rate(optimizer, small), small, batch,
                                 examples=runs.count_examples(), epochs=runs.args.epochs,
                                 warmup_epochs=WARMUP * runs.args.epochs)  # fmt: skip
    return Setting(large.optimizer, large.learning_rate, large.schedule.warmup_steps, batch, seed)


def row_of(runs, label, settings, first):
    """A line of the table: the settings, one per seed, and those at the smallest batch."""
    found = [runs.known[s] for s in settings]
    if any(accuracy is None for accuracy in found):
        diverged = sum(accuracy is None for accuracy in found)
        return [label, f"{settings[0].rate:.3g}", f"{diverged} of {len(found)} diverged", ""]
    inner = mean_interval(found)
    losses = mean_interval([100 * ((runs.known[a] or 0) - b) for a, b in zip(first, found)])
    accuracy = f"{statistics.fmean(found):.4f}" + (f" ± {inner.half_width:.4f}" if inner else "")
    lost = "" if settings == first else (
        f"{losses.mean:+.2f} ± {losses.half_width:.2f}" if losses
        else f"{100 * (runs.known[first[0]] - found[0]):+.2f}")  # fmt: skip
    return [label, f"{settings[0].rate:.3g}", accuracy, lost]


def measure(runs, batches, seeds):
    """Everything that runs, and the table's rows."""
    cells = [(o, b) for b in batches for o in OPTIMIZERS]
    runs.all(s for cell in cells for s in runs.tuning(*cell, GRID, TUNING_SEEDS[:1]))
    runs.all(s for cell in cells for s in runs.tuning(*cell, runs.best_rates(*cell), TUNING_SEEDS))
    final = {cell: runs.tuning(*cell, [runs.best_rate(*cell)], seeds) for cell in cells}
    told = {(o, b): [recipe(runs, o, b, s) for s in seeds] for o in OPTIMIZERS for b in batches[1:]}
    runs.all(setting for settings in [*final.values(), *told.values()] for setting in settings)
    rows = []
    for b in batches:
        for o in OPTIMIZERS:
            steps = [str(b), str(runs.steps(b))]
            rows.append([*steps, *row_of(runs, o, final[o, b], final[o, batches[0]])])
            if (o, b) in told:
                rows.append([*steps, *row_of(runs, f"recipe from {o}", told[o, b],
                                             final[o, batches[0]])])  # fmt: skip
    return rows


def numbers(text):
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1 or found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"'{text}', expected rising batches, e.g. 64,256,1024")
    return found


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of IDX files [digits]")
    parser.add_argument("--batches", type=numbers, default=[64, 256, 1024], metavar="B,B,…")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds 1 to N [10]")
    parser.add_argument("--hidden", default="128,128,128,128,128,128", metavar="W,W,…")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at once [2]")
    parser.add_argument("--trainer", help="gradwire-trainer to use")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep runs here, and go on from it")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    if min(args.epochs, args.seeds, args.jobs) < 1:
        parser.error("--epochs, --seeds and --jobs must be at least 1")
    runs = Runs(args)
    if args.batches[-1] > runs.count_examples():
        parser.error(f"--batches: {args.batches[-1]} is above the {runs.examples} examples")
    rows = measure(runs, args.batches, range(1, args.seeds + 1))
    print(f"{runs.job['data']}, {args.epochs} epochs, hidden layers {args.hidden}, "
          f"{args.seeds} seeds; rates {', '.join(f'{rate:.3g}' for rate in GRID)}\n")
    print_table(["batch", "steps", "optimizer", "rate", "accuracy", "points lost"], rows,
                args.markdown)


if __name__ == "__main__":
    main()
