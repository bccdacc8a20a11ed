"""The ranks whose optimizers step parts of the same parameters, and the transport between them."""

import contextlib
from typing import Any, Iterator, List, Optional, Sequence

import torch
import torch.distributed as dist

from .. import _core
from ..errors import InvalidArgument, NonFiniteGradient
from .joining import join
from .shards import is_dtensor

__all__ = ["MeshRanks"]

_TIMEOUT = 1800.0  # seconds a rank may come later than the others


class MeshRanks:
    """Of one optimizer. Without DTensors it is alone, and nothing here does anything."""

    def __init__(self) -> None:
        self._ranks: List[int] = []  # of the world; of fewer than two nothing is exchanged
        self._mesh: Any = None  # of all these ranks
        self._transport: Optional[_core.Transport] = None

    def take(self, parameters: Sequence[torch.Tensor]) -> List[bool]:
        """Says which ranks these are: those of the parameters' meshes.

        Returns:
            For each parameter whether another rank has the same part of it, and counts it in sums over
            all ranks. Plain tensors beside DTensors are the same on all ranks.

        Raises:
            InvalidArgument: the meshes are not all of the same ranks, nor parts of one of them.
        """
        meshes = [_mesh_of(p) for p in parameters]
        largest = max((m for m in meshes if m is not None), key=lambda m: int(m.size()), default=None)
        ranks = [] if largest is None else _ranks_of(largest)
        for mesh in meshes:
            if mesh is not None and not set(_ranks_of(mesh)) <= set(ranks):
                raise InvalidArgument(
                    f"params: their meshes are of ranks {ranks} and of ranks {_ranks_of(mesh)}, must be of "
                    "the same ranks, or of some of those of one mesh"
                )
        if ranks != self._ranks:
            self._transport = None
        self._ranks, self._mesh = ranks, largest
        return [_is_replica(p, m, ranks) for p, m in zip(parameters, meshes)] if ranks else []

    @property
    def several(self) -> bool:
        return len(self._ranks) > 1

    def transport(self, device: torch.device) -> Optional[_core.Transport]:
        """Between these ranks, for memory of that device; None where there is one. Collective where there
        is none yet.

        Raises:
            InvalidArgument: none is to be had for that device.
            TransportError: ranks did not come.
        """
        if self.several and self._transport is None:
            self._transport = join(self._group(), "auto", _TIMEOUT, device)
        return self._transport

    def any(self, here: bool, what: str) -> bool:
        """Whether it is true on some rank. Collective, behind transport()."""
        if self._transport is None:
            return here
        told = self._transport.all_gather(bytes([here]), what=what)
        return any(bytes(each) != b"\0" for each in told)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around a step: where this rank cannot make it, the others do not wait for it but raise. The
        next step joins them again."""
        try:
            yield
        except NonFiniteGradient:  # which all raise
            raise
        except BaseException as error:
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.abort(f"{type(error).__name__}: {error}")
            raise

    def _group(self) -> Any:
        if self._ranks == list(range(dist.get_world_size())):
            return dist.group.WORLD
        if self._mesh.ndim == 1:
            return self._mesh.get_group()
        return dist.new_group(self._ranks, use_local_synchronization=True)


def _mesh_of(parameter: Any) -> Any:
    return parameter.device_mesh if is_dtensor(parameter) else None


def _ranks_of(mesh: Any) -> List[int]:
    return sorted(int(rank) for rank in mesh.mesh.flatten().tolist())


def _is_replica(parameter: Any, mesh: Any, ranks: List[int]) -> bool:
    if mesh is None:
        return bool(dist.get_rank() != ranks[0])
    # Where a mesh is of some of the ranks, the others have the same parameter on other such meshes.
    if ranks[0] not in _ranks_of(mesh):
        return True
    places = zip(parameter.placements, mesh.get_coordinate())
    return any(placement.is_replicate() and at != 0 for placement, at in places)
