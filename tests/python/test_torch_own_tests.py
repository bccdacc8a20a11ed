"""PyTorch's own tests of DistributedDataParallel, those of its CPU cases that torch carries along, with
register(ddp, "none") behind every DDP."""

import importlib.util

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = [needs_torch, pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None,
    reason="expecttest, which torch.testing needs, is not installed")]

if rank_processes.HAS_TORCH:
    import torch

# What torch's tests do that register() refuses, with the error and its reason. It may get shorter.
REFUSED = {
    "test_accumulate_gradients_no_sync_allreduce_hook": (
        "can only be called once", "DDP takes one communication hook, and the test brings its own"),
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": (
        "can only be called once", "DDP takes one communication hook, and the test brings its own"),
}
PASSED = {
    "test_DistributedDataParallelCPU",  # also saves and loads the DDP model
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",  # has parameters of float64 too
    "test_grads_same_across_ranks_with_no_sync",
    "test_static_graph_api_cpu",
}


class _Runs:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, world):
        from torch_own_cases import run_cases

        return run_cases(world, self.folder)


def test_torchs_own_tests_of_ddp_pass_with_an_exchange(tmp_path):
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"the lists are of torch 2.13, and this is {torch.__version__}")
    if torch.cuda.is_available():
        pytest.skip("torch's tests take the GPUs that there are, and the lists are of its CPU cases")
    folder = tmp_path / "cases"
    folder.mkdir()
    for ends in check(2, _Runs(str(folder)), tmp_path, deadline=240.0):
        failed = {name: end for name, (end, _, _) in ends.items() if end.startswith("failed")}
        assert set(failed) == set(REFUSED), failed
        for name, (words, _) in REFUSED.items():
            assert words in failed[name], failed[name]
        passed = {name for name, (end, made, _) in ends.items() if end == "passed" and made}
        assert passed == PASSED
        without_a_step = {name for name in passed if ends[name][2] == 0}
        assert without_a_step == set()
