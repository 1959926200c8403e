"""The registry: methods of other packages by entry points, and what is imported for a name, a list and a question."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installed import install, python

import gpu_rag
from gpu_rag.errors import UsageError
from gpu_rag.index.manifest import Manifest
from gpu_rag.methods import registry
from gpu_rag.methods.method import Method

SETTINGS = {"models": {"embedder": "hash", "llm": "none"}}
LONGEST = {
    "longest/__init__.py": """
from gpu_rag.methods.method import Method
METHODS = (
    Method(
        "longest", ("lengths",), settings={"lengths": "settings:LengthSettings"}, stages="stages:stages",
        verify="stages:CHECKS", explain="explain:WORDS", report="report", commands={"lengths": "command"},
        profiles={"by-words": "by-words.toml"},
    ),
)
""",
    "longest/settings.py": """
from dataclasses import dataclass
from typing import Annotated, Literal
from gpu_rag.settings.check import Declared

@dataclass(frozen=True)
class LengthSettings(Declared):
    unit: Annotated[Literal["characters", "words", "nothing"], "what is counted"] = "characters"
""",
    "longest/by-words.toml": "[lengths]\nunit = 'words'\n",
    "longest/explain.py": 'WORDS = {"by_length": "passages by their length, of {n}"}\n',
    "longest/report.py": """
def figures(report):
    return {"lengths": report.count("lengths")}

def summary(document):
    return [f"lengths of {document['lengths']} passages"]
""",
    "longest/command.py": """
import json
from gpu_rag.cli.options import add_index

HELP = "Print the lengths of passages."
EXAMPLE = "gpu-rag lengths my-index"

def add_arguments(parser):
    add_index(parser)

def run(options):
    from gpu_rag.index.index import Index
    found = json.loads((Index.open(options.index).folder("lengths") / "lengths.json").read_text())
    return 0, {"lengths": found}, " ".join(map(str, found))
""",
    "longest/stages.py": """
import json
from gpu_rag.index import tables
from gpu_rag.index.stage import stage
from longest.settings import LengthSettings

def _params(settings, sources):
    return {"unit": settings.section(LengthSettings).unit}

@stage("lengths", needs=("passages",), params=_params)
def lengths_stage(work):
    table = tables.read_table(work.stage_folders["passages"] / "passages.parquet", tables.PASSAGES)
    words = work.settings.section(LengthSettings).unit == "words"
    found = [len(text.split()) if words else len(text) for text in table["text"].to_pylist()]
    found = [] if work.settings.section(LengthSettings).unit == "nothing" else found
    (work.out / "lengths.json").write_text(json.dumps(found))
    return {"lengths": table.num_rows}

def _lengths(index):
    found = json.loads((index.folder("lengths") / "lengths.json").read_text())
    if len(found) != index.n_passages:
        yield f"lengths: {len(found)} for {index.n_passages} passages"

CHECKS = {"lengths": _lengths}

def stages():
    return [lengths_stage]
""",
    "longest/program.py": """
import json
from dataclasses import dataclass
from gpu_rag.program.kinds import TEXT
from gpu_rag.program.reader import Support
from gpu_rag.program.search import Ranking
from gpu_rag.runtime import batched

@dataclass(frozen=True)
class Params:
    shortest: bool = False

@batched(TEXT)
def by_length(index, queries, k, shortest):
    lengths = json.loads((index.folder("lengths") / "lengths.json").read_text())
    rows = sorted(range(len(lengths)), key=lambda row: (lengths[row] if shortest else -lengths[row], row))[:k]
    return [Ranking(tuple(rows), tuple(float(lengths[row]) for row in rows)) for _ in queries]

async def retrieve(question, run, params):
    return Support(run.evidence(await by_length(question.text, run.limit, params.shortest), "is long", "by_length"))
""",
}
# Build, list and ask in a process that has the package on its path.
RUN = """
import json, sys
import gpu_rag
from gpu_rag.methods.registry import all_stages, method_names
from gpu_rag.types import Question

corpus, out, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
gpu_rag.build(corpus, out, methods=["longest"], settings=settings)
found = []
for shortest in (False, True):
    engine = gpu_rag.Index.open(out).engine({**settings, "method": {"longest": {"shortest": shortest}}})
    result = engine.run("longest", [Question(str(i), "Which?") for i in range(3)], limit=2, retrieval_only=True)
    found.append([[evidence.passage_id for evidence in answer.evidence] for answer in result.answers])
steps = {name: stats.batch_sizes for name, stats in result.stats.steps.items()}
texts = dict(zip(engine.index.passage_ids, engine.index.passages["text"].to_pylist()))
print(json.dumps([method_names(), [*all_stages()], found, texts, [*engine.index.manifest.stages], str(steps)]))
"""


# Run commands one after the other, in such a process.
CLI = """
import contextlib, io, json, sys
from gpu_rag.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try: status = main(words)
        except SystemExit: status = 0
    print(json.dumps([status, said.getvalue().splitlines()]))
"""


def test_a_method_of_another_package_is_built_and_asked(tiny_corpus: Path, tmp_path: Path) -> None:
    install(tmp_path / "site", "longest", LONGEST, {"longest": "longest"})
    printed = python(RUN, tiny_corpus, tmp_path / "ix", json.dumps(SETTINGS), site=tmp_path / "site")
    names, stages, found, texts, built, steps = json.loads(printed.splitlines()[-1])
    assert names == [*registry.method_names(), "longest"] and {*stages} == {*registry.all_stages(), "lengths"}
    assert sorted(built) == ["lengths", "passages"], "what it needs, and no more"
    by_length = sorted(texts, key=lambda passage: -len(texts[passage]))
    assert found == [[by_length[:2]] * 3, [by_length[:-3:-1]] * 3]
    assert steps == "{'by_length': {3: 1}}"


def test_each_hook_of_a_method_of_another_package_is_asked(tiny_corpus: Path, tmp_path: Path) -> None:
    install(tmp_path / "site", "longest", LONGEST, {"longest": "longest"})
    none = ("--set", "models.embedder=hash", "--set", "models.llm=none")

    def cli(*commands: tuple[object, ...], status: int = 0) -> list[list[str]]:
        """The lines that each command prints in one process that has the package; status: of the last."""
        words = json.dumps([list(map(str, command)) for command in commands])
        found = [json.loads(line) for line in python(CLI, words, site=tmp_path / "site").splitlines()]
        assert [code for code, _ in found] == [0] * (len(commands) - 1) + [status], found
        return [lines for _, lines in found]

    out = tmp_path / "ix"
    build, lengths = ("index", tiny_corpus, "--out", out, "--for", "longest"), ("lengths", out, "--json")
    built, found, explained, helped = cli(
        (*build, "--profile", "by-words", *none), lengths,
        ("ask", out, "Who?", "--method", "longest", "--explain", *none), ("--help",),
    )  # fmt: skip
    n = len(json.loads(found[-1])["lengths"])
    assert f"lengths of {n} passages" in built
    settings = Manifest.read(out).settings
    assert settings == {"models": {"embedder": "hash"}, "lengths": {"unit": "words"}}
    assert "passages by their length" in "\n".join(explained)
    assert any(line.split()[:1] == ["lengths"] for line in helped)
    # a build without the package keeps what its settings are, and so does one with it that does not name them
    gpu_rag.build(tiny_corpus, out, methods=["bm25"], settings=SETTINGS)
    assert Manifest.read(out).settings == settings
    _, found, verified = cli((*build, *none), lengths, ("verify", out))
    assert Manifest.read(out).settings == settings and "sound" in verified[-1]
    texts = gpu_rag.Index.open(out).passages["text"].to_pylist()
    assert json.loads(found[-1])["lengths"] == [len(text.split()) for text in texts]
    _, verified = cli((*build, "--set", "lengths.unit=nothing", *none), ("verify", out, "--json"), status=1)
    assert f"lengths: 0 for {n} passages" in verified[-1]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """installed(files, entries): a package in this process, until the end of the test."""
    caches = (registry._installed, registry.all_stages)

    def put(files: dict[str, str], entries: dict[str, str]) -> None:
        install(tmp_path, "other", files, entries)
        monkeypatch.syspath_prepend(tmp_path)
        for cache in caches:
            cache.cache_clear()

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] == "other"]:
        del sys.modules[name]
    for cache in caches:
        cache.cache_clear()


def methods(*names: str) -> str:
    made = ", ".join(f"Method({name!r}, ('bm25',))" for name in names)
    return f"from gpu_rag.methods.method import Method\nMETHODS = ({made},)\n"


@pytest.mark.parametrize(
    ("files", "entries", "message"),
    [
        (
            {},
            {"lost": "nowhere"},
            "cannot be loaded; given nowhere, by the entry point lost: No module named 'nowhere'",
        ),
        ({"other/__init__.py": methods("dense")}, {"o": "other"}, "two methods have one name; given dense; expected"),
        (
            {"other/__init__.py": methods("one").replace(")),", "), settings={'hops': 'x:Y'}),")},
            {"o": "other"},
            "two methods bring settings of one name; given hops; expected",
        ),
    ],
)
def test_a_broken_entry_point_is_named(installed, files, entries, message) -> None:  # type: ignore[no-untyped-def]
    installed(files, entries)
    with pytest.raises(UsageError) as caught:
        registry.method_names()
    assert message in str(caught.value)


def test_an_unknown_name_lists_those_that_exist(installed: Callable[..., None]) -> None:
    installed({"other/__init__.py": methods("longer", "longest")}, {"o": "other", "twice": "other"})
    assert registry.method_names()[-2:] == ["longer", "longest"] and registry.needs("longest") == ("bm25",)
    with pytest.raises(UsageError, match=r"unknown method; given longes; expected dense \| .*longest; .*longest"):
        registry.needs("longes")
    with pytest.raises(ModuleNotFoundError, match=r"other\.program"):  # a name without a program
        registry.load_method("longest")


def test_every_built_in_method_is_whole() -> None:
    for name in registry.method_names():
        module = registry.load_method(name)
        part = "stands_for" if hasattr(module, "stands_for") else "retrieve"
        assert callable(getattr(module, part)) and isinstance(module.Params, type), name
        assert {*registry.needs(name)} <= {*registry.all_stages()}, name
    assert Method("x", ()).program == "program"


HEAVY = ("torch", "numba", "uvicorn", "starlette", "prometheus_client", "gpu_rag.methods.")
LOADED = f"\nprint(json.dumps([name for name in sys.modules if name.startswith({HEAVY})]))"


def loaded(code: str, *words: object) -> set[str]:
    """The modules of large libraries and of methods that are imported after `code`."""
    return set(json.loads(python(f"import json, sys\n{code}{LOADED}", *words).splitlines()[-1]))


def files_of_methods(modules: set[str]) -> set[str]:
    """Modules inside the folders of methods, their `__init__` left out."""
    return {name for name in modules if name.startswith("gpu_rag") and name.count(".") > 2}


def test_the_package_imports_no_torch() -> None:
    assert loaded("import gpu_rag, gpu_rag.types, gpu_rag.errors, gpu_rag.runtime; gpu_rag.__version__") == set()


def test_help_imports_no_method() -> None:
    code = "from gpu_rag.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    modules = loaded(code)
    assert {name.split(".")[-1] for name in files_of_methods(modules)} == {"command"}
    assert all(name.startswith("gpu_rag.") for name in modules)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("registry")
    text = "Marta Orlo designed the Halden Bridge at Kerling. It crosses the river Ves."
    (out / "corpus.jsonl").write_text(json.dumps({"id": "d", "title": "Halden Bridge", "text": text}) + "\n")
    gpu_rag.build(out / "corpus.jsonl", out / "ix", methods=["ppr", "hybrid"], settings=SETTINGS)
    return out / "ix"


def test_a_change_of_few_names_imports_no_torch(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "ix")
    (tmp_path / "more.txt").write_text("Jelena Petrova founded the Zorvex Institute with Marta Orlo.")
    change = f"import gpu_rag; gpu_rag.add(sys.argv[1], sys.argv[2], settings={SETTINGS})"
    assert "torch" not in loaded(change, tmp_path / "ix", tmp_path / "more.txt")


@pytest.mark.parametrize("method", ["ppr", "hybrid"])
def test_asking_by_a_method_imports_no_file_of_another(folder: Path, method: str) -> None:
    code = f"""
import gpu_rag
from gpu_rag.types import Question
engine = gpu_rag.Index.open(sys.argv[1]).engine({SETTINGS})
(answer,) = engine.run({method!r}, [Question("q", "Who designed the Halden Bridge?")], retrieval_only=True).answers
assert answer.evidence and not answer.error
"""
    files = files_of_methods(loaded(code, folder))
    assert f"gpu_rag.methods.{method}.program" in files
    assert {name for name in files if not name.startswith(f"gpu_rag.methods.{method}.")} == set()


COUNTED = """
import contextlib, io, json, sys, threading
from pathlib import Path
root = sys.argv[2]
def ours(path):
    return path.startswith(root) and ".venv" not in path
words = ["ask", sys.argv[1], "Who designed the Halden Bridge?", "--method", "ppr"]
words += ["--set", "models.embedder=hash", "--set", "models.llm=none"]
from gpu_rag.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(words) == 0
files = {path for module in list(sys.modules.values()) if ours(path := getattr(module, "__file__", None) or "")}
import gpu_rag
entered = set()
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 2 and ours(code.co_filename):  # a function, not a module or a class
        entered.add(code.co_filename)
settings = {"models": {"embedder": "hash", "llm": "none"}}
with gpu_rag.Index.open(sys.argv[1]) as index:
    index.ask("Who?", method="ppr", settings=settings)
    threading.setprofile(profile)
    sys.setprofile(profile)
    result = index.ask("Who designed the Halden Bridge?", method="ppr", settings=settings)
    sys.setprofile(None)
assert result.evidence
print(json.dumps([len(files), len(entered)]))
"""


def test_a_question_imports_and_enters_few_files(folder: Path) -> None:
    """Files of ours that `ask --method ppr` imports, and those whose functions a further question of an open index
    runs. An import for a type, or for a
    rare case, belongs where it is used."""
    imported, entered = json.loads(python(COUNTED, folder, registry.__file__.split("/gpu_rag/")[0]).splitlines()[-1])
    assert 100 < imported <= 140 and 40 < entered <= 60
