"""Results as `gradwire bench --json` writes them, made by rule: what reports are tested with."""

import math

import bench_support  # noqa: F401

LINKS = (("50mbit", 50_000_000), ("200mbit", 200_000_000), ("1gbit", 1_000_000_000), ("none", None))
# Name, bytes over dense bytes, steps to the target over dense steps, compression in ms.
METHODS = (
    ("none", 1.0, 1.0, 0.9),
    ("fp16", 0.5, 1.0, 1.1),
    ("topk:1%", 0.023, 1.12, 3.2),
    ("topk:1%,int4", 0.0108, 1.18, 2.4),
    ("int4@two_shot", 0.128, 1.04, 4.1),
    ("ddp", 1.0, 1.0, None),
    ("ddp-fp16", 0.5, 1.0, None),
    ("ddp-powersgd:1", 0.0098, 1.25, None),
)
PARAMETERS = 1_199_882
TARGET = 0.95


def _noise(*key):
    """Between -1 and 1, the same for the same key, like no other."""
    state = 2166136261
    for letter in repr(key):
        state = (state ^ ord(letter)) * 16777619 % 2**32
    return state / 2**31 - 1


def row(link, bits, method, seed, workers=4, speed=1.0):
    name, share, more_steps, compression = method
    dense = 2 * (workers - 1) / workers * 4 * PARAMETERS
    if "topk" in name:  # gathered
        dense *= (workers - 1) / 3
    wire = dense * share
    compute = 70.0 * speed * (1 + 0.02 * _noise(link, name, seed, workers))
    exposed = 4.0 + 18.0 * share + (1e3 * 8 * wire / bits * 1.15 if bits else 0.0)
    step = compute + exposed
    steps = round(120 * more_steps * (1 + 0.04 * _noise(name, seed)))
    peer = name.startswith("ddp")
    return {
        "method": name,
        "peer": peer,
        "link": link,
        "link_mbit_per_s": bits / 1e6 if bits else None,
        "link_mode": "netns",
        "transport": "gloo",
        "world_size": workers,
        "threads": 1,
        "seed": seed,
        "exchange": None if peer else "gather" if "topk" in name else "two_shot" if "@" in name else "dense",
        "optimizer": "sgd:momentum=0.9,nesterov=1",
        "learning_rate": 0.02,
        "batch_size": 32,
        "parameters": PARAMETERS,
        "target_accuracy": TARGET,
        "seconds_to_target": steps * step / 1e3,
        "steps_to_target": steps,
        "final_accuracy": TARGET + 0.001 + 0.0005 * seed,
        "best_accuracy": TARGET + 0.001 + 0.0005 * seed,
        "steps": steps,
        "epochs": 0,
        "seconds": steps * step / 1e3,
        "skipped_steps": 0,
        "stopped_by": "target",
        "step_ms": step,
        "compute_ms": compute,
        "exposed_exchange_ms": exposed,
        "compression_ms": compression,
        "transfer_ms": exposed * 1.1,
        "backward_ms": step * 0.8,
        "step_ms_interval": step * 0.01,
        "step_ms_median": step,
        "step_ms_least": step * 0.95,
        "wire_bytes_per_step": None if peer else wire,
        "predicted_bytes_per_step": None if peer else wire,
        "interface_bytes_per_step": wire * 1.05,
    }


def timeline(one, buckets=5):
    """A step of the row's times: buckets leave during backward, the last exchange ends waiting."""
    compute, step = one["compute_ms"], one["step_ms"]
    ends = [0.0, compute / 3, compute * 0.95, compute * 0.95 + step - compute, step]
    names = ("forward", "backward", "wait", "update")

    def span(name, begin, end):
        return {"name": name, "begin_ms": round(begin, 3), "ms": round(end - begin, 3)}

    leave = [ends[1] + (ends[2] - ends[1]) * (b + 1) / (buckets + 1) for b in range(buckets)]
    tracks = [{"name": "caller", "spans": [span(*each) for each in zip(names, ends, ends[1:])]}]
    if not one["peer"]:
        lasts = one["compression_ms"] / buckets
        coding = [span(f"bucket {b}", begin, begin + lasts) for b, begin in enumerate(leave)]
        tracks.append({"name": "compression", "spans": coding})
        begin, each = leave[0] + lasts, (ends[3] - leave[0] - lasts) / buckets
        exchanges = [(f"bucket {b}", begin + each * b, begin + each * (b + 1)) for b in range(buckets)]
        tracks.append({"name": "exchange", "spans": [span(*each) for each in exchanges]})
    return {"step": one["steps"] * 3 // 4, "step_ms": round(step, 3), "tracks": tracks}


def curve(one):
    """From a tenth to the accuracy the row ends with."""
    count = max(2, one["steps"] // 10)
    points = []
    for n in range(1, count + 1):
        share = n / count
        accuracy = 0.1 + (one["final_accuracy"] - 0.1) * (1 - math.exp(-5 * share)) / (1 - math.exp(-5))
        points.append(
            {
                "step": round(one["steps"] * share),
                "seconds": one["seconds"] * share,
                "bytes": round(one["interface_bytes_per_step"] * one["steps"] * share),
                "accuracy": round(accuracy, 4),
            }
        )
    return {"link": one["link"], "method": one["method"], "seed": one["seed"], "points": points}


def document(links=LINKS, methods=METHODS, seeds=(1, 2, 3), workers=4, speed=1.0, **others):
    rows = [row(*link, m, s, workers, speed) for link in links for s in seeds for m in methods]
    for one in rows:
        if one["seed"] == seeds[0]:
            one["timeline"] = timeline(one)
    made = {
        "schema": "gradwire-bench/1",
        "gradwire_version": "0.1.0",
        "commit": "70a2ae3242e142d3051d4e29128f2d1077743b69",
        "machine": {
            "cpu": "Made-up Processor",
            "cores": 2,
            "load_at_start": 0.4,
            "kernel": "Linux 6.18",
            "python": "3.11.7",
        },
        "command_line": ["/home/someone/venv/bin/gradwire", "bench", "--workers", str(workers)],
        "network": "links: one network namespace per worker",
        "links": [{"name": name, "bits_per_s": bits, "burst_bytes": None} for name, bits in links],
        "settings": {
            "workers": workers,
            "workload": "cnn",
            "bucket_kib": 1024,
            "overlap": True,
            "batch_size": 32,
            "optimizer": "sgd:momentum=0.9,nesterov=1",
            "learning_rate": 0.02,
            "time_budget_s": None,
        },
        "ended": "complete",
        "rows": rows,
        "curves": [curve(one) for one in rows],
        "sentences": [],
        "accuracy_minus_none_points": [],
    }
    made.update(others)
    return made
