"""Imports go downwards only; packages on one layer do not import each other (drawn in docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hvd_trainer"
# `mpi_flavour` reads the text of `mpirun --version`; the launcher and doctor share it. `cores`: comm and the launcher.
LAYERS = [
    {"errors", "env", "log", "values", "plan", "mpi_flavour", "cores", "heap", "durations", "amounts", "files", "plotting"},
    {"comm"},
    {"optim", "data", "nn", "checkpoint"},
    {"train", "cost"},
    {"tune", "bench", "report", "doctor", "launcher"},
    {"cli"},
    {"__main__"},
]
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
# Modules of the lowest layer may use each other, as long as that has an order; so they are checked for cycles instead.
FREE = {0}


def part(module):
    """ "comm" for "hvd_trainer.comm.api"; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imports(path):
    """(line, module) of what a file of ours imports from us; what only type checkers import is not counted."""
    found = []

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name, hvd_trainer...."
            # `from hvd_trainer import env` names the module in the list.
            whole = node.module == "hvd_trainer"
            found.extend((node.lineno, f"{node.module}.{a.name}" if whole else node.module) for a in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return sorted({(line, module) for line, module in found if module.split(".")[0] == "hvd_trainer"})


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_package_has_a_layer():
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert (modules | packages) - {"__init__"} <= LAYER.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if here == "__init__":
        return  # the public names, fetched when used
    wrong = []
    for line, module in imports(path):
        there = part(module)
        if there in ("", here) or LAYER[here] in FREE and LAYER.get(there) in FREE:
            continue
        if not LAYER.get(there, 99) < LAYER[here]:
            wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_lowest_layer_has_no_cycle():
    lowest = [PACKAGE / f"{name}.py" for name in LAYERS[0]]
    uses = {path.stem: {part(module) for _, module in imports(path)} for path in lowest}
    while uses:
        done = [name for name, others in uses.items() if not others & uses.keys()]
        assert done, f"modules that import each other: {sorted(uses)}"
        for name in done:
            del uses[name]
