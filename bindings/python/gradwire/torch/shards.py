"""DTensors, as FSDP2 has them: this rank's part of them, and state of parameters that are such."""

import sys
from typing import Any, Dict, List

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import InvalidArgument
from .saved_state import check_saved_group, checked_state, codes_as_floats, with_codes_as_floats

__all__ = [
    "EMPTY",
    "as_parameter",
    "check_plain",
    "is_dtensor",
    "local_gradient",
    "loaded_states",
    "local_of",
    "place_of",
    "shared",
    "unsharded_state",
]

# Where a gradient without elements is: nothing is read there, and the step counts.
EMPTY = 64


def is_dtensor(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # whoever has one has imported it
    return module is not None and isinstance(tensor, module.DTensor)


def check_plain(what: str, tensor: torch.Tensor) -> None:
    """Raises InvalidArgument for a tensor that has no memory of its own, such as a DTensor."""
    if is_dtensor(tensor):
        raise InvalidArgument(
            f"{what}: is a DTensor, of which a rank holds a part, must be a plain tensor; the optimizers "
            "SGD, AdamW, LARS, LARC and LAMB of gradwire.torch step DTensors"
        )
    _refuse_wrapper(what, tensor, "a plain tensor")


def local_of(what: str, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor; a plain tensor as it is.

    Raises:
        InvalidArgument: for other tensors that wrap tensors, and for a DTensor of partial sums.
    """
    if not is_dtensor(tensor):
        _refuse_wrapper(what, tensor, "a plain tensor or a DTensor")
        return tensor
    sharded: Any = tensor
    if sharded.device_mesh.get_coordinate() is None:
        raise InvalidArgument(f"{what}: is a DTensor of a mesh without this rank, must be of one with it")
    if any(placement.is_partial() for placement in sharded.placements):
        raise InvalidArgument(
            f"{what}: its placements are {sharded.placements}, must be Shard or Replicate"
        )
    with torch.no_grad():
        local = sharded.to_local()
    if hasattr(local, "wait"):  # of a collective that may still run
        local = local.wait()
    _refuse_wrapper(what, local, "a DTensor of plain tensors")
    return torch.Tensor.detach(local)


def local_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient, as that of its parameter; partial sums are added up, which is
    collective."""
    what = f"gradient of a parameter of shape {tuple(parameter.shape)}"
    if is_dtensor(parameter) != is_dtensor(gradient):
        kinds = [type(each).__name__ for each in (gradient, parameter)]
        raise InvalidArgument(f"{what}: is a {kinds[0]}, must be a {kinds[1]} as its parameter is")
    if is_dtensor(parameter):
        gradient = _placed_as(what, parameter, gradient)
    return local_of(what, gradient)


def place_of(parameter: torch.Tensor) -> Any:
    """Where a DTensor's parts are; None of a plain tensor."""
    if not is_dtensor(parameter):
        return None
    sharded: Any = parameter
    return sharded.device_mesh, sharded.placements, sharded.shape


def shared(parameter: torch.Tensor, state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """State of this rank's part as DTensors like the parameter, so that a checkpoint knows what they
    are part of. Counts and scales stay plain."""
    return {
        key: value if key == "step" or key.endswith(".scale") else as_parameter(parameter, value)
        for key, value in state.items()
    }


def as_parameter(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A DTensor of this part where the parameter is one; it shares the part's memory."""
    if not is_dtensor(parameter):
        return local
    sharded: Any = parameter
    made: torch.Tensor = type(sharded).from_local(
        local,
        sharded.device_mesh,
        sharded.placements,
        run_check=False,
        shape=sharded.shape,
        stride=sharded.stride(),
    )
    return made


def loaded_states(
    spec: str,
    saved: Dict[Any, Dict[str, Any]],
    groups: List[Dict[str, Any]],
    parameters: List[torch.Tensor],
) -> Dict[torch.Tensor, Dict[str, torch.Tensor]]:
    """State by parameter, of a state_dict's, checked.

    Raises:
        InvalidArgument: as checked_state().
    """
    for group in groups:
        check_saved_group(spec, group)
    places = [(i, bool(g.get("full_state"))) for g in groups for i in g["params"]]
    if len(places) != len(parameters):  # torch has the message
        return {}
    states: Dict[torch.Tensor, Dict[str, torch.Tensor]] = {}
    for (i, full), parameter in zip(places, parameters):
        if saved.get(i):
            own = checked_state(
                spec, local_of("params", parameter), _own_saved(parameter, saved[i]), full
            )
            states[parameter] = shared(parameter, own)
    return states


def _own_saved(parameter: torch.Tensor, saved: Dict[str, Any]) -> Dict[str, Any]:
    """What was saved of a DTensor, or of the whole of it: this rank's part, and floats for codes of 8
    bits, whose blocks are those of another part. Of a plain tensor what was saved as it is.

    Raises:
        InvalidArgument: it has another shape than the parameter, or is of another mesh.
    """
    if not is_dtensor(parameter):
        return saved
    own: Dict[str, Any] = {}
    for key, value in with_codes_as_floats(saved).items():
        if key != "step" and isinstance(value, torch.Tensor):
            what = f"state['{key}']"
            if value.shape != parameter.shape:
                raise InvalidArgument(
                    f"{what}: is {tuple(value.shape)}, must have its parameter's shape "
                    f"{tuple(parameter.shape)}"
                )
            value = local_of(what, _placed_as(what, parameter, _on_mesh(parameter, value)))
        own[key] = value
    return own


def unsharded_state(
    packed: Dict[str, Any], parameters: List[torch.Tensor]
) -> Dict[str, Any]:
    """A state_dict whose codes of 8 bits of DTensors are DTensors of float32: blocks that share a scale
    begin with a rank's part, so that codes would not follow to other parts. And of int32 where they are of
    uint16, which gloo does not carry."""
    order = [i for group in packed["param_groups"] for i in group["params"]]
    state = dict(packed["state"])
    for i, parameter in zip(order, parameters):
        if i not in state or place_of(parameter) is None:
            continue
        state[i] = {
            key: as_parameter(parameter, codes_as_floats(key, local_of(key, value), scale))
            if (scale := state[i].get(f"{key}.scale")) is not None
            else as_parameter(parameter, local_of(key, value).to(torch.int32))
            if key == "remainder"
            else value
            for key, value in state[i].items()
            if not key.endswith(".scale")
        }
    return {**packed, "state": state}


def _placed_as(what: str, parameter: Any, tensor: Any) -> Any:
    if tensor.device_mesh != parameter.device_mesh:
        raise InvalidArgument(
            f"{what}: is a DTensor of {tensor.device_mesh}, must be of {parameter.device_mesh}, its "
            "parameter's"
        )
    if tensor.placements == parameter.placements:
        return tensor
    with torch.no_grad():
        return tensor.redistribute(placements=parameter.placements)


def _on_mesh(parameter: Any, value: torch.Tensor) -> Any:
    """A whole tensor, which every rank has, as a DTensor."""
    if is_dtensor(value):
        return value
    module: Any = sys.modules["torch.distributed.tensor"]
    every = [module.Replicate()] * parameter.device_mesh.ndim
    whole = value.detach().to(local_of("parameter", parameter).device)
    return module.DTensor.from_local(whole, parameter.device_mesh, every, run_check=False)


def _refuse_wrapper(what: str, tensor: torch.Tensor, wanted: str) -> None:
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Parameter) or tensor.device.type == "meta":
        return
    if is_traceable_wrapper_subclass(tensor) or not _has_memory(tensor):
        raise InvalidArgument(
            f"{what}: is a {kind.__module__}.{kind.__qualname__}, which has no memory of its own, must be "
            f"{wanted}"
        )


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided:  # of which others have the message
        return True
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # of tensors that only know their shape
        return False


