"""A method is one object: no file outside `methods/` names one, and each folder can be deleted alone."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpu_rag
from gpu_rag.methods import registry

PACKAGE = Path(gpu_rag.__file__).parent
METHODS = PACKAGE / "methods"
FOLDERS = sorted(path.parent.name for path in METHODS.glob("*/__init__.py"))
ORDINARY = {"dense", "bm25", "hybrid", "fused", "auto"}  # names of methods that are words of the field too


def strings(tree: ast.AST) -> Iterator[str]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def named(text: str) -> set[str]:
    """The names and keys of methods that Python code says.

    Names that mean nothing else count anywhere, comments included; keys of settings and stages in any text in quotes;
    names that are ordinary words only as a text of their own, or after an option that takes a method.
    """
    entries = registry._installed()
    rare = {*entries, *FOLDERS} - ORDINARY
    found = {name for name in rare if re.search(rf"(?<![\w-]){name}(?![\w-])", text)}
    stages = {stage.name for stages in registry.hooks("stages") for stage in stages()}
    keys = {f"{section}." for section in registry.named_hooks("settings")}
    alone = {*registry.named_hooks("commands"), *registry.profiles(), *ORDINARY} - {"bm25", "auto"}
    for said in strings(ast.parse(text)):
        found |= {name for name in stages if re.search(rf"\b{name}\b", said)}
        found |= {key for key in keys if re.search(rf"(?<![\w./])`?{re.escape(key)}[a-z]", said)}
        found |= alone & {said}
        found |= {name for name in ORDINARY if re.search(rf"--(method|for) ([\w-]+,)*{name}\b", said)}
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# as ppr does it", {"ppr"}),
        ("run('higra-agent')", {"higra-agent"}),
        ("x = {'higra_graph': 1}", {"higra_graph"}),
        ("'set alignment.coref'", {"alignment."}), ("COMMANDS = ('index', 'merges')", {"merges"}),
        ("'gpu-rag eval --method bm25,dense'", {"bm25", "dense"}), ("'bm25'; dense = 1; 'HopRAG'; 'hops'", set()),
    ],
)  # fmt: skip
def test_a_name_of_a_method_is_seen(text: str, said: set[str]) -> None:
    assert named(text) == said


def test_no_file_outside_methods_names_one() -> None:
    rooms = (METHODS, PACKAGE / "graph")  # graph ops know no stage and no setting: other contracts say so
    paths = [path for path in PACKAGE.rglob("*.py") if not {*rooms}.intersection(path.parents)]
    found = {str(path.relative_to(PACKAGE)): named(path.read_text("utf-8")) for path in paths}
    assert len(found) > 150 and {path: names for path, names in found.items() if names} == {}


# One process imports the libraries once, and a child of it works with each copy.
CHILDREN = """
import json, os, sys
from pathlib import Path
import duckdb, fasttext, msgspec, numba, numpy, pandas, pyarrow, pyarrow.compute, pyarrow.parquet
import pyoxigraph, safetensors, scipy.linalg, scipy.sparse.csgraph, torch

numba.njit(lambda: 0)()  # loads what numba loads at the first compilation
os.fsync = lambda file: None  # as in this process

def main(tree, out, corpus, kg):
    sys.path.insert(0, tree)
    import gpu_rag
    from gpu_rag.index.verify import verify
    from gpu_rag.methods.registry import load_method, method_names, needs, stage_checks
    assert gpu_rag.__file__.startswith(tree)
    settings = {"models": {"embedder": "hash", "llm": "none"}, "alignment": {"tau": 0.3}, "hops": {"edge_budget": 2.0}}
    settings = {name: section for name, section in settings.items() if registry_has(name)}
    gpu_rag.build(corpus, out, methods=["all"], kg=kg, settings=settings)
    faults, answered = verify(Path(out), stage_checks()), {}
    with gpu_rag.Index.open(out) as index:
        for name in method_names():
            if not hasattr(load_method(name), "stands_for"):
                result = index.retrieve("Who designed the Halden Bridge?", method=name)
                answered[name] = result.status if result.error is None else result.error["message"]
    print(json.dumps({"faults": faults, "answered": answered, "stages": list(index.manifest.stages)}), flush=True)

def registry_has(name):
    from gpu_rag.methods.registry import named_hooks
    return name == "models" or name in named_hooks("settings")

for job in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        status = 1
        try:
            main(*job)
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {job[0]}")
"""


def copy_without(folder: str, tree: Path) -> Path:
    """The package without one folder of methods, by links to the files."""
    package = tree / "gpu_rag"
    (package / "methods").mkdir(parents=True)
    for path in PACKAGE.iterdir():
        if path != METHODS:
            (package / path.name).symlink_to(path)
    for path in METHODS.iterdir():
        if path.name not in (folder, "__pycache__"):
            (package / "methods" / path.name).symlink_to(path)
    return tree


@pytest.mark.slow
def test_without_any_one_folder_the_others_build_answer_and_verify(tmp_path: Path) -> None:
    corpus, facts = tmp_path / "corpus.jsonl", tmp_path / "facts.tsv"
    text = "Marta Orlo designed the Halden Bridge at Kerling. It crosses the river Ves."
    corpus.write_text(json.dumps({"id": "d", "title": "Halden Bridge", "text": text}) + "\n")
    facts.write_text("Halden Bridge\tdesigned by\tMarta Orlo\nHalden Bridge\tcrosses\tVes\n")
    trees = {folder: copy_without(folder, tmp_path / folder) for folder in FOLDERS}
    jobs = [[str(tree), str(tmp_path / f"ix-{name}"), str(corpus), str(facts)] for name, tree in trees.items()]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent / "kernels"), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", CHILDREN, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    every = {name: entry for name, entry in registry._installed().items() if name != "auto"}
    for folder, line in zip(trees, done.stdout.splitlines(), strict=True):
        gone = {name for name, entry in every.items() if entry.package.endswith(f".{folder}")}
        gone |= {name for name, entry in every.items() if gone.intersection(entry.method.uses)}
        found = json.loads(line)
        assert (gone or folder == "auto") and found["faults"] == [], folder
        assert found["answered"].keys() == every.keys() - gone, folder
        assert {*found["answered"].values()} <= {"retrieved", "unsupported"}, (folder, found["answered"])
        assert list(found["answered"].values()).count("unsupported") <= 3, (folder, found["answered"])
