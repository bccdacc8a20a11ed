"""The module under test: the one GRADWIRE_EMULATED_CORE names in the place of the package's, or the
package's own on a GPU."""

import importlib.util
import sys

import pytest
from gpu_arrays import EMULATED, EmulatedGpu, RealGpu, missing

if EMULATED:  # before the package is imported
    spec = importlib.util.spec_from_file_location("gradwire._core", EMULATED)
    sys.modules["gradwire._core"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["gradwire._core"])



@pytest.fixture
def gpu():
    if EMULATED:
        return EmulatedGpu()
    if missing():
        pytest.skip(missing())
    return RealGpu()


@pytest.fixture
def emulated(gpu):
    """For tests of arrays that no library makes."""
    if not EMULATED:
        pytest.skip("needs arrays made by hand, whose memory the host writes")
    return gpu


@pytest.fixture
def group_of_one(tmp_path):
    """torch.distributed with this process alone."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)  # fmt: skip
    yield
    distributed.destroy_process_group()
