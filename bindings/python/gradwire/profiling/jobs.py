"""What is profiled: a built-in workload, or what a function of the user's returns."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.bench.digits import IDX_NAMES
from gradwire.bench.torch_trainer.data import WINDOW
from gradwire.bench.torch_trainer.workloads import ByteModel, cnn
from gradwire.errors import InvalidArgument

__all__ = ["Job", "built_in", "from_function"]

_SIDE, _CLASSES = 8, 10  # of the digits
_WIDTHS = (512, 512, 512, 512, 512)  # of the MLP, as those of `gradwire bench`
Install = Callable[[DistributedDataParallel], Any]


class Job(NamedTuple):
    """One rank's training, ready to step."""

    name: str
    step_fn: Callable[[Any], Any]
    loader: Iterable[Any]
    model: nn.Module
    batch: int  #: samples per step and worker
    exchange: Any = None  #: what gradwire.torch.register() returned, if anything
    #: (name, shape) of the parameters, in the order of the forward pass
    shapes: Sequence[Tuple[str, Tuple[int, ...]]] = ()


class Batches:
    """Batches of a rank that are read from files when they are asked for, forever the same order.

    `read` opens the files anew in each pass and returns what gives rows by their numbers.
    """

    def __init__(
        self, read: Callable[[], Callable[[Any], Any]], rows: int, batch: int, place: Tuple[int, int]
    ) -> None:
        rank, world_size = place
        self._read = read
        order = numpy.random.RandomState(7919).permutation(rows)[rank::world_size]
        if len(order) < batch:
            raise InvalidArgument(
                f"batch: {batch} on each of {world_size} workers is more than the {rows} examples"
            )
        self._parts = [order[i : i + batch] for i in range(0, len(order) - batch + 1, batch)]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Any]:
        rows_of = self._read()
        for part in self._parts:
            yield rows_of(part)


def built_in(
    name: str, files: Sequence[Path], batch: int, place: Tuple[int, int], install: Optional[Install]
) -> Job:
    """The workload of this name under DDP. Needs torch.distributed's default process group.

    Args:
        files: of the digits, images and labels; of bytes, one text.
        place: rank and world size.
        install: what is done to the DDP model before its first step, such as registering a hook.
    """
    torch.manual_seed(1)
    if name == "bytes":
        model: nn.Module = ByteModel()
        loader = _text(files[0], batch, place)
    else:
        model = _mlp() if name == "mlp" else cnn(1, _SIDE, _SIDE)
        loader = _digits(files, batch, place)
    shapes = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    # Nobody changes what a mask holds: nothing of the step but gradients crosses ranks.
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    exchange = install(ddp) if install else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)

    def step(data: Tuple[torch.Tensor, torch.Tensor]) -> None:
        optimizer.zero_grad()
        scores = ddp(data[0]).flatten(0, -2)
        loss: Any = nn.functional.cross_entropy(scores, data[1].flatten())
        loss.backward()
        optimizer.step()

    return Job(name, step, loader, ddp, batch, exchange, shapes)


def _mlp() -> nn.Module:
    layers: List[nn.Module] = [nn.Flatten()]
    inputs = _SIDE * _SIDE
    for width in _WIDTHS:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, _CLASSES))


def _digits(files: Sequence[Path], batch: int, place: Tuple[int, int]) -> Batches:
    images, labels = files

    def read() -> Callable[[Any], Any]:
        pixels = numpy.memmap(images, numpy.uint8, "r", 16).reshape(-1, 1, _SIDE, _SIDE)
        classes = numpy.memmap(labels, numpy.uint8, "r", 8)

        def rows_of(part: Any) -> Any:
            scaled = (pixels[part].astype(numpy.float32) - 74.0) / 91.0  # about standard
            return torch.from_numpy(scaled), torch.from_numpy(classes[part].astype(numpy.int64))

        return rows_of

    return Batches(read, labels.stat().st_size - 8, batch, place)


def _text(file: Path, batch: int, place: Tuple[int, int]) -> Batches:
    count = (file.stat().st_size - 1) // WINDOW

    def read() -> Callable[[Any], Any]:
        text = numpy.memmap(file, numpy.uint8, "r")

        def rows_of(part: Any) -> Any:
            windows = numpy.stack([text[i * WINDOW : (i + 1) * WINDOW + 1] for i in part])
            values = torch.from_numpy(windows.astype(numpy.int64))
            return values[:, :-1].contiguous(), values[:, 1:].contiguous()

        return rows_of

    return Batches(read, count, batch, place)


def digit_files(folder: Path) -> List[Path]:
    """Images and labels to train on, of a folder with the digits."""
    return [folder / name for name in IDX_NAMES[:2]]


def from_function(target: str, batch: Optional[int]) -> Job:
    """What the function `script.py:name` or `module:name` returns: (step_fn, loader, model), and the
    exchange of gradwire.torch.register() as a fourth if there is one.

    Raises:
        InvalidArgument: there is no such function, it returned something else, or nothing says how
            many samples a step has.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise InvalidArgument(
            f"target: '{target}', expected script.py:function or module:function"
        )
    function = getattr(_module(where), name, None)
    if not callable(function):
        raise InvalidArgument(f"target: {where} has no function '{name}', expected one")
    made = function()
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise InvalidArgument(
            f"target: {target}() returned {_shown(made)}, expected (step_fn, loader, model) or "
            "(step_fn, loader, model, exchange)"
        )
    step_fn, loader, model = made[:3]
    if not callable(step_fn) or not isinstance(model, nn.Module) or not hasattr(loader, "__iter__"):
        raise InvalidArgument(
            f"target: {target}() returned {_shown(made)}, expected a function, what gives batches, "
            "and a torch.nn.Module"
        )
    samples = batch if batch is not None else getattr(loader, "batch_size", None)
    if not isinstance(samples, int) or samples < 1:
        raise InvalidArgument(
            f"batch: {target}()'s loader has no batch_size, expected --batch N: samples per step "
            "and worker"
        )
    shapes = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    exchange = made[3] if len(made) == 4 else None
    return Job(type(model).__name__, step_fn, loader, model, samples, exchange, shapes)


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise InvalidArgument(f"target: {error}, expected a module that can be imported") from None
    path = Path(where).resolve()
    if not path.is_file():
        raise InvalidArgument(f"target: {where} is not there, expected a Python file")
    sys.path.insert(0, str(path.parent))  # as `python script.py` has it
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def _shown(made: Any) -> str:
    if isinstance(made, tuple):
        return "(" + ", ".join(type(each).__name__ for each in made) + ")"
    return f"a {type(made).__name__}"
