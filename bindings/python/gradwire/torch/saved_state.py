"""What gradwire.torch's optimizers load: state as it was saved, checked, in the form they keep it in."""

from typing import Any, Dict, List, Optional

import torch

from .._core import codes_of_floats, floats_of_codes
from ..errors import InvalidArgument
from .memory_order import is_dense

__all__ = [
    "DTYPES",
    "check_dtype",
    "check_order",
    "check_saved_group",
    "checked_state",
    "codes_as_floats",
    "is_dense",
    "masters_of_nothing",
    "with_codes_as_floats",
    "with_full_state",
]

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_CODE_BLOCK = 256  # elements that share a scale where state is of 8 bits
_MOST_STEPS = 2**53


def checked_state(
    spec: str, parameter: torch.Tensor, saved: Dict[str, Any], full_state: bool
) -> Dict[str, Any]:
    """What was saved of a parameter, in the form that the optimizer keeps it in.

    Raises:
        InvalidArgument: a piece is missing, of another shape or dtype, or none that an optimizer writes.
    """
    name = spec.split(":")[0]
    adam = name in ("adamw", "lamb")
    known = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
    least = _least_coded(spec)
    coded = least is not None and parameter.numel() >= least and not full_state
    scales = tuple(f"{key}.scale" for key in known)
    # torch's SGD counts no steps, but what has state was stepped.
    state: Dict[str, Any] = {"step": torch.tensor(1, dtype=torch.int64)}
    for key, value in saved.items():
        what = f"state['{key}']"
        if (value is None and key == "momentum_buffer") or key in scales:
            continue
        if key == "step":
            count = float(value)
            if not 0 <= count <= _MOST_STEPS or count != int(count):
                raise InvalidArgument(
                    f"{what}: is {count}, must be a whole number from 0 to 2^53"
                )
            state[key] = torch.tensor(int(count), dtype=torch.int64)
            continue
        if key not in (*known, "master", "remainder"):
            raise InvalidArgument(
                f"{what}: is no state of {spec}, must be step or one of "
                f"{', '.join((*known, *scales) if coded else known)}"
            )
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else repr(value)
        if shape != tuple(parameter.shape):
            raise InvalidArgument(
                f"{what}: is {shape}, must have its parameter's shape {tuple(parameter.shape)}"
            )
        if key == "remainder":
            check_dtype(what, value, torch.uint16, torch.int32)
            value = value.detach().to(torch.uint16)
        elif f"{key}.scale" in saved or value.dtype == torch.uint8:
            state.update(_from_codes(key, value, saved, parameter, coded))
            continue
        else:
            check_dtype(what, value, *DTYPES)
            if coded and key in known:
                state.update(_to_codes(key, value, parameter))
                continue
        state[key] = value.detach().clone()
    begun = any(key in state for key in known)
    needed = () if name == "sgd" and not begun else known
    missing = [key for key in needed if key not in state]
    if missing and int(state["step"]) > 0:
        raise InvalidArgument(
            f"state['{missing[0]}']: is missing, must be there; there are {', '.join(saved)}"
        )
    return state


def masters_of_nothing(spec: str, part: torch.Tensor) -> Dict[str, torch.Tensor]:
    """What ranks with elements of a parameter of 16 bits keep beside them, of a part without any: collectives
    of torch's that gather state want it of all ranks."""
    if part.numel() > 0 or part.dtype == torch.float32:
        return {}
    if part.dtype == torch.float16 or "master=float32" in spec:
        return {"master": torch.empty_like(part, dtype=torch.float32)}
    return {"remainder": torch.empty_like(part, dtype=torch.uint16)}


def with_full_state(
    saved: List[Dict[str, Any]], mine: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Saved groups; where they do not say whether state is full, as these have it."""
    if len(saved) != len(mine):  # torch has the message
        return saved
    return [
        {"full_state": own["full_state"], **group} if "full_state" in own else group
        for group, own in zip(saved, mine)
    ]


def codes_as_floats(key: str, codes: torch.Tensor, scales: Any) -> torch.Tensor:
    """What an optimizer's codes of 8 bits stand for, of the state of that name."""
    what = f"state['{key}']"
    shape = tuple(scales.shape) if isinstance(scales, torch.Tensor) else repr(scales)
    blocks = (-(-codes.numel() // _CODE_BLOCK),)
    if shape != blocks:
        raise InvalidArgument(f"state['{key}.scale']: is {shape}, must have the shape {blocks}")
    check_dtype(what, codes, torch.uint8)
    check_dtype(f"state['{key}.scale']", scales, torch.float32)
    if not is_dense(codes):
        raise InvalidArgument(f"{what}: its elements do not fill one piece of memory, must be a dense "
            "tensor")
    in_order = torch.as_strided(codes.detach(), (codes.numel(),), (1,)).contiguous().cpu().numpy()
    own_scales = scales.detach().contiguous().cpu().numpy()
    floats = torch.from_numpy(floats_of_codes(what, key, in_order, own_scales))
    return torch.as_strided(floats, codes.shape, codes.stride()).to(codes.device)


def with_codes_as_floats(saved: Dict[str, Any]) -> Dict[str, Any]:
    """What was saved of a parameter, without codes."""
    floats = {}
    for key, value in saved.items():
        if key.endswith(".scale"):
            continue
        coded = f"{key}.scale" in saved or getattr(value, "dtype", None) == torch.uint8
        floats[key] = codes_as_floats(key, value, _scales_of(key, saved)) if coded else value
    return floats


def _scales_of(key: str, saved: Dict[str, Any]) -> Any:
    scale_key = f"{key}.scale"
    if scale_key not in saved:
        raise InvalidArgument(f"state['{scale_key}']: is missing, must be there with codes of 8 bits")
    return saved[scale_key]


def _from_codes(
    key: str, codes: torch.Tensor, saved: Dict[str, Any], parameter: torch.Tensor, coded: bool
) -> Dict[str, torch.Tensor]:
    """Codes as they are, or as the floats that they stand for."""
    scales = _scales_of(key, saved)
    floats = codes_as_floats(key, codes, scales)
    if not coded:
        return {key: floats}
    check_order(f"state['{key}']", codes, parameter)
    return {key: codes.detach().clone(), f"{key}.scale": scales.detach().clone().contiguous()}


def _to_codes(key: str, value: torch.Tensor, parameter: torch.Tensor) -> Dict[str, torch.Tensor]:
    """The codes nearest to floats, in the parameter's order of elements."""
    ordered = torch.empty_strided(parameter.shape, parameter.stride(), dtype=torch.float32)
    ordered.copy_(value.detach())
    in_order = torch.as_strided(ordered, (ordered.numel(),), (1,)).cpu().numpy()
    codes, scales = codes_of_floats(f"state['{key}']", key, in_order)
    return {
        key: torch.as_strided(torch.from_numpy(codes), parameter.shape, parameter.stride()),
        f"{key}.scale": torch.from_numpy(scales),
    }


def _least_coded(spec: str) -> Optional[int]:
    """How many elements a parameter must have for state of 8 bits; None: no parameter has it."""
    keys = dict(key.split("=") for key in spec.partition(":")[2].split(",") if key)
    return int(float(keys.get("min_8bit_size", 4096))) if keys.get("state") == "8bit" else None


def check_dtype(what: str, value: torch.Tensor, *wanted: torch.dtype) -> None:
    if value.dtype not in wanted:
        bits = " as state of 8 bits is" if wanted[0] == torch.uint8 else ""
        raise InvalidArgument(f"{what}: is {value.dtype}, must be {wanted[0]}{bits}")


def check_order(what: str, codes: torch.Tensor, parameter: torch.Tensor) -> None:
    # Elements that share a scale are those that follow one another in memory.
    orders = zip(codes.stride(), parameter.stride(), parameter.shape)
    if any(size != 1 and mine != wanted for mine, wanted, size in orders):
        raise InvalidArgument(
            f"{what}: its strides are {tuple(codes.stride())}, must be the parameter's, "
            f"{tuple(parameter.stride())}: state of 8 bits does not follow into another order of elements"
        )


def check_saved_group(spec: str, group: Dict[str, Any]) -> None:
    """Refuses what torch.optim's groups may ask for and no formula here has."""
    for key in ("amsgrad", "maximize", "dampening"):
        if group.get(key):
            raise InvalidArgument(f"param_groups: {key} is {group[key]}, must be {type(group[key])()}")
    nesterov = "nesterov=1" in spec
    if bool(group.get("nesterov", nesterov)) != nesterov:
        raise InvalidArgument(
            f"param_groups: nesterov is {group['nesterov']}, must be {nesterov}, this optimizer's"
        )
