"""The benchmark of gradwire: accuracy against time and bytes, on links of given bandwidths.

``gradwire bench`` trains one model with several worker processes, once for each link, compression
method and seed, and shows which method reaches the target accuracy first. The workers are the C++
trainer; this package prepares the data and the links, starts and watches the workers, and reports.

Nothing here imports the compiled module: the package works as soon as a trainer program exists.
"""

from gradwire.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
