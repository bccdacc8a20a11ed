"""LARS and LAMB beside what public implementations of them have made of the same gradients.

golden/make_optimizers.py ran them and wrote down their parameters, in float32: to compare with, not to
import. Their sums are in another order than ours, so that the last digits differ.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gradwire

GOLDEN = json.loads((Path(__file__).parent / "golden" / "optimizers.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['name']}, {case['data']}")
def test_ends_where_the_public_implementation_does(case):
    data = GOLDEN["data"][case["data"]]
    values = [np.array(v, np.float32) for v in data["values"]]
    start = [v.copy() for v in values]
    gradients = [np.empty_like(v) for v in values]
    optimizer = gradwire.Optimizer(case["spec"], values, gradients, GOLDEN["rate"])
    for step in data["gradients"]:
        for gradient, new in zip(gradients, step):
            gradient[:] = new
        optimizer.step()
    for value, before, expected in zip(values, start, case["values"]):
        moved = np.abs(np.array(expected) - before).max()
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-5 * moved + 1e-7)


def test_every_preset_with_a_public_implementation_here_is_held_to_it():
    presets = {case["spec"].split(",")[0] for case in GOLDEN["cases"]}
    assert presets == {"lamb:preset=timm", "lamb:preset=lambc", "lamb:preset=nvlamb", "lamb:preset=optax",
                       "lars:preset=timm", "lars:preset=torch-optimizer", "lars:preset=optax"}  # fmt: skip
