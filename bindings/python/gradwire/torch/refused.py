"""What all ranks refuse alike, before anything has left."""

__all__ = ["RefusedByAll"]


class RefusedByAll(Exception):
    """Carries what all ranks have met, before anything left."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
