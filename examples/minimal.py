"""Six lines: what four ranks send with top-k, the mean of it, and what each keeps for later."""

import numpy as np

import gradwire

gradients = np.random.default_rng(0).standard_normal((4, 10_000)).astype(np.float32)
# [readme]
ranks = [gradwire.Feedback("topk:1%", 10_000) for _ in range(4)]     # one per rank
payloads = [rank.compress(g) for rank, g in zip(ranks, gradients)]   # uint8 arrays: send these
mean = ranks[0].decompress(payloads, scale=1 / 4)                    # the same bits on every rank
[rank.commit() for rank in ranks]                                    # what was left out is kept
weights = np.ones(10_000, np.float32)
gradwire.LAMB([weights], [mean], lr=0.01, weight_decay=0.01).step()  # in place
# [readme-end]

dense_bytes, payload_bytes = gradients[0].nbytes, payloads[0].nbytes
kept = sum(rank.residual for rank in ranks) / 4
assert np.allclose(mean + kept, gradients.mean(axis=0), atol=1e-6), "nothing is lost"
assert weights.std() > 0
print(f"{dense_bytes} bytes became {payload_bytes}")
