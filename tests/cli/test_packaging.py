"""The house: what is a package and what is not, and stacks that agree with each other."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_rag.cli.options import PROFILES
from gpu_rag.settings import make_settings, read_profile

ROOT = Path(__file__).resolve().parents[2]


def test_kernels_is_no_package():
    """An importable `kernels` would shadow the Hugging Face package of that name, which transformers looks for."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    code = "import importlib.util as u; s = u.find_spec('kernels'); print(s and s.submodule_search_locations)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert str(ROOT) not in found.stdout
    assert importlib.util.find_spec("gpu_rag_kernels") is not None


def test_importing_the_package_loads_no_torch():
    code = "import sys, gpu_rag, gpu_rag.types, gpu_rag.errors, gpu_rag.runtime; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


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


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_valid(name):
    make_settings(read_profile(ROOT / "configs" / f"{name}.toml"))


def test_every_file_in_configs_is_a_profile():
    assert {path.stem for path in (ROOT / "configs").glob("*.toml")} == set(PROFILES)


def test_package_data_covers_prompts_and_the_sample():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gpu_rag"]
    suffixes = {Path(pattern).suffix for pattern in patterns}
    files = [p for p in (ROOT / "gpu_rag").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    hidden = [p for p in files if any(part.startswith(".") for part in p.relative_to(ROOT).parts)]
    data = [p for p in files if p not in hidden and p.suffix != ".py"]
    assert data and {p.suffix for p in data} <= suffixes | {".typed"}


def test_the_project_speaks_of_itself_alone():
    """No absolute path of a developer's machine in code, docs or configuration."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    names = listed.stdout.split() if listed.returncode == 0 else []
    for name in names:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".sh") and path.exists() and path != Path(__file__):
            assert not re.search(r"/work/|/root/|/tmp/w/", path.read_text(encoding="utf-8")), name
