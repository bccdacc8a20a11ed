"""The exceptions of gradwire. Each is also of the Python kind it resembles most.

Every message reads "what: the value, what was expected"; an unknown name lists the known ones.
"""

__all__ = ["DeviceError", "Error", "InvalidArgument", "NonFiniteGradient", "TransportError"]


class Error(Exception):
    """Root of every exception raised on purpose by gradwire."""


class InvalidArgument(Error, ValueError):
    """The caller can fix it: a value out of range, mismatched shapes, an unknown name."""


class NonFiniteGradient(InvalidArgument):
    """A gradient held NaN or infinity. Nothing was committed or changed."""


class DeviceError(Error, RuntimeError):
    """A device call failed; the message names the call. Also: the build has no CUDA."""


class TransportError(Error, ConnectionError):
    """The group of ranks is finished: a peer died, stayed silent, or sent what does not fit.

    Attributes:
        peer: the rank at fault, -1 when unknown.
    """

    peer: int

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message)
        self.peer = peer
