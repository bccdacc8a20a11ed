"""What a test draws of cases that take long together; `./run.sh soak` runs all of them."""

import os
import random

SEED = int(os.environ.get("GRADWIRE_TEST_SEED", "20240229"))
SOAK = bool(os.environ.get("GRADWIRE_SOAK"))


def sample(rows, count):
    """`count` of the rows, drawn by SEED; all of them in a soak, which runs the tests marked `soak`."""
    rows = list(rows)
    return rows if SOAK else random.Random(SEED).sample(rows, min(count, len(rows)))
