"""One rank of predict.py: does the tasks of a file one after another, together with the other ranks.

  {"do": "profile", "model": .., "batch": ..}             steps without any exchange, all ranks at once
  {"do": "codecs", "specs": [..]}                         coding, all ranks at once
  {"do": "probe", "numels": [..]}                         exchanges of so many elements (predict_probe.py)
  {"do": "measure", "model": .., "batch": .., "method": ..}   training steps, timed on rank 0

Each is told as one event with the task's number and what was found.
"""

import argparse
import json
import time
from pathlib import Path

import predict_probe

from gradwire.bench.torch_trainer import process

NAME = "predict_rank.py"
WARMUP = 4  # DDP makes its buckets anew behind the first step, gradwire follows


def parser():
    made = argparse.ArgumentParser(prog=NAME, description=__doc__)
    process.add_arguments(made)
    made.add_argument("--tasks", type=Path, required=True)
    made.add_argument("--digits", type=Path, required=True, help="folder of the digits")
    made.add_argument("--text", type=Path, required=True)
    made.add_argument("--steps", type=int, default=12, help="that are measured, of each task")
    return made


def job_of(options, task, install):
    from gradwire.profiling import jobs

    files = [options.text] if task["model"] == "bytes" else jobs.digit_files(options.digits)
    return jobs.built_in(task["model"], files, task["batch"], (options.rank, options.world_size), install)


def leave_as_it_is(ddp):
    """A hook that exchanges nothing: every rank trains alone, and DDP costs what it costs."""
    import torch
    import torch.distributed as dist

    # DDP compares the annotations.
    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)


def profiled(options, task):
    """The profile of the rank that took longest, and the shapes of its parameters."""
    import torch.distributed as dist

    import gradwire

    job = job_of(options, task, leave_as_it_is)
    dist.barrier()
    found = gradwire.profile(
        job.step_fn, job.loader, model=job.model.module, batch=job.batch, name=job.name,
        warmup=WARMUP, steps=options.steps)
    dist.barrier()  # nobody is alone meanwhile
    all_ranks = [None] * options.world_size
    dist.all_gather_object(all_ranks, found.document)
    slowest = max(all_ranks, key=lambda document: document["step"]["measured_s"])
    return {"document": slowest, "shapes": dict(job.shapes)}


def measured(options, task):
    """Seconds of each step behind the first ones, loading included."""
    import torch.distributed as dist

    import gradwire.torch as gradwire_torch

    spec, _, exchange = task["method"].partition("@")

    def install(ddp):
        return gradwire_torch.register(
            ddp, spec, carrier="gloo", exchange=exchange or "auto", timeout=options.timeout_s)

    job = job_of(options, task, install)
    batches = endless(job.loader)
    seconds = []
    for _ in range(WARMUP + options.steps):
        begin = time.perf_counter()
        job.step_fn(next(batches))
        seconds.append(time.perf_counter() - begin)
    dist.barrier()
    layout = [[row["numel"], row["exchange"]] for row in job.exchange.plan.layout]
    job.exchange.close()
    return {"step_s": seconds[WARMUP:], "buckets": layout}


def endless(loader):
    while True:
        yield from loader


def work(options, events):
    import torch

    from gradwire.bench.torch_trainer import group

    torch.set_num_threads(options.threads)
    events.say("start")
    with group.process_group(options):
        for number, task in enumerate(json.loads(options.tasks.read_text())):
            if task["do"] == "profile":
                found = profiled(options, task)
            elif task["do"] == "codecs":
                found = predict_probe.coded(task)
            elif task["do"] == "probe":
                found = predict_probe.probed(options, task, number)
            else:
                found = measured(options, task)
            events.say("task", task=number, **found)
    events.say("done")


if __name__ == "__main__":
    process.leave(process.run(NAME, parser().parse_args(), work))
