"""Reports of benchmark results: HTML, Markdown and JSON; `gradwire report` and `gradwire bench --report`."""

from __future__ import annotations

from gradwire.report.command import add_arguments, run

__all__ = ["add_arguments", "run"]
