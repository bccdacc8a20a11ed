"""Makes 'import gradwire' work for an interpreter, in a folder for PYTHONPATH.

    python3 module.py --python PYTHON --site DIR [--data FILE] (--prebuilt DIR | --build DIR)

The package's files are the checkout's. The module _core is that of the prebuilt set where it has one for this
interpreter; else the sources in bindings/ are compiled here, half a minute on 16 cores, against the set's
libraries or those of a build folder. That needs the interpreter's headers, a C++ compiler and cmake. Where
the package is there already, with CUDA, nothing is made. Exit: 0 it can be imported, 1 not.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from results import write_whole
from runner import text_of

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("kernels", "optimizers", "comm", "planner")
PURE = ("fastjsonschema",)  # what the package needs beside NumPy
SUFFIX = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
HEADERS = """
import sysconfig, os
folder = sysconfig.get_paths()["include"]
print(folder if os.path.exists(folder + "/Python.h") else "")
"""
TRY = """
import gradwire, json
info = gradwire.build_info()
print(json.dumps([info["features"]["cuda"], info["commit"], info["cuda_unavailable_reason"]]))
"""
IMPORT_S, BUILD_S = 30, 150


class Refused(Exception):
    """Why there is no module."""


def answer(command, limit, environment=None):
    code, output = text_of(command, limit, environment)
    if code != 0:
        raise Refused(
            f"{Path(command[0]).name}: {'no end' if code is None else f'exit {code}'}: {output[-1500:]}"
        )
    return output.strip()


def built_for(python, prebuilt):
    """The module of the set for this interpreter, or None."""
    suffix = answer([python, "-c", SUFFIX], IMPORT_S)
    file = Path(prebuilt or "/nowhere") / "python" / f"_core{suffix}"
    return file if file.is_file() else None


def libraries_of(prebuilt, build):
    if prebuilt:
        return [Path(prebuilt).resolve() / "lib"]
    return [Path(build).resolve() / layer for layer in LAYERS]


def compile_core(python, folders, prebuilt, scratch):
    """Compiles bindings/ for this interpreter. @returns the module."""
    if not answer([python, "-c", HEADERS], IMPORT_S):
        raise Refused(f"{python} has no Python.h: its module can be built where its headers are only")
    for tool in ("cmake", "c++"):
        if not shutil.which(tool):
            raise Refused(f"there is no {tool} to compile the module with")
    carried = Path(prebuilt or "/nowhere").resolve() / "site" / "pybind11" / "share" / "cmake" / "pybind11"
    found = str(carried) if carried.is_dir() else answer([python, "-m", "pybind11", "--cmakedir"], IMPORT_S)
    cores = os.cpu_count() or 1
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    answer(
        [
            "cmake",
            "-S",
            ROOT / "bench/gpu_check/module",
            "-B",
            scratch,
            *generator,
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={python}",
            f"-Dpybind11_DIR={found}",
            f"-DGRADWIRE_FAST_COMPILE={'ON' if cores < 8 else 'OFF'}",
            "-DGRADWIRE_LIBRARIES=" + ";".join(map(str, folders)),
        ],
        60,
    )
    answer(
        ["cmake", "--build", scratch, "--target", "_core", "--parallel", max(2, cores // 2)],
        BUILD_S if cores >= 8 else 3000,
    )
    return next(Path(scratch).glob("bindings/_core*.so"))


def link_libraries(folders, site):
    """Where the module looks for them."""
    place = Path(site) / "lib"
    place.mkdir()
    for folder in folders:
        for file in sorted(folder.glob("libgradwire_*.so*")):
            (place / file.name).symlink_to(file)


def assemble(core, folders, site, prebuilt, check):
    """The package, its module, the libraries and what it needs of others."""
    shutil.rmtree(site, ignore_errors=True)
    package = Path(site) / "gradwire"
    shutil.copytree(
        ROOT / "bindings/python/gradwire",
        package,
        ignore=shutil.ignore_patterns("__pycache__", "*.so", "lib", "bin"),
    )
    shutil.copy2(core, package / core.name)
    link_libraries(folders, site)
    if check and Path(check).is_file():
        (package / "bin").mkdir()
        (package / "bin" / "gradwire-check").symlink_to(Path(check).resolve())
    for name in PURE:
        carried = Path(prebuilt or "/nowhere") / "site" / name
        if carried.is_dir():
            shutil.copytree(carried, Path(site) / name)


def imports(python, environment):
    """[has CUDA, commit, why no CUDA]."""
    code, output = text_of([python, "-c", TRY], IMPORT_S, environment)
    lines = output.strip().splitlines()
    return lines[-1] if code == 0 and lines else None, lines[-1] if lines else f"exit {code}"


def there_already(python):
    facts, _ = imports(python, {})
    return facts if facts and facts.startswith("[true") else None


def make(arguments):
    began = time.monotonic()
    found = there_already(arguments.python)
    if found:
        Path(arguments.site).mkdir(parents=True, exist_ok=True)
        return {"ready": True, "how": "installed", "info": found}
    folders = libraries_of(arguments.prebuilt, arguments.build)
    core, how = built_for(arguments.python, arguments.prebuilt), "prebuilt"
    if core is None:
        core, how = (
            compile_core(arguments.python, folders, arguments.prebuilt, f"{arguments.site}-build"),
            "compiled here",
        )
    check = (
        f"{arguments.prebuilt}/bin/gradwire-check"
        if arguments.prebuilt
        else f"{arguments.build}/comm/gradwire-check"
    )
    assemble(core, folders, arguments.site, arguments.prebuilt, check)
    facts, why = imports(arguments.python, {"PYTHONPATH": str(arguments.site)})
    if facts is None:
        raise Refused(f"the module was made but does not load: {why}")
    return {
        "ready": True,
        "how": how,
        "info": facts,
        "module": core.name,
        "seconds": round(time.monotonic() - began, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--site", required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--prebuilt", default="")
    parser.add_argument("--build", default="")
    arguments = parser.parse_args()
    if not arguments.prebuilt and not arguments.build:
        parser.error("expected --prebuilt or --build")
    try:
        data = make(arguments)
    except (Refused, OSError) as refused:
        data = {"ready": False, "why": str(refused)}
    if arguments.data:
        write_whole(arguments.data, data)
    print(f"gradwire for {arguments.python}: {data['how']}: {data['info']}" if data["ready"] else data["why"])
    return 0 if data["ready"] else 1


if __name__ == "__main__":
    sys.exit(main())
