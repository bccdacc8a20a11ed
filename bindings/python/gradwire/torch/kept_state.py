"""What an optimizer's state holds that it has put there itself, and what others have put in its place."""

from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch

from .shards import loaded_states

__all__ = ["KeptState", "others_keys"]

State = Mapping[torch.Tensor, Dict[str, Any]]

_OWN = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer", "master", "remainder")
_SCALE = ".scale"  # of codes


def others_keys(own: Mapping[str, Any]) -> Dict[str, Any]:
    """What somebody else keeps in a parameter's state, which stays theirs."""
    return {key: value for key, value in own.items() if key.removesuffix(_SCALE) not in _OWN}


class KeptState:
    """Tensors of a state, by parameter. The core works on their memory, or was made of them: others in
    their place it would not see."""

    def __init__(self, state: Optional[State] = None) -> None:
        found = {} if state is None else state
        self._tensors = {parameter: _own_of(own) for parameter, own in found.items()}
        self._versions = {parameter: _version(own) for parameter, own in found.items()}

    def replaced(self, state: State, parameters: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Parameters whose state holds others, or none any more."""
        return [
            parameter for parameter in parameters if not self._holds(parameter, state.get(parameter, {}))
        ]

    def taken(
        self,
        spec: str,
        state: State,
        groups: Sequence[Dict[str, Any]],
        replaced: Sequence[torch.Tensor],
    ) -> Dict[torch.Tensor, Dict[str, Any]]:
        """The state of those parameters as it is now, in the optimizer's own form.

        Raises:
            InvalidArgument: it is of another shape or dtype, a part of it is missing, or it is none.
        """
        ids = {id(parameter) for parameter in replaced}
        parameters: List[torch.Tensor] = []
        rows: List[Dict[str, Any]] = []
        saved: Dict[int, Dict[str, Any]] = {}
        for group in groups:
            mine = [p for p in group["params"] if id(p) in ids]
            places = list(range(len(parameters), len(parameters) + len(mine)))
            parameters += mine
            rows.append({"params": places, "full_state": group.get("full_state", False)})
            for place, parameter in zip(places, mine):
                saved[place] = _own_of(state.get(parameter, {}))
        found = loaded_states(spec, saved, rows, parameters)
        return {
            parameter: {**others_keys(state.get(parameter, {})), **found.get(parameter, {})}
            for parameter in parameters
        }

    def count(self, parameter: torch.Tensor, counts: Mapping[str, Any]) -> None:
        """Writes numbers that are counted elsewhere, unless somebody has written to theirs."""
        own = self._tensors[parameter]
        if _version(own) != self._versions[parameter]:
            return
        for key, value in counts.items():
            own[key].fill_(value)
        self._versions[parameter] = _version(own)

    def _holds(self, parameter: torch.Tensor, own: Mapping[str, Any]) -> bool:
        known = self._tensors.get(parameter)
        if known is None:
            return not _own_of(own)
        same = all(own.get(key) is tensor for key, tensor in known.items())
        return same and _version(own) == self._versions[parameter]


def _own_of(own: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in own.items() if key.removesuffix(_SCALE) in _OWN}


def _version(own: Mapping[str, Any]) -> int:
    """Of the count of steps where it is a copy, on a GPU's host: others may write to it in place."""
    step = own.get("step")
    return step._version if isinstance(step, torch.Tensor) else -1
