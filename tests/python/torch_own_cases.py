"""PyTorch's own tests of DistributedDataParallel (torch.testing), run on ranks that there are, with an
exchange behind every DDP that they make."""

import importlib
import inspect
import os
import re
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_utils import set_rng_seed

import gradwire.torch

_WORDS = ("DistributedDataParallel", "DDP", "ddp")


def _load(folder, world_size):
    """torch's module looks at the environment when it is imported."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world_size), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1")
    for name in ("barrier", "test_dir"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    return importlib.import_module("torch.testing._internal.distributed.distributed_test")


def _class_of(module):
    class Cases(module.DistributedTest._DistTestBase, module.TestDistBackend):
        """Its processes are there already."""

        def setUp(self):
            pass

        def tearDown(self):
            pass

    return Cases


def names_of(cases):
    """Of the cases that are about DDP, by their source or that of a helper which they call."""

    def source_of(name):
        return inspect.getsource(inspect.unwrap(getattr(cases, name)))

    def text_of(name):
        own = source_of(name)
        return own + "".join(source_of(helper) for helper in set(re.findall(r"self\.(_test_\w+)\(", own)))

    every = [name for name in dir(cases) if name.startswith("test_")]
    return [name for name in every if any(word in text_of(name) for word in _WORDS)]


def run_cases(world, folder, register=True):
    """By name how each ended: 'passed', 'failed: ...' or 'skipped: ...', and how many of the exchanges that
    it made have had a step."""
    torch.set_num_threads(1)
    module = _load(folder, world.world_size)
    cases, made, ends = _class_of(module), [], {}
    # Its own counts in files what processes of one case have passed.
    module.Barrier.sync = classmethod(lambda *args, **options: dist.barrier())
    plain = DistributedDataParallel.__init__

    def with_exchange(self, *args, **options):
        plain(self, *args, **options)
        made.append(gradwire.torch.register(self, "none", timeout=60.0) if register else None)

    DistributedDataParallel.__init__ = with_exchange
    for name in names_of(cases):
        case = cases(name)
        case.rank, case.file_name = world.rank, f"{folder}/{name}"
        dist.barrier()
        set_rng_seed()
        try:
            getattr(case, name)()
            end = "passed"
        except (unittest.SkipTest, SystemExit) as error:  # which is how torch skips in a process of its own
            end = f"skipped: {error}"
        except Exception as error:
            end = f"failed: {type(error).__name__}: {error}"
        steps = [exchange.stats() != {} for exchange in made if exchange is not None]
        for exchange in made:
            if exchange is not None:
                exchange.close()
        ends[name] = end, len(made), sum(steps)
        made.clear()
    return ends
