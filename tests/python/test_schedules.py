"""Learning rates, the noise scale and large batches, against their formulas in Python."""

import math

import numpy as np
import pytest

import gradwire


def test_schedules_follow_their_formulas():
    polynomial = gradwire.PolynomialSchedule(0.8, 100, warmup_steps=10, power=2.0, end=0.1)
    cosine = gradwire.CosineSchedule(0.8, 100, warmup_steps=10, end=0.1)
    for step in range(120):
        progress = min(1.0, (step - 10) / 90)
        if step < 10:
            wanted = [0.8 * (step + 1) / 10] * 2
            assert gradwire.warmup(0.8, step, 10) == pytest.approx(wanted[0])
        else:
            wanted = [0.1 + 0.7 * (1 - progress) ** 2,
                      0.1 + 0.7 * (1 + math.cos(math.pi * progress)) / 2]
        assert [polynomial.at(step), cosine.at(step)] == pytest.approx(wanted)
    assert (polynomial.base, polynomial.total_steps, polynomial.power) == (0.8, 100, 2.0)
    assert gradwire.scale_linearly(0.1, 256, 4096) == pytest.approx(1.6)
    assert gradwire.scale_by_root(0.1, 256, 4096) == pytest.approx(0.4)
    with pytest.raises(gradwire.InvalidArgument, match="warmup_steps is 11, must be at most"):
        gradwire.CosineSchedule(1.0, 10, warmup_steps=11)
    with pytest.raises(gradwire.InvalidArgument, match="batches are 0 and 4"):
        gradwire.scale_linearly(0.1, 0, 4)
    for base, options, says in [(math.nan, {}, "base is nan"), (-1.0, {}, "base is -1"),
                                (1.0, {"end": math.inf}, "end is inf")]:
        for schedule in (gradwire.PolynomialSchedule, gradwire.CosineSchedule):
            with pytest.raises(gradwire.InvalidArgument, match=f"{says}, must be finite and >= 0"):
                schedule(base, 10, **options)
    for power in (math.nan, -1.0):
        with pytest.raises(gradwire.InvalidArgument, match="power is .*, must be finite and >= 0"):
            gradwire.PolynomialSchedule(1.0, 10, power=power)
    with pytest.raises(gradwire.InvalidArgument, match="warmup: base is nan"):
        gradwire.warmup(math.nan, 3, 2)


def test_the_noise_scale_of_gradients_whose_noise_is_known():
    seed = 20261122
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    true = np.full(1000, 0.1)  # |G|^2 = 10
    deviation = 0.5  # S = 1000 * 0.25 = 250
    scale = gradwire.NoiseScale(8, 4, decay=0.999)
    assert scale.value is None and scale.noise is None
    for _ in range(300):
        ranks = true + deviation / math.sqrt(8) * random.standard_normal((4, 1000))
        scale.add((ranks**2).sum(1).mean(), (ranks.mean(0)**2).sum())
    assert scale.steps == 300
    assert scale.gradient_square == pytest.approx(10, rel=0.02)
    assert scale.noise == pytest.approx(250, rel=0.02)
    assert scale.value == pytest.approx(25, rel=0.03)
    assert scale.rate_for(0.1, 32, 256) == pytest.approx(
        0.1 * (1 + scale.value / 32) / (1 + scale.value / 256))
    assert scale.steps_for(100, 32, 256) < 100
    with pytest.raises(gradwire.InvalidArgument, match="ranks is 1"):
        gradwire.NoiseScale(8, 1)


def test_a_large_batch_from_a_small_one():
    large = gradwire.large_batch("sgd:momentum=0.9,weight_decay=5e-4", 0.1, 256, 4096,
                                 examples=60000, epochs=10)
    assert large.optimizer == "larc:weight_decay=5e-04"
    assert large.learning_rate == pytest.approx(1.6)
    assert large.schedule.total_steps == 140 and large.schedule.at(139) < 0.02
    assert "1706.02677" in large.why
    assert repr(large).startswith("LargeBatch('larc:weight_decay=5e-04', learning_rate=1.6")
    weights, gradients = np.ones(3, np.float32), np.ones(3, np.float32)
    gradwire.make_optimizer(large.optimizer, [weights], [gradients],
                            lr=large.schedule.at(0)).step()
    measured = gradwire.large_batch("adamw", 0.001, 256, 3072, examples=60000, epochs=10,
                                    noise_scale=768)
    assert measured.learning_rate == pytest.approx(0.001 * math.sqrt(4 / 1.25))
    assert "1904.00962" not in measured.why and "noise scale of 768" in measured.why
    # 60000 / 4096 is 14.6: a loader that drops no last batch makes 15 steps an epoch.
    kept = gradwire.large_batch("lars", 0.1, 256, 4096, examples=60000, epochs=10, drop_last=False)
    assert kept.schedule.total_steps == 150
    with pytest.raises(gradwire.InvalidArgument, match="noise_scale is -1"):
        gradwire.large_batch("sgd", 0.1, 10, 20, examples=100, epochs=1, noise_scale=-1)
    with pytest.raises(gradwire.InvalidArgument, match="must be at most 100"):
        gradwire.large_batch("sgd", 0.1, 10, 256, examples=100, epochs=1)


def test_what_they_are_is_seen_in_a_session():
    polynomial = gradwire.PolynomialSchedule(0.8, 100, warmup_steps=10, power=2.0, end=0.1)
    assert repr(polynomial) == "PolynomialSchedule(0.8, 100, warmup_steps=10, power=2, end=0.1)"
    assert repr(gradwire.CosineSchedule(0.5, 20)) == "CosineSchedule(0.5, 20, warmup_steps=0, end=0)"
    scale = gradwire.NoiseScale(1, 2)
    assert repr(scale) == "<gradwire.NoiseScale of 0 steps: not known yet>"
    scale.add(3.0, 2.0)  # |G|^2 = (2 * 2 - 3) / 1, S = (3 - 2) / (1 - 1 / 2)
    assert repr(scale) == "<gradwire.NoiseScale of 1 steps: 2 examples>"
    start = [np.ones(3, np.float32)]
    assert repr(gradwire.FunctionalOptimizer("lamb", start, lr=0.5)) == "FunctionalOptimizer('lamb', lr=0.5)"
