"""Six lines: what four ranks send with top-k, merged into the mean, and the step it makes."""

import numpy as np

import gradwire

random = np.random.default_rng(0)
target = random.standard_normal(10_000).astype(np.float32)


def gradient(weights, rank):
    """Of half the squared distance to the target, as rank sees it."""
    return weights - target + np.float32(0.1 * (rank - 1.5))


# [readme]
ranks = [gradwire.Feedback("topk:10%", 10_000) for _ in range(4)]       # one per rank, with its residual
weights, mean = np.zeros(10_000, np.float32), np.empty(10_000, np.float32)
optimizer = gradwire.SGD([weights], [mean], lr=0.1, momentum=0)         # reads mean, steps weights in place
for step in range(200):
    payloads = [f.compress(gradient(weights, rank)) for rank, f in enumerate(ranks)]  # uint8: send these
    ranks[0].decompress(payloads, 1 / 4, out=mean), [f.commit() for f in ranks], optimizer.step()
# [readme-end]

assert np.abs(weights - target).max() < 0.2, "the weights reach the target"
print(f"{weights.nbytes} bytes became {payloads[0].nbytes}")
