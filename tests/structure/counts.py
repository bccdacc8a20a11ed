"""What the tree is made of, a column for each commit: `python tests/structure/counts.py [COMMIT ..]`.

Without one: the working tree, of the files that git tracks. --places lists what the numbers count.
"""

import argparse
import io
import re
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("kernels", "comm", "bindings")
CODE = (".h", ".cc", ".cu", ".cuh", ".py", ".pyi", ".sh")
NAMES = ("none|fp16|bf16|int8|int4|2bit|1bit|e4m3|e5m2|ternary|natural|qsgd|topk|chunktopk|tensortopk|"
         "blocktopk|threshold|randomk|dgc|powersgd")
# What reads a spec's text, and the rows themselves.
MAY_COMPARE = re.compile(r"kernels/compress/(internal/)?(spec\w*|\w*registry)\.(h|cc)$")
LARGE = 400


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


def tree_of(commit):
    """Text by path."""
    if commit is None:
        names = git("ls-files").decode().splitlines()
        return {name: (ROOT / name).read_text() for name in names if name.endswith(CODE)
                and (ROOT / name).exists()}  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        return {member.name: archive.extractfile(member).read().decode()
                for member in archive if member.isfile() and member.name.endswith(CODE)}  # fmt: skip


def lines(text):
    return text.count("\n")


def source(tree, *folders):
    return {path: text for path, text in tree.items()
            if path.startswith(folders) and not path.endswith("_core.pyi")}  # fmt: skip


def virtuals(tree, name):
    """Of an interface, without its destructor."""
    for path, text in source(tree, "kernels/", "comm/").items():
        body = re.search(rf"^class {name}\b[^;{{]*{{\n(.*?)^}};", text, re.DOTALL | re.MULTILINE)
        if body and path.endswith(".h"):
            return len(re.findall(r"^\s+virtual (?!~)", body[1], re.MULTILINE))
    return 0


def definitions(text):
    """(class, lines, whether it is the class itself, else a member) of what begins at the margin."""
    begin = re.compile(r"^(?:template[^\n]*\n)?(?:(?:class|struct) (?:\[\[\w+\]\] )?([\w:]+)[^;()\n]*{\n"
                       r"|[\w:<>&*, \[\]]*?\b([A-Z]\w*(?:::[A-Z]\w*)*)(?:<[\w, ]+>)?::~?[\w=()<>\[\]]+\()",
                       re.MULTILINE)  # fmt: skip
    at = 0
    while found := begin.search(text, at):
        end = re.compile(r"^};?.*$", re.MULTILINE).search(text, found.end())
        at = found.end()
        line = text[found.start():text.find("\n", found.start())]
        if line.endswith((";", "}")) or end is None:
            continue
        at = end.end()
        yield found[1] or found[2], lines(text[found.start():end.end()]) + 1, found[1] is not None


def large_classes(tree):
    """Name -> (lines of its own, lines of the files with them, the files); State of X is X::State."""
    own, files, places = {}, {}, {}
    found = [(path, *each) for path, text in
             source(tree, "kernels/", "comm/", "bindings/", "optimizers/", "planner/").items()
             if path.endswith((".h", ".cc", ".cu", ".cuh")) for each in definitions(text)]  # fmt: skip
    for path, name, _, is_class in found:
        places.setdefault(name, set()).update([path] if is_class else [])
    for path, name, length, _ in found:
        # Several files have a class of this name, each its own.
        name += f" of {path}" if len(places[name]) > 1 and path in places[name] else ""
        own[name] = own.get(name, 0) + length
        files.setdefault(name, set()).add(path)
    return {name: (own[name], sum(lines(tree[path]) for path in files[name]), sorted(files[name]))
            for name in sorted(own, key=lambda name: (-own[name], name)) if own[name] > LARGE}  # fmt: skip


def comparisons(tree):
    """Where code asks which compressor it has. In Python "none" is also the name of a link, and left out."""
    found = []
    for path, text in source(tree, "kernels/", "comm/", "optimizers/", "planner/", "bindings/").items():
        names = NAMES if path.endswith((".h", ".cc", ".cu", ".cuh")) else NAMES.removeprefix("none|")
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(rf'[=!]= "({names})"', line) and not MAY_COMPARE.match(path):
                found.append(f"{path}:{number}: {line.strip()}")
    return found


def tests_of(tree, pattern, among=""):
    return sum(len(re.findall(pattern, text, re.MULTILINE))
               for path, text in source(tree, "tests/").items() if among in path)  # fmt: skip


def counts(tree):
    """Row -> (number, what it counts)."""
    headers = [path for path in source(tree, "kernels/", "comm/", "optimizers/", "planner/")
               if path.endswith(".h") and "/internal/" not in path]  # fmt: skip
    layers = {layer: source(tree, layer + "/") for layer in LAYERS}
    rows = {f"lines of {layer}": (sum(map(lines, of.values())), ()) for layer, of in layers.items()}
    rows["lines of the three"] = (sum(number for number, _ in rows.values()), ())
    rows["files of the three"] = (sum(map(len, layers.values())), ())
    rows["public headers"] = (len(headers), headers)
    for name in ("Compressor", "Transport", "Exchange"):
        rows[f"virtuals of {name}"] = (virtuals(tree, name), ())
    large = large_classes(tree)
    rows[f"classes of more than {LARGE} lines"] = (len(large), [
        f"{name}: {own} lines, in {len(files)} files of {whole}: {', '.join(files)}"
        for name, (own, whole, files) in large.items()])  # fmt: skip
    compared = comparisons(tree)
    rows["compressors compared by name"] = (len(compared), compared)
    case = r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\("
    rows["laws in C++ (tests in *laws*)"] = (tests_of(tree, case, "laws"), ())
    rows["test cases in C++"] = (tests_of(tree, case), ())
    rows["test cases in Python"] = (tests_of(tree, r"^ *(?:async )?def test_\w+\("), ())
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="[the working tree]")
    parser.add_argument("--places", action="store_true", help="list what is counted, of the last column")
    arguments = parser.parse_args()
    columns = [counts(tree_of(commit)) for commit in arguments.commits or [None]]
    print(f"{'':<34}" + "".join(f"{commit[:12]:>14}" for commit in arguments.commits or ["working tree"]))
    for row in columns[0]:
        print(f"{row:<34}" + "".join(f"{column[row][0]:>14}" for column in columns))
    for row, (_, places) in columns[-1].items():
        if arguments.places and places:
            print(f"\n{row}:", *(f"  {place}" for place in places), sep="\n")


if __name__ == "__main__":
    main()
