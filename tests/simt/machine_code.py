"""What nvcc made of the kernels that stream gradients, for sm_90: rules, a record, and a table.

    python tests/simt/machine_code.py --build build/cuda            # the rules, and the record
    python tests/simt/machine_code.py --build build/cuda --write    # a new record, and docs/gpu.md's table

The build has GRADWIRE_CUDA=ON. cuobjdump and nvdisasm are of the Python index (nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm, in the extra `dev`) or of a CUDA toolkit. Where neither is there that is an error.

A multiprocessor hides the latency of its memory by what is on its way: 40 KB of it are wanted, counted as
bytes that a thread has asked for before it waits for some, times threads, times resident blocks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sass
from machine_code_rows import LEAST_KB, RULES, Measured, Row, rows

HERE = Path(__file__).resolve().parent
RECORD = HERE / "machine_code.json"
PAGE = HERE.parents[1] / "docs" / "gpu.md"
BEGIN, END = "<!-- machine code: tests/simt/machine_code.py --write -->", "<!-- end of machine code -->"

NOT_RUN = 77  # tests/simt/CMakeLists.txt

# Of a multiprocessor of sm_90, by the CUDA programming guide's table of compute capabilities.
REGISTERS, WARPS, BLOCKS, SHARED_BYTES, SHARED_OF_BLOCK = 65536, 64, 32, 228 * 1024, 1024


def resident_blocks(registers: int, shared: int, threads: int) -> int:
    """How many thread blocks a multiprocessor holds."""
    warps = (threads + 31) // 32
    of_warp = (registers + 7) // 8 * 256  # registers are given out by 256
    return min(BLOCKS, WARPS // warps, REGISTERS // of_warp // warps,
               SHARED_BYTES // (shared + SHARED_OF_BLOCK))


def measure(code: list[sass.Instruction], registers: int, shared: int, threads: int) -> Measured:
    flight = sass.in_flight(code)
    blocks = resident_blocks(registers, shared, threads)
    return Measured(registers, blocks, flight.loads, flight.bytes, flight.bytes * threads * blocks // 1024,
                    sass.byte_loads(code), sass.fences(code), sass.atomics(code), sass.local_accesses(code))


def broken(row: Row, found: Measured) -> set[str]:
    """Names of the rules that a kernel breaks."""
    return {name for name, holds in RULES.items() if not holds(row, found)}


def faults(measured: dict[str, Measured], record: dict[str, Any], compiler: str) -> list[str]:
    """What is wrong, a line each. Another compiler makes other numbers: its kernels keep the rules."""
    said = []
    for row in rows():
        found = measured[row.name]
        fails = broken(row, found)
        said += [f"{row.name}: breaks '{rule}': {found}" for rule in sorted(fails - row.to_come.keys())]
        said += [f"{row.name}: keeps '{rule}' now: '{row.to_come[rule]}' is no longer to come, take it out "
                 "of machine_code_rows.py" for rule in sorted(row.to_come.keys() - fails)]
    if compiler == record["compiler"]:
        old = record["kernels"]
        said += [f"{name}: {asdict(found)}, recorded {old.get(name)}: better or worse? --write records it"
                 for name, found in measured.items() if old.get(name) != asdict(found)]
    return said


def table(record: dict[str, Any]) -> str:
    """docs/gpu.md's, from the record."""
    lines = ["| kernel | registers | blocks | loads of 16 bytes | bytes of a thread | KB in flight | "
             "byte loads | fences | atomics | local | to come |", "|---" * 11 + "|"]
    for row in rows():
        each = Measured(**record["kernels"][row.name])
        bytes_ = f"{each.byte_loads} of payloads" if row.payloads and each.byte_loads else each.byte_loads
        to_come = "; ".join(f"{design} ({rules})" for design, rules in row.designs())
        cells = (row.name, each.registers, each.blocks, each.wide, each.in_flight, each.kilobytes, bytes_,
                 each.fences, each.atomics, each.local, to_come)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return f"By {record['compiler']}.\n\n" + "\n".join(lines) + "\n"


def page_with(text: str, page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        sys.exit(f"machine_code: {PAGE} has no lines '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n{text}{END}{after}"


def find_tool(name: str) -> str | None:
    """Of a CUDA toolkit, of the path, or of the Python index's packages."""
    places: list[str] = []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or []:
        places += sorted(str(path) for path in Path(folder).glob("*/bin"))
    nvcc = shutil.which("nvcc")
    if nvcc:
        places.append(str(Path(nvcc).resolve().parent))
    return shutil.which(name, path=os.pathsep.join([*places, "/usr/local/cuda/bin", os.environ["PATH"]]))


def output(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"machine_code: {' '.join(command[:4])} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def read_object(path: Path, wanted: list[Row], cuobjdump: str) -> dict[str, Measured]:
    """Measured, by the row's name, of the object's kernels."""
    listed = re.findall(r" Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)",
                        output(cuobjdump, "-res-usage", "-arch", "sm_90", str(path)))
    plain = output("c++filt", given="\n".join(name for name, _, _ in listed)).splitlines()
    chosen: dict[str, tuple[str, str, str]] = {}
    for row in wanted:
        match = [at for at, text in enumerate(plain) if re.search(row.kernel + r"\(", text)]
        if len(match) != 1:
            sys.exit(f"machine_code: {len(match)} kernels of {path} are '{row.kernel}', expected 1")
        chosen[row.name] = listed[match[0]]
    names = ",".join(name for name, _, _ in chosen.values())
    code = sass.parse(output(cuobjdump, "-sass", "-arch", "sm_90", "-fun", names, str(path)))
    found: dict[str, Measured] = {}
    for row in wanted:
        name, registers, shared = chosen[row.name]
        if not code.get(name):
            sys.exit(f"machine_code: {cuobjdump} lists no instruction of {name}, a kernel of {path}")
        found[row.name] = measure(code[name], int(registers), int(shared), row.threads)
    return found


def measure_all(build: Path) -> dict[str, Measured]:
    cuobjdump = find_tool("cuobjdump")
    nvdisasm = find_tool("nvdisasm")
    if not cuobjdump or not nvdisasm:
        sys.exit("machine_code: no cuobjdump and nvdisasm here: pip install nvidia-cuda-cuobjdump "
                 "nvidia-cuda-nvdisasm (both are in gradwire's extra 'dev')")
    os.environ["PATH"] = f"{Path(nvdisasm).parent}{os.pathsep}{os.environ['PATH']}"
    measured: dict[str, Measured] = {}
    for source in dict.fromkeys(row.source for row in rows()):
        paths = [path for path in build.rglob(f"{source}.o") if "_cuda.dir" in str(path.parent)]
        if len(paths) != 1:
            sys.exit(f"machine_code: {len(paths)} objects of {source} below {build}, expected 1: build it "
                     "with GRADWIRE_CUDA=ON")
        measured.update(read_object(paths[0], [row for row in rows() if row.source == source], cuobjdump))
    return {row.name: measured[row.name] for row in rows()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--nvcc", default="nvcc", help="the compiler that made the build")
    parser.add_argument("--architectures", default="90", help="of the build, with commas between")
    parser.add_argument("--write", action="store_true", help="a new record, and the page's table")
    arguments = parser.parse_args()
    if not {"90", "90-real"} & set(arguments.architectures.split(",")):
        print(f"machine_code: not run: the build is for {arguments.architectures}, the rules for sm_90")
        return NOT_RUN
    release = re.search(r"release ([\d.]+), V([\d.]+)", output(arguments.nvcc, "--version"))
    compiler = f"nvcc {release[2]}" if release else sys.exit("machine_code: nvcc does not tell its version")
    measured = measure_all(arguments.build)
    if arguments.write:
        record = {"compiler": compiler, "kernels": {name: asdict(each) for name, each in measured.items()}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        PAGE.write_text(page_with(table(record), PAGE.read_text()))
    record = json.loads(RECORD.read_text())
    print(table({"compiler": compiler, "kernels": {name: asdict(each) for name, each in measured.items()}}))
    if compiler != record["compiler"]:
        print(f"not compared with the record, which is of {record['compiler']}")
    said = faults(measured, record, compiler)
    print("\n".join(said) or f"{len(measured)} kernels, {LEAST_KB} KB in flight wanted: as they should be")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
