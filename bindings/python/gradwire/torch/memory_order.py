"""Elements of tensors in C order, in which exchanges have them and keep state, whatever order they have in
memory (channels_last, transposed)."""

from typing import List, NamedTuple, Sequence, Set, Tuple

import torch

from ..errors import InvalidArgument

__all__ = ["Part", "is_dense", "parts_of", "refuse_shared_elements", "to_c_order", "to_memory_order"]

Strides = Tuple[int, ...]


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

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """The gradient, in its own shape."""
        return buffer.as_strided(self.shape, self.strides, buffer.storage_offset() + self.begin)

    def flat(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its memory."""
        return buffer[self.begin : self.begin + self.numel]


def parts_of(buffer: torch.Tensor, parameters: Sequence[torch.Tensor]) -> List[Part]:
    """Of a bucket of DDP, as it is handed to a hook: gradients one behind another, each in the order of
    memory that its parameter had when DDP made the buffer."""
    parts, begin = [], 0
    for parameter in parameters:
        parts.append(_part(buffer, begin, parameter))
        begin += parameter.numel()
    return parts


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
    shape = tuple(parameter.shape)
    orders = [Part(begin, parameter.numel(), shape, strides) for strides in _strides_of(parameter)]
    gradient = parameter.grad
    if len(orders) == 1 or gradient is None:
        return orders[0]
    if gradient.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr():
        return orders[0]._replace(strides=tuple(gradient.stride()))  # gradient_as_bucket_view
    # The parameter may have another order by now than when DDP made its buffer, which does not say in
    # which it was. But it holds the gradient. Where it does not (zeros of a rank without batches, under
    # Join) nothing tells, and the order is the parameter's.
    return next((part for part in orders if torch.equal(part.of(buffer), gradient)), orders[0])


def _strides_of(parameter: torch.Tensor) -> List[Strides]:
    """Strides that a gradient may have in DDP's buffer, the likeliest first, none that has the same order
    as another."""
    like = torch.empty(parameter.shape, device="meta")
    plain = like.stride()
    found = [parameter.stride() if is_dense(parameter) else plain, plain]
    if like.ndim == 4:
        found.append(like.contiguous(memory_format=torch.channels_last).stride())
    if like.ndim == 5:
        found.append(like.contiguous(memory_format=torch.channels_last_3d).stride())
    orders: List[Strides] = []
    known: Set[Strides] = set()
    for strides in found:
        order = tuple(s for s, n in zip(strides, like.shape) if n != 1)
        if order not in known:
            known.add(order)
            orders.append(tuple(strides))
    return orders
