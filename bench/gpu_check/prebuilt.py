"""The set of programs that is built where there is no GPU, and travels to where one is."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import building
import module
from plan import PROGRAMS

MOST_MB = 20
CCCL = "nvidia-cuda-cccl==13.3.5.0.6"  # of the Python index: the toolkit's has no DeviceTopK
TOPK = "cub/device/device_topk.cuh"


def manifest_of(folder):
    """What the set says of itself; empty without one."""
    try:
        return json.loads((Path(folder) / "MANIFEST.json").read_text())
    except (OSError, TypeError, ValueError):  # no set, or one of another making
        return {}


class Failed(Exception):
    pass


def run(*words):
    code, output = building.said(words)
    if code:
        raise Failed(f"{words[0]} ended with {code}")
    return output


def newer_cub(folder):
    """Headers with DeviceTopK, fetched where they are not there yet. @returns a folder, or None and why."""
    found = sorted(folder.glob(f"**/{TOPK}"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        code, output = building.said(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, CCCL]
        )
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        found = sorted(folder.glob(f"**/{TOPK}"))
        if not found:
            return None, f"pip download {CCCL}: exit {code}: {output.strip()[-300:]}"
    return found[0].parents[2], ""


def copy_package(name, site):
    """A pure Python package of this interpreter."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Failed(f"{sys.executable} has no {name}, which the set carries: pip install {name}")
    shutil.copytree(
        spec.submodule_search_locations[0], site / name, ignore=shutil.ignore_patterns("__pycache__")
    )


def google_test(folder):
    """Headers and library, so that tests can be built there."""
    library = next(
        (
            Path(place) / "libgtest.a"
            for place in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
            if (Path(place) / "libgtest.a").is_file()
        ),
        None,
    )
    headers = next(
        (Path(place) for place in ("/usr/include/gtest", "/usr/local/include/gtest") if Path(place).is_dir()),
        None,
    )
    if library is None or headers is None:
        raise Failed("NO GOOGLETEST here: no test program can be built (Debian: libgtest-dev)")
    (folder / "lib").mkdir(parents=True)
    for name in ("libgtest.a", "libgtest_main.a"):
        shutil.copy2(library.with_name(name), folder / "lib" / name)
    shutil.copytree(headers, folder / "include" / "gtest")


def size_of(folder):
    return sum(
        path.stat().st_size for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()
    )


def build(root, folder, architectures):
    """Programs and libraries into the set. @returns what is missing, with the reason."""
    missing = {}
    build_folder = root / "build" / "prebuilt"
    cub, why = newer_cub(root / "build" / "cccl")
    run(
        "cmake",
        "-S",
        root,
        "--preset",
        "prebuilt",
        "-G",
        "Ninja",
        f"-DGRADWIRE_CUDA_ARCHITECTURES={architectures}",
        f"-DGRADWIRE_TOPK_CCCL={cub or ''}",
    )
    targets = {name: name.replace("-", "_") for name in PROGRAMS}
    known = building.targets_in(build_folder, targets.values())
    wanted = [target for target in targets.values() if target in known]
    for name, target in targets.items():
        if target not in known:
            missing[name] = why if name == "cuda_topk_peer" and why else "not a target of this build"
    for name in ("gpu_test", "cuda_bench"):
        if name in missing:
            raise Failed(f"{name} is not a target here: the set would be of no use")
    run("cmake", "--build", build_folder, "--target", *wanted)
    for part in ("bin", "lib", "python", "site"):
        (folder / part).mkdir(parents=True)
    for name in targets:
        if name not in missing:
            shutil.copy2(build_folder / PROGRAMS[name], folder / "bin" / name)
    for layer in module.LAYERS:
        for file in (build_folder / layer).glob(f"libgradwire_{layer}.so.*"):
            if file.name.count(".") == 3:  # the name that programs look for
                shutil.copy(file, folder / "lib" / file.name)
    run("strip", *sorted((folder / "bin").iterdir()), *sorted((folder / "lib").iterdir()))
    return missing


def pack(folder):
    """One file that travels, beside the folder."""
    packed = folder.with_name(folder.name + ".tgz")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, arcname=".")
    return packed


def unpack(packed, folder):
    """A set that came as one file. @raises tarfile.TarError, OSError: it is none."""
    folder.mkdir()
    with tarfile.open(packed) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.12, and newer 3.9
        archive.extractall(folder, **safely)
    return folder


def make(folder, root, architectures):
    """--make-prebuilt. @returns the exit status."""
    folder = folder.resolve()
    try:
        if folder.exists() and any(folder.iterdir()) and not (folder / "MANIFEST.json").exists():
            raise Failed(f"{folder} is not empty, and no set that could be replaced")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "MANIFEST.json").write_text("{}\n")  # a set that was cut off can be made anew
        google_test(folder / "gtest")
        missing = build(root, folder, architectures)
        for name in (*module.PURE, "pybind11"):
            copy_package(name, folder / "site")
        core = module.compile_core(
            sys.executable, [folder / "lib"], folder, root / "build" / "prebuilt-module"
        )
        shutil.copy2(core, folder / "python" / core.name)
        run("strip", folder / "python" / core.name)
    except (Failed, module.Refused, OSError) as failed:
        print(f"gpu_check.sh: {failed}", file=sys.stderr)
        return 1
    head = subprocess.run(
        ["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    manifest = {
        "commit": head.stdout.strip() or "unknown",
        "architectures": architectures,
        "python": [path.name for path in sorted((folder / "python").iterdir())],
        "missing": missing,
        "bytes": {part: size_of(folder / part) for part in sorted(os.listdir(folder))},
    }
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for name, why in missing.items():
        print(f"*** {name} is missing: {why}")
    packed = pack(folder)
    megabytes = packed.stat().st_size / 1e6
    print(
        f"gpu_check.sh: {packed}: {megabytes:.1f} MB, commit {manifest['commit']}; unpacked in {folder}: "
        f"{size_of(folder) / 1e6:.1f} MB"
    )
    if megabytes > MOST_MB:
        print(f"gpu_check.sh: more than {MOST_MB} MB", file=sys.stderr)
        return 1
    return 0
