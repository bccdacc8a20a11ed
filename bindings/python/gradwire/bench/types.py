"""Names for the JSON objects that travel through this package."""

from typing import Any, Dict

Event = Dict[str, Any]  # one line of the trainer, as its README lists them
Row = Dict[str, Any]  # one link, method and seed of the report
Document = Dict[str, Any]  # the JSON report
