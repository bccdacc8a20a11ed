"""What an installed wheel is asked to do; with nothing but what it requires beside it, but for `bench`.

    train.py requirements       what its metadata asks for
    train.py doctor <JSON       what `gradwire doctor --json` must say
    train.py ranks              two processes train over gloo and agree bit for bit
    train.py bench              `gradwire bench` trains with two workers; needs the extra of that name
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import gradwire

STEPS, FEATURES = 60, 200


def requirements():
    wanted = importlib.metadata.requires("gradwire") or []
    always = [line for line in wanted if "extra ==" not in line]
    names = {re.split(r"[^\w-]", line)[0] for line in always}
    assert names == {"numpy", "fastjsonschema"}, always
    extras = importlib.metadata.metadata("gradwire").get_all("Provides-Extra")
    assert {"torch", "bench"} <= set(extras), extras
    files = [str(f) for f in importlib.metadata.files("gradwire")]
    carried = [f for f in files if f.startswith("gradwire.libs/")]
    assert any("libgloo" in f for f in carried), f"in gradwire.libs: {carried}"
    print("requires", ", ".join(always), "and carries", ", ".join(map(os.path.basename, carried)))


def doctor():
    document = json.load(sys.stdin)
    findings = {finding["name"]: finding for finding in document["findings"]}
    assert document["ok"], findings
    for name in ("package", "compress", "in_process", "gloo", "trainer"):
        assert findings[name]["status"] == "ok", findings[name]
    folder = Path(document["build"]["package"])
    assert folder.parent.name == "site-packages" and sys.prefix in str(folder), folder
    assert "gradwire.libs/libgloo" in findings["gloo"]["detail"], findings["gloo"]
    assert findings["torch"]["status"] == "off", findings["torch"]


def rank():
    """Least squares on this rank's rows, by compressed gradients; prints what it ends at."""
    with gradwire.make_transport("gloo", **gradwire.from_environment(), timeout=60.0) as transport:
        rng = np.random.default_rng(transport.rank)
        truth = np.random.default_rng(99).normal(size=FEATURES).astype(np.float32)
        rows = rng.normal(size=(400, FEATURES)).astype(np.float32)
        answers = rows @ truth
        plan = gradwire.make_plan([("w", (FEATURES, 1))], "topk:25%,int8")
        reducer = gradwire.Reducer(plan, transport)
        weights = np.zeros((FEATURES, 1), np.float32)
        optimizer = gradwire.SGD([weights], [reducer.gradient(0)], lr=0.1, momentum=0)
        losses = []
        for _ in range(STEPS):
            error = rows @ weights[:, 0] - answers
            losses.append(float(error @ error) / len(rows))
            reducer.gradient(0)[:, 0] = 2 * rows.T @ error / len(rows)
            reducer.grad_ready(0)
            reducer.wait()
            optimizer.step()
        print(json.dumps({"losses": losses, "weights": weights.tobytes().hex()}))


def ranks():
    with tempfile.TemporaryDirectory() as folder:
        shared = {**os.environ, "GRADWIRE_WORLD_SIZE": "2", "GRADWIRE_STORE": f"file:{folder}/store"}
        running = [subprocess.Popen([sys.executable, __file__, "rank"], stdout=subprocess.PIPE,
                                    text=True, env={**shared, "GRADWIRE_RANK": str(r)})
                   for r in range(2)]
        try:
            ends = [json.loads(process.communicate(timeout=120)[0]) for process in running]
        finally:
            for process in running:
                process.kill()
    assert ends[0]["weights"] == ends[1]["weights"], "the ranks ended at different weights"
    first, last = ends[0]["losses"][0], ends[0]["losses"][-1]
    assert last < first / 100, (first, last)
    print(f"2 processes over gloo: loss {first:.1f} at first, {last:.4f} after {STEPS} steps")


def bench():
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "out.json"
        subprocess.run(
            [Path(sys.prefix) / "bin" / "gradwire", "bench", "--workers", "2", "--links", "none",
             "--methods", "none,topk:10%", "--hidden", "64", "--epochs", "20", "--json", report,
             "--target-accuracy", "0.9", "--output", Path(folder) / "plots"],
            check=True, timeout=180)
        rows = json.loads(report.read_text())["rows"]
        assert len(rows) == 2 and all(row["final_accuracy"] >= 0.9 for row in rows), rows


if __name__ == "__main__":
    {"requirements": requirements, "doctor": doctor, "rank": rank, "ranks": ranks,
     "bench": bench}[sys.argv[1]]()
