"""The command `gradwire` while it still imports what it needs: Ctrl-C, or a compiled module that does
not load, is one line and no traceback.

Imported first by the package, so it is cheap, and it leaves every other program alone.
"""

import os
import signal
import sys
import threading
from typing import Any

__all__ = ["explain", "started"]


def _is_command() -> bool:
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # Python is still looking for the module it is to run
        given = getattr(sys, "orig_argv", [])
        return "-m" in given and given[given.index("-m") + 1 :][:1] == ["gradwire"]
    return os.path.basename(program) == "gradwire"


def _leave(_number: int, _frame: Any) -> None:
    # An exception could turn into an ImportError on its way through a compiled module.
    try:
        os.write(2, b"gradwire: interrupted\n")
    finally:
        os._exit(130)


def explain(error: ImportError) -> None:
    """Ends the command where the compiled module does not load, with the reason and what mends it."""
    if _is_command():
        text = " ".join(str(error).split())
        mend = "in a checkout: pip install --force-reinstall --no-deps ."
        sys.exit(f"gradwire: its compiled module does not load: {text}; {mend}")


def started() -> None:
    """From now on KeyboardInterrupt is raised and caught as usual."""
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command() and threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
