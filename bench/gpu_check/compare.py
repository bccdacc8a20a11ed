"""Our kernels beside every peer's, from the figures of the stages: one row for each operation and size."""

PARTS = ("bench", "topk_peer", "peers")
OURS = "gradwire"


def rows(stages):
    """[{op, numel, ms, of_floor, goal or absent, peers: {by: {ms, times} or {absent}}}] in our order."""
    found = {}
    for part in stages:
        if part["name"] not in PARTS or not isinstance(part.get("data"), dict):
            continue
        for row in part["data"].get("rows", []):
            key = row["op"], row["numel"]
            entry = found.setdefault(key, {"op": row["op"], "numel": row["numel"], "peers": {}})
            if row["by"] == OURS:
                entry.update(
                    {name: row[name] for name in ("ms", "of_floor", "goal", "absent") if name in row}
                )
            else:
                entry["peers"][row["by"]] = {name: row[name] for name in ("ms", "absent") if name in row}
    for entry in found.values():
        for peer in entry["peers"].values():
            if "ms" in peer and "ms" in entry:
                peer["times"] = round(peer["ms"] / entry["ms"], 2)
    return list(found.values())


def show(table):
    """Only those that somebody else has, too; cuda_bench's own log has all."""
    both = [entry for entry in table if entry["peers"] and "ms" in entry]
    if both:
        print(f"\n{'operation':28} {'elements':>12} {'ours ms':>9} {'of floor':>8}   peers: ms, times ours")
    for entry in both:
        peers = "; ".join(
            f"{by} {peer['ms']:.3f}, {peer['times']:.1f}x"
            if "ms" in peer
            else f"{by}: absent: {peer['absent']}"
            for by, peer in entry["peers"].items()
        )
        of_floor = f"{entry['of_floor']:.2f}" if "of_floor" in entry else ""
        print(f"{entry['op']:28} {entry['numel']:12,} {entry['ms']:9.3f} {of_floor:>8}   {peers}")
