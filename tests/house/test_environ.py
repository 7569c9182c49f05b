"""One place reads and sets environment variables, so that two runs cannot differ for a reason nobody can find."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hvd_trainer"
# The launcher runs before anything is installed and keeps its own list, in one file.
ALLOWED = {"env.py", "launcher/horovod_build/settings.py"}
NAMES = {"environ", "environb", "getenv", "putenv", "unsetenv"}


def uses(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in NAMES and ast.unparse(node.value) == "os":
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os" and NAMES & {alias.name for alias in node.names}:
            yield node.lineno


def test_only_these_files_touch_the_environment():
    found = {str(path.relative_to(PACKAGE)): list(uses(path)) for path in PACKAGE.rglob("*.py")}
    assert not {file: lines for file, lines in found.items() if lines and file not in ALLOWED}


def test_our_own_variables_are_documented_where_they_are_read():
    """Each HVD_TRAINER_* name in the package stands in a module docstring of one of the two files."""
    import re

    documented = "".join(ast.get_docstring(ast.parse((PACKAGE / file).read_text())) or "" for file in ALLOWED)
    documented += (PACKAGE.parent / "docs/install.md").read_text()
    used = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r"HVD_TRAINER_[A-Z]+(?:_[A-Z]+)*", path.read_text()))
    assert not {name for name in used if name not in documented}
