"""What is found, in one JSON file and one .tgz beside it, both whole at any moment."""

import io
import json
import os
import tarfile
import time
from pathlib import Path

from runner import last_lines

MOST_LOG_BYTES = 2 << 20  # of one log in the .tgz: its end
TAIL_LINES = 25
BAD = ("failed", "timeout", "stopped")
NOT_DONE = ("missing", "skipped", "waiting", "running")  # of a stage that the run is there for


class Results:
    """The document, and where it is written: after every stage, and while one writes its figures."""

    def __init__(self, out, logs):
        self.out, self.logs = Path(out), Path(logs)
        self.archive = self.out.with_suffix(".tgz")
        self.began = time.monotonic()
        self.document = {
            "verdict": "running",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": 0,
            "stages": [],
        }

    def stage(self, name):
        """The part of a stage, made at its first mention."""
        for part in self.document["stages"]:
            if part["name"] == name:
                return part
        part = {"name": name, "status": "waiting", "seconds": 0, "reason": ""}
        self.document["stages"].append(part)
        return part

    def put(self, name, **facts):
        """Changes the part of a stage and writes it."""
        self.stage(name).update(facts)
        self.write()

    def read_data(self, name, file):
        """Takes what the stage's program has written so far. @returns whether that was a document."""
        try:
            data = json.loads(Path(file).read_text())
        except (OSError, ValueError):  # not yet there, or no program of ours wrote it
            return False
        self.stage(name)["data"] = data
        return True

    def tail(self, log):
        """The last lines of a log that say something."""
        try:
            return last_lines(Path(log).read_text(errors="replace"), TAIL_LINES)
        except OSError:
            return ""

    def write(self):
        """The JSON file, replaced as a whole."""
        self.document["seconds"] = round(time.monotonic() - self.began, 1)
        write_whole(self.out, self.document)

    def pack(self):
        """The .tgz: the JSON file and the logs, replaced as a whole."""
        scratch = self.archive.with_name(self.archive.name + ".new")
        with tarfile.open(scratch, "w:gz", compresslevel=4) as archive:
            for path in [self.out, *sorted(self.logs.glob("*"))]:
                if path.is_file():
                    _add(archive, f"{self.out.stem}/{path.name}", path)
        os.replace(scratch, self.archive)

    def bad(self):
        """Names of the stages that did not do what they are there for."""
        return [
            part["name"]
            for part in self.document["stages"]
            if part["status"] in BAD or (part["status"] in NOT_DONE and not part.get("spare"))
        ]


def _add(archive, name, path):
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, size - MOST_LOG_BYTES))
        content = file.read(MOST_LOG_BYTES)
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), int(path.stat().st_mtime), 0o644
    archive.addfile(entry, io.BytesIO(content))


def write_whole(file, document):
    """A JSON file, replaced as a whole: this one's, and what the programs of stages have found."""
    scratch = f"{file}.new"
    Path(scratch).write_text(json.dumps(document, indent=1) + "\n")
    os.replace(scratch, file)
