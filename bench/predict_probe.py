"""What exchanges, codecs and buckets cost one rank of predict.py, without a training step: times of
exchanges alone, what they take of the processors, what they take beside ranks that compute; what coding
takes while all ranks do; and handing over.

The processor time of an exchange is what others on the machine lose by it. A process's own clock does
not tell that: much of TCP happens in interrupts, on the account of whoever runs just then, or of nobody
where a core idles. So all cores are kept busy with work of known size by the ranks' own processes, and

    processor time = the processes' clock - work done * what a piece of work takes without exchanges
"""

import hashlib
import math
import statistics
import threading
import time

REPEATS = 4  # of an exchange alone
BESIDE_S = 0.25  # of exchanges beside computing, of each size
LEAST_BESIDE, MOST_BESIDE = 3, 200
CALIBRATION_S = 0.3
HANDED_OVER = 8  # gradients of 256 KiB
CODED_NUMELS = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
CODED = 8  # times each
BLOCK = bytes(1 << 18)  # a piece of work; long enough that the interpreter's lock is free meanwhile


class Busy:
    """Threads that compute without end, and count."""

    def __init__(self, threads):
        self._pieces = [0] * threads
        self._stop = False
        self._threads = [threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop = True
        for thread in self._threads:
            thread.join()

    def _work(self, i):
        while not self._stop:
            hashlib.sha256(BLOCK)
            self._pieces[i] += 1

    def now(self):
        """Pieces done, processor seconds of this process, seconds."""
        return sum(self._pieces), time.process_time(), time.perf_counter()


def passed(begin, end):
    return [b - a for a, b in zip(begin, end)]


def busy_threads(cores, ranks):
    """Of each rank, so that together they keep all cores busy."""
    return max(1, math.ceil(cores / ranks))


def processor_seconds(pieces, process_s, piece_s):
    """What a process did besides so many pieces of work of piece_s each; never less than nothing."""
    return max(0.0, process_s - pieces * piece_s)


def times_of(exchange, count):
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - begin)
    return seconds


def exchange_of(numel, transport):
    """A call that sums so many elements over all ranks: dense float32, by the library."""
    import numpy

    import gradwire

    plan = gradwire.make_plan([("x", (numel,))], "none", exchange="dense", bucket_bytes=4 * numel)
    reducer = gradwire.Reducer(plan, transport)
    gradient = numpy.ones(numel, numpy.float32)

    def exchange():
        reducer.bucket_ready(0, gradient)
        reducer.wait()

    return exchange


def agreed(value):
    """Rank 0's, on all ranks."""
    import torch.distributed as dist

    found = [value]
    dist.broadcast_object_list(found)
    return found[0]


def probed(options, task, number):
    """points: {numel, alone_s, cpu_s, beside_s} of each size; hand_over_s of a bucket."""
    import torch.distributed as dist

    import gradwire
    from gradwire.bench.job import cores

    folder = options.store.partition(":")[2]
    transport = gradwire.make_transport(
        "gloo", rank=options.rank, world_size=options.world_size, interface=options.interface,
        store=f"file:{folder}/probe{number}", timeout=options.timeout_s)
    points = []
    for numel in task["numels"]:
        seconds = times_of(exchange_of(numel, transport), REPEATS + 1)
        points.append({"numel": numel, "alone_s": statistics.median(seconds[1:])})
    with Busy(busy_threads(cores(), options.world_size)) as busy:

        def piece_s():
            dist.barrier()
            begin = busy.now()
            time.sleep(CALIBRATION_S)
            pieces, process_s, _ = passed(begin, busy.now())
            dist.barrier()
            return process_s / pieces

        before = piece_s()
        for point in points:
            wanted = math.ceil(BESIDE_S / point["alone_s"])
            count = agreed(max(LEAST_BESIDE, min(MOST_BESIDE, wanted)))
            exchange = exchange_of(point["numel"], transport)
            exchange()  # makes its buffers, and all ranks begin together
            begin = busy.now()
            times_of(exchange, count)
            pieces, process_s, seconds = [x / count for x in passed(begin, busy.now())]
            # A core's speed wanders: what a piece takes is asked before and behind each size.
            behind = piece_s()
            point["cpu_s"] = processor_seconds(pieces, process_s, (before + behind) / 2)
            point["beside_s"], before = seconds, behind
    transport.close()
    return {"points": points, "hand_over_s": handing_over(options)}


def coded(task):
    """By spec the mean seconds of encoding and decoding, as [[dense bytes, seconds]] of several sizes; of
    all ranks at once, and of them the median."""
    import numpy
    import torch.distributed as dist

    import gradwire

    found = {}
    for spec in task["specs"]:
        mine = []
        for numel in CODED_NUMELS:
            gradient = numpy.random.default_rng(numel).standard_normal(numel).astype(numpy.float32)
            out = numpy.empty(numel, numpy.float32)
            feedback = gradwire.Feedback(spec, numel, threads=1)
            encoding = decoding = 0.0
            dist.barrier()
            for i in range(CODED + 1):
                begin = time.perf_counter()
                payload = feedback.compress(gradient)
                middle = time.perf_counter()
                feedback.decompress([payload], 1.0, out=out)
                end = time.perf_counter()
                feedback.commit()
                if i > 0:  # the first call makes its buffers
                    encoding, decoding = encoding + middle - begin, decoding + end - middle
            mine.append((encoding / CODED, decoding / CODED))
        everybody = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, mine)
        for kind, name in enumerate(("encode", "decode")):
            found.setdefault(spec, {})[name] = [
                [4.0 * numel, statistics.median(rank[i][kind] for rank in everybody)]
                for i, numel in enumerate(CODED_NUMELS)]
    return {"codecs": found}


def handing_over(options):
    """Seconds that DDP's backward spends in gradwire's hook for a bucket: not of what follows there."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import gradwire.torch as gradwire_torch

    side = 256
    layers = [torch.nn.Linear(side, side, bias=False) for _ in range(HANDED_OVER)]
    ddp = DistributedDataParallel(
        torch.nn.Sequential(*layers), gradient_as_bucket_view=True, bucket_cap_mb=0.25)
    exchange = gradwire_torch.register(ddp, "none", carrier="gloo", timeout=options.timeout_s)
    seconds = []
    for _ in range(REPEATS + 3):  # DDP makes its buckets anew behind the first step
        ddp(torch.ones(1, side)).sum().backward()
        seconds.append(exchange.seconds)
    buckets = len(exchange.plan.layout)
    exchange.close()
    return statistics.median(seconds[3:]) / buckets
