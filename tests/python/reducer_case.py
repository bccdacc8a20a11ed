"""A small model, its gradients, and top-k with error feedback written in NumPy, for the tests of
the Reducer."""

import math

import numpy as np

import gradwire

SHAPES = [("embed", (50, 20)), ("one", (20, 33)), ("bias", (33,)), ("scalar", ()), ("two", (33, 7))]
DENSITY = 0.05
SPEC = "topk:5%"
DTYPE = np.float32


def plan_of(spec=SPEC, bucket_bytes=2048, **options):
    return gradwire.make_plan(SHAPES, spec, bucket_bytes=bucket_bytes, exempt_1d="never", seed=3,
                              **options)


def gradients(rank, step):
    """The same whenever they are asked for."""
    rng = np.random.default_rng(1000 * rank + step + 1)
    return [rng.standard_normal(shape).astype(DTYPE) for _, shape in SHAPES]


def hand_over(reducer, values):
    for p in reversed(range(len(SHAPES))):
        reducer.gradient(p)[...] = values[p]
        reducer.grad_ready(p)


def take_steps(reducer, rank, begin, end):
    """Runs the steps [begin, end); returns the means of the last one."""
    for step in range(begin, end):
        hand_over(reducer, gradients(rank, step))
        assert reducer.wait()
    return means(reducer)


def means(reducer):
    return [reducer.gradient(p).copy() for p in range(len(SHAPES))]


def residuals(reducer):
    return [reducer.residual(p) for p in range(len(SHAPES))]


def split(members, flat):
    """The elements of some parameters, one after another, as an array of each: {id: array}."""
    shapes = {p: SHAPES[p][1] for p in members}
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return {p: part.reshape(shape)
            for (p, shape), part in zip(shapes.items(), np.split(flat, ends[:-1]))}


def assert_same(found, expected):
    assert len(found) == len(expected)
    for p, (a, b) in enumerate(zip(found, expected)):
        np.testing.assert_array_equal(a, b, err_msg=SHAPES[p][0])


class TopK:
    """All ranks of a group, in float32, element by element as the definition has it: each rank sends
    the largest of g + e in each group of a bucket and keeps the rest; the mean is their sum in rank
    order, times 1 / ranks."""

    def __init__(self, ranks, plan, density=DENSITY):
        self.plan, self.density = plan, density
        self.residuals = [[np.zeros(shape, DTYPE) for _, shape in SHAPES] for _ in range(ranks)]

    def step(self, of_ranks):
        """`of_ranks` holds each rank's gradients; returns the means."""
        mean = [np.zeros(shape, DTYPE) for _, shape in SHAPES]
        for bucket in self.plan.layout:
            for group in bucket["groups"]:
                self._group(group["parameters"], of_ranks, mean)
        return mean

    def steps(self, begin, end, ranks=None):
        """The means of the last of the steps [begin, end)."""
        for step in range(begin, end):
            mean = self.step([gradients(r, step) for r in ranks or range(len(self.residuals))])
        return mean

    def _group(self, members, of_ranks, mean):
        total = None
        for own, residual in zip(of_ranks, self.residuals):
            x = np.concatenate([(own[p] + residual[p]).ravel() for p in members])
            k = max(1, math.ceil(self.density * x.size))
            sent = np.zeros_like(x)
            kept = np.lexsort((np.arange(x.size), -np.abs(x)))[:k]
            sent[kept] = x[kept]
            for p, left in split(members, x - sent).items():
                residual[p] = left
            total = sent if total is None else total + sent
        for p, value in split(members, total * DTYPE(1 / len(of_ranks))).items():
            mean[p] = value

    def rescale(self, ranks):
        """Another number of ranks: the residuals of those i with i % ranks == j go to rank j."""
        old = self.residuals
        self.residuals = [
            [(sum((of_rank[p].astype(np.float64) for of_rank in old[j::ranks]),
                  np.zeros(shape)) * (ranks / len(old))).astype(DTYPE)
             for p, (_, shape) in enumerate(SHAPES)] for j in range(ranks)]
