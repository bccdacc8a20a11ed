"""The worker's command line: the exit codes and errors of the C++ trainer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, List, Optional

from gradwire.bench.torch_trainer import process
from gradwire.bench.torch_trainer.events import Events

_NAME = "gradwire.bench.torch_trainer"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__)
    process.add_arguments(made)
    made.add_argument(
        "--transport", choices=("gloo", "in_process"), default="gloo",
        help="in_process: checks methods and data, and trains nothing",
    )  # fmt: skip
    made.add_argument("--workload", default="cnn")
    made.add_argument("--data", type=Path)
    made.add_argument("--text", type=Path)
    made.add_argument("--method", required=True, help="with in_process several, separated by ';'")
    made.add_argument("--exchange", default="auto")
    made.add_argument("--optimizer", required=True)
    made.add_argument("--learning-rate", type=float, required=True)
    made.add_argument("--warmup-steps", type=int, default=0)
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--epochs", type=int, default=1)
    made.add_argument("--max-steps", type=int, default=0)
    made.add_argument("--eval-every", type=int, default=0)
    made.add_argument("--target-accuracy", type=float, default=0.0)
    made.add_argument("--stop-at-target", type=int, default=0)
    made.add_argument("--seed", type=int, default=1)
    return made


def main(words: Optional[List[str]] = None) -> int:
    return process.run(_NAME, parser().parse_args(words), _train)


def _train(options: Any, events: Events) -> None:
    from gradwire.bench.torch_trainer import loop  # torch: also what is wrong with it is told

    loop.run(options, events)


if __name__ == "__main__":
    process.leave(main())
