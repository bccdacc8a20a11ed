"""What this machine is and has, asked of all at once, and written as each answer comes.

python3 machine.py --data FILE [--python PYTHON] [--prebuilt DIR] [--limit 12]
"""

import argparse
import glob
import os
import shutil
import sys
import threading
from pathlib import Path

from results import write_whole
from runner import last_lines, text_of

ASK_PYTHON = """
import sys, sysconfig, os, importlib.util as u
print("version", sys.version.split()[0])
print("suffix", sysconfig.get_config_var("EXT_SUFFIX"))
print("headers", os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
for name in ("cupy", "pybind11", "pytest", "numpy", "fastjsonschema", "triton"):
    print(name, u.find_spec(name) is not None)
"""
ASK_TORCH = """
import torch
print("version", torch.__version__)
print("cuda", torch.version.cuda)
print("gpu", torch.cuda.get_device_name(0) if torch.cuda.is_available() else "")
print("nccl", ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "")
print("muon", hasattr(torch.optim, "Muon"))
"""
ASK_NCCL = "import nvidia.nccl as n; print(list(n.__path__)[0])"
TOOLS = {
    "nvcc": ["--version"],
    "cmake": ["--version"],
    "ninja": ["--version"],
    "c++": ["--version"],
    "compute-sanitizer": ["--version"],
    "ncu": ["--version"],
}


def answers(output):
    """Lines of a name and a value."""
    found = {}
    for line in output.splitlines():
        name, _, value = line.partition(" ")
        found[name] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


class Machine:
    def __init__(self, arguments):
        self.arguments = arguments
        self.lock = threading.Lock()
        self.data = {
            "gpu": None,
            "cpu": self.cpu(),
            "cores": os.cpu_count(),
            "kernel": " ".join(os.uname()[i] for i in (0, 2)),
            "system": self.system(),
            "tools": {},
            "python": None,
            "torch": None,
            "nccl": None,
        }

    def cpu(self):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

    def system(self):
        try:
            lines = Path("/etc/os-release").read_text().splitlines()
        except OSError:
            return ""
        return next(
            (line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME")), ""
        )

    def ask(self, command):
        """Its output, and why there is none: {'absent': ...}, or 'unknown' where it did not answer."""
        try:
            code, output = text_of(command, self.arguments.limit)
        except OSError as error:
            return None, {"absent": str(error)}
        if code is None:
            return None, {"unknown": f"{command[0]} did not answer within {self.arguments.limit:g} s"}
        if code != 0:
            return None, {"absent": last_lines(output, 1).strip() or f"exit {code}"}
        return output, {}

    def put(self, key, value, below=None):
        with self.lock:
            (self.data if below is None else self.data[below])[key] = value
            write_whole(self.arguments.data, self.data)

    def gpu(self):
        if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
            return {"absent": "CUDA_VISIBLE_DEVICES hides it"}
        if shutil.which("nvidia-smi"):
            fields = "name,driver_version,memory.total,compute_cap"
            output, why = self.ask(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
            first = (output or "").split("\n")[0].split(", ")
            if len(first) >= 3:
                return dict(zip(("name", "driver", "memory", "compute_cap"), first))
            if "unknown" in why:  # the programs will say
                return why
            why = f"nvidia-smi: {why.get('absent') or last_lines(output or '', 1).strip()}"
        else:
            why = "nvidia-smi is not in PATH"
        for file in glob.glob("/proc/driver/nvidia/gpus/*/information"):
            model = [line for line in Path(file).read_text().splitlines() if line.startswith("Model:")]
            if model:
                return {"name": model[0].partition(":")[2].strip(), "unknown": why}
        return {"absent": why}

    def tool(self, name):
        if not shutil.which(name):
            return {"absent": "not in PATH"}
        output, why = self.ask([name, *TOOLS[name]])
        lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
        version = next((line for line in lines if "release" in line), None) or (
            lines[-1] if name in ("compute-sanitizer", "ncu") and lines else lines[0] if lines else ""
        )
        return why if output is None else {"version": version}

    def python(self):
        output, why = self.ask([self.arguments.python, "-c", ASK_PYTHON])
        return why if output is None else {"path": self.arguments.python, **answers(output)}

    def torch(self):
        output, why = self.ask([self.arguments.python, "-c", ASK_TORCH])
        return why if output is None else answers(output)

    def nccl(self):
        output, why = self.ask([self.arguments.python, "-c", ASK_NCCL])
        if output is not None and last_lines(output, 1).strip():
            return {"path": last_lines(output, 1).strip()}
        if "unknown" in why:
            return why
        output, _ = self.ask(["ldconfig", "-p"])
        paths = [line.rpartition("=> ")[2] for line in (output or "").splitlines() if "libnccl.so.2 " in line]
        return {"path": paths[0]} if paths else {"absent": "neither Python's nvidia.nccl nor ldconfig has it"}

    def libraries(self):
        """Of the programs that were built beforehand: what the loader does not find."""
        lacking = {}
        for program in sorted(Path(self.arguments.prebuilt).glob("bin/*")):
            output, _ = self.ask(["ldd", program])
            names = [line.split()[0] for line in (output or "").splitlines() if "not found" in line]
            if names:
                lacking[program.name] = names
        return lacking

    def google_test(self):
        places = [Path("/usr/include"), Path("/usr/local/include")]
        if self.arguments.prebuilt:
            places.insert(0, Path(self.arguments.prebuilt) / "gtest" / "include")
        found = next((place for place in places if (place / "gtest" / "gtest.h").is_file()), None)
        return (
            {"path": str(found)}
            if found
            else {"absent": "no gtest/gtest.h in " + ", ".join(map(str, places))}
        )

    def look(self):
        what = [
            ("gpu", self.gpu, None),
            ("python", self.python, None),
            ("torch", self.torch, None),
            ("nccl", self.nccl, None),
            ("gtest", self.google_test, None),
        ]
        what += [(name, lambda name=name: self.tool(name), "tools") for name in TOOLS]
        if self.arguments.prebuilt:
            what.append(("lacking", self.libraries, None))
        threads = [
            threading.Thread(target=lambda k=k, f=f, b=b: self.put(k, f(), b), daemon=True)
            for k, f, b in what
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def sentences(self):
        """What is not here and will be missed."""
        data = self.data
        parts = {name: data[name] for name in ("torch", "nccl", "python")}
        said = [
            f"NO {name.upper()}: {part['absent']}"
            if "absent" in part
            else f"{name.upper()}? {part['unknown']}"
            for name, part in {**parts, **data["tools"]}.items()
            if {"absent", "unknown"} & set(part)
        ]
        if "absent" in data["gtest"]:
            said.append(f"NO GOOGLETEST: {data['gtest']['absent']}: no test program can be built here")
        said += [f"{program} LACKS {', '.join(names)}" for program, names in data.get("lacking", {}).items()]
        return said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--prebuilt", default="")
    parser.add_argument("--limit", type=float, default=16)
    machine = Machine(parser.parse_args())
    machine.look()
    for sentence in machine.sentences():
        print(sentence)
    machine.put("missed", machine.sentences())
    gpu = machine.data["gpu"]
    torch = machine.data["torch"]
    print(gpu.get("name") or gpu.get("absent") or gpu["unknown"], end="")
    print(f", torch {torch.get('version', 'not found')}", end="")
    print(f", Python {machine.data['python'].get('version', 'none')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
