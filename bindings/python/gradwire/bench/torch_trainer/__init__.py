"""A worker of `gradwire bench --trainer torch`: `python -m gradwire.bench.torch_trainer --help`.

One process per rank. It trains a DDP model, through gradwire's hook or through a peer's, and says
what it does in the events of the C++ trainer (bench/trainer/README.md). Needs torch.
"""
