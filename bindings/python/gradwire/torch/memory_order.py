"""Elements of tensors in C order, in which exchanges have them and keep state, whatever order they have in
memory (channels_last, transposed)."""

import itertools
from typing import Iterator, List, NamedTuple, Sequence, Set, Tuple

import torch

from ..errors import InvalidArgument

__all__ = [
    "Part",
    "is_dense",
    "parts_now",
    "parts_of",
    "refuse_shared_elements",
    "right_views",
    "shares_memory",
    "to_c_order",
    "to_memory_order",
]

Strides = Tuple[int, ...]

_MOST_PERMUTED = 5  # dimensions; their 120 orders are tried where no likely one is right


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill numel() places of memory, in any order."""
    expected = 1
    extents = [(s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1]
    for stride, extent in sorted(extents):
        if stride != expected:
            return tensor.numel() == 0
        expected *= extent
    return True


def refuse_shared_elements(what: str, tensor: torch.Tensor) -> None:
    """Raises InvalidArgument, which begins with `what`, where one place of memory is several elements."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return
    last = 0
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride <= last:
            raise InvalidArgument(
                f"{what}: its elements share memory (shape {tuple(tensor.shape)}, strides "
                f"{tuple(tensor.stride())}), must each have their own place; clone() gives them one"
            )
        last += stride * (extent - 1)


class Part(NamedTuple):
    """Where one gradient is in a buffer of several, and how."""

    begin: int
    numel: int
    shape: Strides
    strides: Strides
    certain: bool = True  # else the gradient does not tell which strides DDP's buffer has

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """The gradient, in its own shape."""
        return buffer.as_strided(self.shape, self.strides, buffer.storage_offset() + self.begin)

    def flat(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its memory."""
        return buffer[self.begin : self.begin + self.numel]


def parts_of(
    buffer: torch.Tensor, parameters: Sequence[torch.Tensor], known: Sequence[Part] = ()
) -> List[Part]:
    """Of a bucket of DDP, as it is handed to a hook: gradients one behind another, each in the order of
    memory that its parameter had when DDP made the buffer. `known`: as before, in the same buffer."""
    parts, begin = [], 0
    for i, parameter in enumerate(parameters):
        certain = i < len(known) and known[i].certain
        parts.append(known[i] if certain else _part(buffer, begin, parameter))
        begin += parameter.numel()
    return parts


def parts_now(parts: Sequence[Part], parameters: Sequence[torch.Tensor]) -> List[Part]:
    """Of a bucket of DDP, as DDP reads means from it: each in the order of memory that its parameter has by
    now. With gradient_as_bucket_view it is the order of parts_of() instead."""
    pairs = zip(parts, parameters)
    return [part._replace(strides=next(_strides_of(parameter))) for part, parameter in pairs]


def right_views(
    buffer: torch.Tensor, parts: Sequence[Part], parameters: Sequence[torch.Tensor]
) -> None:
    """Behind a backward with gradient_as_bucket_view: moves means of which the order of memory was not known
    before DDP made .grad of them."""
    for part, parameter in zip(parts, parameters):
        view = parameter.grad
        if not part.certain and view is not None and shares_memory(view, buffer):
            if _order(view.stride(), part.shape) != _order(part.strides, part.shape):
                view.copy_(part.of(buffer).clone())


def to_c_order(buffer: torch.Tensor, parts: Sequence[Part]) -> None:
    """Moves the elements of each part so that its memory has them in C order."""
    for part in parts:
        gradient = part.of(buffer)
        if not gradient.is_contiguous():
            part.flat(buffer).copy_(gradient.contiguous().view(-1))


def to_memory_order(buffer: torch.Tensor, parts: Sequence[Part]) -> None:
    """The way back."""
    for part in parts:
        gradient = part.of(buffer)
        if not gradient.is_contiguous():
            gradient.copy_(part.flat(buffer).clone().view(part.shape))


def _part(buffer: torch.Tensor, begin: int, parameter: torch.Tensor) -> Part:
    orders = _strides_of(parameter)
    guessed = Part(begin, parameter.numel(), tuple(parameter.shape), next(orders))
    if sum(n != 1 for n in parameter.shape) < 2:
        return guessed
    gradient = parameter.grad
    if gradient is None:  # zeros, of which any order is right
        return guessed._replace(certain=False)
    if shares_memory(gradient, buffer):  # gradient_as_bucket_view
        return guessed._replace(strides=tuple(gradient.stride()))
    # The parameter may have another order by now than when DDP made its buffer, which does not say in
    # which it was. But it holds the gradient.
    likely = [guessed, *(guessed._replace(strides=strides) for strides in orders)]
    right = [part for part in likely if torch.equal(part.of(buffer), gradient)]
    if not right and not bool(gradient.isnan().any()):
        every = (guessed._replace(strides=strides) for strides in _all_strides(guessed.shape))
        right = [part for part in every if torch.equal(part.of(buffer), gradient)]
    if not right:  # a rank without batches, under Join, or NaN: nothing is made of it
        return guessed._replace(certain=False)
    # Elements that are all alike are so in every order.
    alike = bool((gradient == gradient[(0,) * gradient.ndim]).all())
    return right[0]._replace(certain=len(right) == 1 and not alike)


def shares_memory(tensor: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether a gradient is one of a bucket itself."""
    return tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def _order(strides: Strides, shape: Strides) -> Strides:
    """Equal for strides of the same order of elements."""
    return tuple(s for s, n in zip(strides, shape) if n != 1)


def _strides_of(parameter: torch.Tensor) -> Iterator[Strides]:
    """Strides that a gradient is likely to have in DDP's buffer, its parameter's of now first, none that has
    the same order as another."""
    like = torch.empty(parameter.shape, device="meta")
    plain = like.stride()
    found = [parameter.stride() if is_dense(parameter) else plain, plain]
    if like.ndim == 4:
        found.append(like.contiguous(memory_format=torch.channels_last).stride())
    if like.ndim == 5:
        found.append(like.contiguous(memory_format=torch.channels_last_3d).stride())
    known: Set[Strides] = set()
    for strides in found:
        order = _order(strides, tuple(like.shape))
        if order not in known:
            known.add(order)
            yield tuple(strides)


def _all_strides(shape: Strides) -> Iterator[Strides]:
    """Those of every dense order, of tensors of few dimensions."""
    for order in itertools.permutations(range(len(shape)) if len(shape) <= _MOST_PERMUTED else ()):
        strides, step = [0] * len(shape), 1
        for dimension in order:
            strides[dimension] = step
            step *= shape[dimension]
        yield tuple(strides)
