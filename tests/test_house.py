"""The rules of the house: no circle of files, one thing under one roof, what is packaged, profiles that are valid."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpu_rag.methods.registry  # noqa: F401  (declares the sections of methods)
from gpu_rag.cli.options import PROFILES, profile_file
from gpu_rag.methods.registry import profiles
from gpu_rag.settings import make_settings, read_profile

ROOT = Path(__file__).resolve().parents[1]
ROOTS = {"gpu_rag": ROOT, "gpu_rag_kernels": ROOT / "kernels"}


def modules(root: Path, package: str) -> dict[str, Path]:
    """{dotted name: file} of a package."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, text: str, known: set[str], packages: set[str]) -> set[str]:
    """The modules that a file names in any import, under TYPE_CHECKING and inside functions too.

    A package counts where the file takes anything of it beside its modules.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= parts
            if node.module not in packages or not parts <= known:
                found.add(node.module)
    return (found & known) - {name}


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


def test_no_file_imports_in_a_circle_not_even_for_types() -> None:
    files = {name: path for package, root in ROOTS.items() for name, path in modules(root, package).items()}
    known, packages = set(files), {name.rpartition(".")[0] for name in files}
    edges = {name: imports(name, path.read_text("utf-8"), known, packages) for name, path in files.items()}
    assert circles(edges) == []


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


def test_kernels_is_no_package():
    """A package `kernels` would shadow the Hugging Face package of that name, which transformers looks for."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    code = "import kernels; print(kernels.__file__)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd="/")
    assert found.returncode or str(ROOT) not in found.stdout, "a folder without a file gives way to any package"
    assert importlib.util.find_spec("gpu_rag_kernels") is not None


def test_type_checkers_follow_the_import_path_that_is_installed():
    """mypy reads .pth files and runs no import hook; it follows packages with py.typed alone."""
    from mypy.modulefinder import FindModuleCache, SearchPaths, get_search_dirs

    installed = tuple(path for paths in get_search_dirs(sys.executable) for path in paths)
    finder = FindModuleCache(SearchPaths((), (), installed, ()), fscache=None, options=None)
    for name, package in {"gpu_rag.api": "gpu_rag", "gpu_rag_kernels.dispatch": "gpu_rag_kernels"}.items():
        found = finder.find_module(name)
        assert isinstance(found, str), f"{name}: {found}"
        assert Path(found).samefile(importlib.util.find_spec(name).origin)
        assert (Path(importlib.util.find_spec(package).origin).parent / "py.typed").is_file()


def pins(lines: list[str]) -> dict[str, str]:
    found = (re.match(r"\s*-?\s*([A-Za-z0-9_.-]+)==([0-9.]+)", line) for line in lines)
    return {match[1].lower(): match[2] for match in found if match}


def test_environment_yml_agrees_with_the_gpu_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = pins(project["optional-dependencies"]["gpu"])
    environment = pins((ROOT / "environment.yml").read_text().splitlines())
    assert len(extra) >= 5
    assert {name: environment.get(name) for name in extra} == extra
    wanted = {re.split(r"[=<>!~\[ ]", line)[0] for line in project["optional-dependencies"]["gpu"]}
    assert wanted <= set(environment), "what nothing else asks for is missed only where it is used"


def test_environment_yml_has_a_compiler():
    assert re.search(r"^  - c-compiler\b", (ROOT / "environment.yml").read_text(), re.M), "Triton builds its launchers"


@pytest.mark.parametrize("other", ["dev", "bench"])
def test_one_faiss_is_installed(other):
    """faiss-gpu and faiss-cpu are one module: the second that is installed breaks the first."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[=<>!~\[ ]", line)[0] for line in [*extras["gpu"], *extras[other]]}
    assert len([name for name in names if name.startswith("faiss")]) == 1


@pytest.mark.parametrize("name", [*PROFILES, *profiles()])
def test_every_profile_is_valid(name):
    make_settings(read_profile(profile_file(name)))


def test_every_file_in_configs_is_a_profile():
    assert {path.stem for path in (ROOT / "configs").glob("*.toml")} == set(PROFILES)


def test_the_project_speaks_of_itself_alone():
    """No absolute path of a developer's machine in code, docs or configuration."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    names = listed.stdout.split() if listed.returncode == 0 else []
    for name in names:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".sh") and path.exists() and path != Path(__file__):
            assert not re.search(r"/work/|/root/|/tmp/w/", path.read_text(encoding="utf-8")), name
