"""Nothing of the machine it was written on, no unfinished notes, no print() where a launcher would cut the lines."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hvd_trainer"
THIS = Path(__file__).resolve()


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in (".png",) and path != THIS]


PUBLIC = r"(arxiv\.org|www\.apache\.org|keepachangelog\.com|semver\.org|pypi\.org|github\.com|developer\.nvidia\.com)\b"
PATTERNS = {
    "a folder of the machine it was written on": r"(?<![\w./-])/(work|tmp/dev|home/\w+|mnt)/",
    "a package index of the machine it was written on": rf"https?://(?!{PUBLIC})[\w.-]+",
    "an unfinished note": r"\b(TODO|FIXME|XXX|HACK)\b",
    "a merge mark": r"^(<<<<<<<|>>>>>>>) ",
}
# Addresses that only tests use, and that reach nothing.
HARMLESS = ("127.0.0.1", "localhost", "example.", ".example", ".invalid", ".test/")


@pytest.mark.parametrize("what", PATTERNS)
def test_no_file_has(what):
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = re.search(PATTERNS[what], line)
            if match and not any(word in line for word in HARMLESS):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, f"{what}:\n" + "\n".join(found)


def test_the_package_prints_through_log():
    """Elsewhere a print() would come from every rank, or in pieces. Commands that run alone may print."""
    allowed = {"cli", "doctor", "launcher", "log.py"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, found


def test_what_make_makes_is_ignored():
    command = ["git", "check-ignore", ".venv/x", "runs/x", "build/x", "a/__pycache__/x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert len(done.stdout.split()) == 4, f"only ignored: {done.stdout}"
