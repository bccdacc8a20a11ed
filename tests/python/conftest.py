"""Seeds of the Python tests: fixed, printed, and changed by GRADWIRE_TEST_SEED=N."""

import numpy as np
import pytest
from hypothesis import settings
from sampling import SEED

# The same examples in every run; no deadline, since machines under test are shared.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=60, print_blob=True
)
settings.load_profile("fixed")


def pytest_report_header(config):
    return f"gradwire: seed {SEED} (GRADWIRE_TEST_SEED), hypothesis derandomized"


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)
