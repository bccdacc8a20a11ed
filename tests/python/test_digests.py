"""What every path from Python makes of gradients is what was recorded (tests/digests), and states that
earlier commits saved load and go on to the bit. GRADWIRE_DIGEST_RECORD=COMMIT records those of this build."""

import functools
import hashlib
import io
import os
from pathlib import Path as File

import numpy as np
import pytest
import rank_processes
from exact_values import values
from rank_processes import needs_torch
from test_torch_ddp import check

import gradwire

if rank_processes.HAS_TORCH:
    import torch
    from digest_case import LARGE, PATHS, SMALL, Path, digest_of
else:
    PATHS = ("register", "attach", "fsdp", "local_steps")

FOLDER = File(__file__).resolve().parents[1] / "digests"
RECORD = os.environ.get("GRADWIRE_DIGEST_RECORD", "")
COMMITS = ("2c9b3cc",)
SPECS = ("none", "fp16", "int8", "int4,stochastic", "1bit,ef", "topk:10%,int4", "threshold:10%",
         "randomk:10%", "topk:10%,momentum=0.9", "int8,decay=0.9", "dgc:5%,warmup=2", "topk:10%,start=3",
         "powersgd:2", "powersgd:2,rounds=2", "int8,ef21", "topk:10%,ef21,eta=0.3",
         "int4,residual=bf16")  # fmt: skip
SAVED = ("int8", "topk:10%,int4", "threshold:10%", "topk:10%,momentum=0.9", "powersgd:2", "int8,ef21",
         "topk:10%,start=3")  # fmt: skip
BEFORE, BEHIND = 6, 4


def _carries(path, spec):
    # Slices of FSDP2 are decoded by one rank alone; those of residual=bf16 are newer than the record.
    return path != "fsdp" or not any(part in spec for part in ("powersgd", "ef21", "residual="))


def rows(specs):
    return [f"{path} {spec}" for path in PATHS for spec in specs if _carries(path, spec)]


def recorded(name):
    """Digests by row."""
    lines = (FOLDER / name).read_text().splitlines() if (FOLDER / name).exists() else []
    return dict(line.rsplit(" | ", 1) for line in lines if not line.startswith("#"))


def compare(name, now, head):
    if RECORD:
        (FOLDER / name).write_text(
            f"# {head}\n" + "".join(f"{row} | {digest}\n" for row, digest in now.items()))
        return
    assert now == recorded(name)


def _digests(world, specs):
    found = {}
    for row in rows(specs):
        path = Path(*row.split(" ", 1), LARGE)
        found[row] = digest_of(path, 0, 8)
        path.close()
    return found


@needs_torch
def test_gradients_on_every_path_have_the_recorded_digests(tmp_path):
    one, other = check(2, functools.partial(_digests, specs=SPECS), tmp_path, deadline=400.0)
    assert one == other, "ranks differ"
    compare("torch.txt", one, "path spec | digest of the gradients of 8 steps on 2 ranks")


def _save(world, specs):
    saved = {}
    for row in rows(specs):
        path = Path(*row.split(" ", 1), SMALL)
        digest_of(path, 0, BEFORE)
        saved[row] = (path.state(), digest_of(path, BEFORE, BEFORE + BEHIND))
        path.close()
    whole = io.BytesIO()
    torch.save(saved, whole)
    return whole.getvalue()


def _go_on(world, file):
    found, states = {}, torch.load(file, weights_only=True)
    for row, (ranks, _) in states.items():
        path = Path(*row.split(" ", 1), SMALL)
        path.load(ranks[world.rank])
        found[row] = digest_of(path, BEFORE, BEFORE + BEHIND)
        path.close()
    return found


@needs_torch
@pytest.mark.parametrize("commit", COMMITS)
def test_states_of_earlier_commits_load_and_go_on_to_the_bit(tmp_path, commit):
    file = FOLDER / "checkpoints" / f"torch-{commit}.pt"
    if commit == RECORD:
        ends = check(2, functools.partial(_save, specs=SAVED), tmp_path, deadline=400.0)
        one, other = (torch.load(io.BytesIO(end), weights_only=True) for end in ends)
        torch.save({row: ([one[row][0], other[row][0]], one[row][1]) for row in one}, file)
        return
    states = torch.load(file, weights_only=True)
    assert set(states) == set(rows(SAVED))
    for found in check(2, functools.partial(_go_on, file=file), tmp_path, deadline=400.0):
        assert found == {row: digest for row, (_, digest) in states.items()}


def _feedback_digest(spec):
    """Of two ranks' payloads, means and residuals, arrays of NumPy."""
    digest = hashlib.sha256()
    for numel in (1, 63, 4097):
        ranks = [gradwire.Feedback(spec, numel, seed=3, rank=r, world_size=2, shapes=[(numel,)])
                 for r in range(2)]  # fmt: skip
        for step in range(8):
            given = [values((numel,), rank, step, 0) for rank in range(2)]
            sent = [each.compress(g) for each, g in zip(ranks, given)]
            if ranks[0].compressor.rounds == 2:
                for each in ranks:
                    each.take_first(sent, 0.5)
                sent = [each.compress_second(g) for each, g in zip(ranks, given)]
            means = [each.decompress(sent, 0.5) for each in ranks]
            for each in ranks:
                each.commit()
            for array in (*sent, *means, *(each.residual for each in ranks)):
                digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def test_feedback_of_arrays_has_the_recorded_digests():
    specs = [row.example for row in gradwire.compressors()]
    specs += [spec for spec in SPECS if "residual=" not in spec and spec not in specs]
    compare("feedback.txt", {spec: _feedback_digest(spec) for spec in specs},
            "spec | digest of payloads, means and residuals of gradwire.Feedback")  # fmt: skip
