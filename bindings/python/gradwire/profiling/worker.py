"""One worker of `gradwire profile`: makes the steps of one run and says what they took.

  profile    the first batch is kept for the others, then steps are measured layer by layer
  synthetic  the kept batch again and again: nothing is read or prepared
  cached     the loader's batches, their files read before
  cold       the loader's batches, their files forgotten by the page cache
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any, Iterator, List

from gradwire.bench.torch_trainer import process
from gradwire.bench.torch_trainer.events import Events
from gradwire.profiling import page_cache

NAME = "gradwire.profiling.worker"
BUILT_IN = ("mlp", "cnn", "bytes")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {NAME}", description=__doc__)
    process.add_arguments(made)
    made.add_argument("--run", required=True, choices=("profile", "synthetic", "cached", "cold"))
    made.add_argument("--what", required=True, help="a built-in workload, or script.py:function")
    made.add_argument("--batch", type=int)
    made.add_argument("--spec", default="none", help="of the built-in workloads' exchange")
    made.add_argument("--files", nargs="*", type=Path, default=[], help="that the loader reads")
    made.add_argument("--kept", type=Path, required=True, help="where the first batch lies")
    made.add_argument("--warmup", type=int, default=3)
    made.add_argument("--steps", type=int, default=20)
    return made


def work(options: Any, events: Events) -> None:
    import torch

    from gradwire.bench.torch_trainer import group

    torch.set_num_threads(options.threads)
    events.say("start")
    with group.process_group(options):
        job = _job(options)
        if options.run == "profile":
            _profile(options, job, events)
        else:
            _time(options, job, events)
        if job.exchange is not None:
            job.exchange.close()
    events.say("done")


def _job(options: Any) -> Any:
    from gradwire.profiling import jobs

    if options.what not in BUILT_IN:
        return jobs.from_function(options.what, options.batch)

    def install(ddp: Any) -> Any:
        import gradwire.torch as gradwire_torch

        if options.world_size == 1:
            return None  # there is nothing to exchange
        return gradwire_torch.register(
            ddp, options.spec, carrier="gloo", timeout=options.timeout_s)

    place = (options.rank, options.world_size)
    return jobs.built_in(options.what, options.files, options.batch, place, install)


def _profile(options: Any, job: Any, events: Events) -> None:
    import torch

    import gradwire
    from gradwire.errors import InvalidArgument

    first = next(iter(job.loader), None)
    if first is None:
        raise InvalidArgument("loader: gave 0 batches, expected at least 1")
    try:
        torch.save(first, options.kept)
    except Exception as error:
        raise InvalidArgument(
            f"loader: a batch cannot be saved ({error}), expected tensors or what pickle takes"
        ) from error
    model = getattr(job.model, "module", job.model)  # names without DDP's
    found = gradwire.profile(
        job.step_fn, job.loader, model=model, batch=job.batch, name=job.name,
        warmup=options.warmup, steps=options.steps, exchange=job.exchange,
    )  # fmt: skip
    events.say("profile", document=found.document)


def _time(options: Any, job: Any, events: Events) -> None:
    """Says the mean step of this rank, and what of the files is still cached in the run 'cold'."""
    import torch
    import torch.distributed as dist

    kept = torch.load(options.kept, weights_only=False)  # of our own run, of a moment ago
    for _ in range(options.warmup):
        job.step_fn(kept)
    dist.barrier()
    if options.rank == 0 and options.run == "cold":
        page_cache.evict(options.files)
        total = sum(file.stat().st_size for file in options.files)
        events.say("evicted", resident=page_cache.resident_bytes(options.files), total=total)
    if options.run == "cached":
        if options.rank == 0:
            page_cache.read_through(options.files)
        _through(job.loader, options.steps)
    dist.barrier()
    # Begun before the clock: what starts processes of its own does so once in many steps.
    first = itertools.repeat(kept) if options.run == "synthetic" else iter(job.loader)
    batches = _endless(first, job.loader)
    seconds: List[float] = []
    begin = time.perf_counter()
    for _ in range(options.steps):
        job.step_fn(next(batches))
        now = time.perf_counter()
        seconds.append(now - begin)
        begin = now
    mean = torch.tensor([sum(seconds) / len(seconds)], dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    events.say("timed", step_s=float(mean), steps=len(seconds))


def _endless(first: Iterator[Any], loader: Any) -> Iterator[Any]:
    """What is left of `first`, then the loader again and again."""
    from gradwire.errors import InvalidArgument

    batches = first
    while True:
        empty = True
        for data in batches:
            empty = False
            yield data
        if empty:
            raise InvalidArgument("loader: gave 0 batches, expected at least 1 on every worker")
        batches = iter(loader)


def _through(loader: Any, steps: int) -> None:
    """Takes the batches that the measured steps will take, so that what they read is cached."""
    for _ in itertools.islice(iter(loader), steps):
        pass


if __name__ == "__main__":
    process.leave(process.run(NAME, parser().parse_args(), work))
