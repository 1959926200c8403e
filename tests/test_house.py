"""The rules of the house that a linter of imports does not hold: no circle of files, one thing under one roof."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOTS = {"gpu_rag": ROOT, "gpu_rag_kernels": ROOT / "kernels"}


def modules(root: Path, package: str) -> dict[str, Path]:
    """{dotted name: file} of a package."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, text: str, known: set[str]) -> set[str]:
    """The modules that a file names in any import, under TYPE_CHECKING and inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    submodules = {m for m in found if any(other.startswith(f"{m}.") for other in found)}
    return {m for m in found & known if m != name and not (m in submodules and not _uses(text, m, known))}


def _uses(text: str, package: str, known: set[str]) -> bool:
    """Whether a file takes anything of a package itself beside its modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(alias.name == package for alias in node.names):
            return True
        from_it = isinstance(node, ast.ImportFrom) and node.module == package
        if from_it and any(f"{package}.{alias.name}" not in known for alias in node.names):
            return True
    return False


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The sets of two or more modules that reach one another (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(v: str) -> None:
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in sorted(edges[v]):
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for v in edges:
        if v not in number:
            visit(v)
    return found


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import X\ndef f():\n    import p.b\n"
    assert imports("p.c", text, {"p", "p.a", "p.b", "p.c"}) == {"p.a", "p.b"}


def test_no_file_imports_in_a_circle_not_even_for_types() -> None:
    files = {name: path for package, root in ROOTS.items() for name, path in modules(root, package).items()}
    edges = {name: imports(name, path.read_text(encoding="utf-8"), set(files)) for name, path in files.items()}
    assert circles(edges) == []


def test_kernels_is_a_source_root_and_no_package() -> None:
    """A top-level importable `kernels` would hide the Hugging Face package that transformers looks for."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("folder", sorted(p.name for p in (ROOT / "gpu_rag" / "methods").iterdir() if p.is_dir()))
def test_a_method_has_its_page_and_an_entry_that_imports_nothing_of_it(folder: str) -> None:
    if folder.startswith("_"):
        pytest.skip("no method")
    home = ROOT / "gpu_rag" / "methods" / folder
    text = (home / "__init__.py").read_text(encoding="utf-8")
    taken = {n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)}
    assert taken <= {"__future__", "gpu_rag.methods.method"} and "METHODS = (" in text
    page = (home / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# ") and len(page.encode()) <= 12_000
