"""What `--json` of every command says: one JSON object, in a file that is whole or absent, or with "-"
alone on standard output.

Files and errors are those of gradwire.bench, which `gradwire info` does without until it needs them.
"""

import json
from pathlib import Path
from typing import Any, Dict, Optional

from .streams import try_output

__all__ = ["STDOUT", "check", "put"]

STDOUT = "-"


def check(asked: Optional[str]) -> None:
    """Refuses, before anything runs, a file that could not be written at the end.

    Args:
        asked: of --json: a file, "-" or None.

    Raises:
        UsageError: a folder, or a place that cannot be written.
    """
    if asked not in (None, STDOUT):
        from .bench.ending import check_json

        check_json(Path(str(asked)))


def put(document: Dict[str, Any], asked: Optional[str], indent: int = 1) -> None:
    """Writes the document where it was asked for; None: nowhere.

    Raises:
        RunError: it cannot be written. A file that was there is still as it was.
    """
    if asked is None:
        return
    text = json.dumps(document, indent=indent)
    reason = try_output(text) if asked == STDOUT else _reason(Path(asked), text + "\n")
    if reason:
        from .bench.errors import RunError

        where = "standard output" if asked == STDOUT else asked
        raise RunError(f"could not write {where}: {reason}")


def _reason(path: Path, text: str) -> Optional[str]:
    from .bench.files import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        return error.strerror or str(error)
    return None
