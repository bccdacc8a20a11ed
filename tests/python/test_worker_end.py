"""How a worker in Python ends: behind its threads and atexit where it succeeded, at once where not."""

import subprocess
import sys

import pytest

_WORKER = """
import atexit, sys, threading, time
from gradwire.bench.torch_trainer import process

def work():
    time.sleep(0.2)
    print("thread")

atexit.register(print, "atexit")
threading.Thread(target=work).start()
{before}
process.leave({code})
"""


@pytest.mark.parametrize("code, before, left, told", [
    (0, "", 0, "thread\natexit\n"),
    (3, "", 3, ""),
    (0, "sys.stdout = open('/dev/full', 'w'); print('lost')", 1, ""),
], ids=["succeeded", "failed", "cannot write"])
def test_a_worker_ends_as_it_should(code, before, left, told):
    done = subprocess.run([sys.executable, "-c", _WORKER.format(code=code, before=before)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (left, told), done.stderr
    assert ("at the end: OSError: [Errno 28]" in done.stderr) == bool(before)
