"""The pages on a method and on an op: their blocks are written and run as a reader would."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from installed import GROUP, ROOT, install, python

from gpu_rag.sample import corpus_path, questions_path

PAGE = (ROOT / "docs" / "write-a-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w/]+\.\w+)`\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))
(COMMANDS,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
MODELS = ("models.embedder=hash", "models.llm=none")
# The commands of the page, then one question alone and among all, beside a plain reading of the formula.
RUN = """
import json, sys
import numpy as np
from gpu_rag.cli.main import main
from gpu_rag import Index, load_questions
from gpu_rag.index import tables

commands, index, questions = sys.argv[1:]
for words in json.loads(commands):
    assert main(words) == 0, words
engine = Index.open(index).engine({"models": {"embedder": "hash", "llm": "none"}})
asked = [row.question for row in load_questions(questions)[0]]
answers = engine.run("twins", asked, limit=5, retrieval_only=True).answers
alone = engine.run("twins", asked[:1], limit=5, retrieval_only=True).answers[0]
assert not [answer.error for answer in answers if answer.error] and alone.evidence == answers[0].evidence
opened = engine.index
twins = tables.read_arrays(opened.folder("twins") / "twins.safetensors")["twins"]
base = opened.vectors("passage_vectors").double().numpy()
assert all(row in of for row, of in enumerate(twins.tolist())), "a passage is its own twin"
for question, answer in zip(asked, answers):
    (query,) = engine.models.embedder().embed([question.text])
    cosine = base @ query.astype(float)
    scores = 0.5 * cosine + 0.5 * cosine[twins].mean(1)
    found = [evidence.score for evidence in answer.evidence]
    np.testing.assert_allclose(found, np.sort(scores)[::-1][:5], atol=1e-5)
print(len(answers))
"""


def test_a_method_is_less_than_60_lines() -> None:
    code = "".join(text for name, text in FILES.items()).splitlines()
    assert sum(bool(line.strip()) for line in code) < 60
    assert sorted(name for name in FILES if name.endswith(".py")) == [
        "gpu_rag_twins/__init__.py",
        "gpu_rag_twins/batched.py",
        "gpu_rag_twins/program.py",
        "gpu_rag_twins/stages.py",
    ]


@pytest.mark.slow
def test_the_page_is_a_method(tmp_path: Path) -> None:
    site, index = tmp_path / "site", tmp_path / "ix"
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    install(site, project["name"].replace("-", "_"), FILES, project["entry-points"][GROUP])
    places = {"corpus.jsonl": corpus_path(), "questions.jsonl": questions_path(), "my-index": index}
    commands = []
    for line in COMMANDS.splitlines():
        program, *words = (str(places.get(word, word)) for word in shlex.split(line))
        assert program == "gpu-rag"
        commands.append([*words, *(word for model in MODELS for word in ("--set", model))])
    printed = python(RUN, json.dumps(commands), index, questions_path(), site=site)
    assert "twins" in printed and int(printed.splitlines()[-1]) > 10


OP = Path(__file__).resolve().parents[2] / "docs" / "write-an-op.md"
PATHS = """
import gpu_rag.graph, gpu_rag_kernels
gpu_rag.graph.__path__.append({graph!r})
gpu_rag_kernels.__path__.append({kernels!r})
"""


def blocks() -> dict[str, str]:
    """The code of the page by the path in its first line."""
    return dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", OP.read_text(encoding="utf-8"), re.M | re.S))


def run_page(code: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The tests of the page, run on its op as if both lay in the packages."""
    for name, text in code.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    places = {"graph": str(folder / "gpu_rag" / "graph"), "kernels": str(folder / "kernels" / "gpu_rag_kernels")}
    (folder / "conftest.py").write_text(PATHS.format(**places), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_the_op_of_the_page_passes_its_tests(tmp_path: Path) -> None:
    done = run_page(blocks(), tmp_path)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"), [("counts[p] += a == b", "counts[p] += a != b"), ("right[pair] *", "left[pair] *")]
)
def test_a_wrong_backend_fails_them(right: str, wrong: str, tmp_path: Path) -> None:
    code = {name: text.replace(right, wrong) for name, text in blocks().items()}
    assert code != blocks()
    assert run_page(code, tmp_path).returncode == 1


def test_it_is_short() -> None:
    op = [text for name, text in blocks().items() if not name.startswith("tests/")]
    assert len(op) == 2 and sum(len([line for line in text.split("\n") if line.strip()]) for text in op) < 60
