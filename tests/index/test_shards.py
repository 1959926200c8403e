"""Builds in shards, by processes of this machine: equal to one build, whatever dies."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.api.builds import asked_by_part
from gpu_rag.cli.main import main
from gpu_rag.cluster import run_tasks
from gpu_rag.errors import BadInput, GpuRagError, MissingBackend, UsageError
from gpu_rag.methods.registry import stages_for
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.misbehave import Manners, MisbehavingServer
from gpu_rag.settings import make_settings

FAST: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none"}}


pytestmark = pytest.mark.usefixtures("own_cache")


class CountingServer(MisbehavingServer):
    """A sound server that counts the requests about documents, and calls `on_request(n)` before its n-th reply."""

    def __post_init__(self) -> None:
        self.asked = Counter[bytes]()
        self.on_request: Callable[[int], None] = lambda n: None
        super().__post_init__()

    def reply_to(self, body: dict[str, Any], raw: bytes) -> dict[str, Any]:
        if b"Marta Orlo" in raw or b"Anna Stroud" in raw:  # not what a client asks when it meets a server
            with self._lock:
                self.asked[raw] += 1
            self.on_request(self.asked.total())
        return super().reply_to(body, raw)

    @property
    def n_repeated(self) -> int:
        return self.asked.total() - len(self.asked)


@pytest.fixture
def server() -> Iterator[CountingServer]:
    server = CountingServer(Manners(share=0.0))
    yield server
    server.close()


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    """A file of 100 rows, one of questions that share their contexts, and a folder of texts."""
    rows = [{"id": f"r{n}", "text": f"Marta Orlo{n} designed the bridge of Kerling{n % 3}."} for n in range(100)]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contexts = [[f"Anna Stroud{n}", [f"Anna Stroud{n} was mayor of Tamsin{n}."]] for n in range(6)]
    questions = [
        {"_id": f"q{n}", "question": "Who?", "answer": "A", "supporting_facts": [], "context": contexts[n : n + 3]}
        for n in range(4)
    ]
    asked = tmp_path / "questions.json"
    asked.write_text(json.dumps(questions))
    folder = tmp_path / "notes"
    folder.mkdir()
    for n in range(5):
        (folder / f"n{n}.txt").write_text(f"Anna Stroud{n} met Marta Orlo{n}.")
    return [table, asked, folder]


def built(out: Path, corpus: list[Path], settings: dict[str, Any], methods: str = "ppr", **more: Any) -> str:
    return gpu_rag.build(corpus, out, methods=methods, settings=settings, **more).manifest.digest()


def workers_of(parent: int) -> list[int]:
    """Processes that run a task and were started by a process, directly."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            status, command = path.read_text(), (path.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if f"\nPPid:\t{parent}\n" in status and b"gpu_rag.cluster.worker" in command:
            found.append(int(path.parent.name))
    return found


def kill_a_worker_at(number: int) -> Callable[[int], None]:
    """A hook that kills the youngest worker of this process, once, when so many requests have come."""

    def on_request(n: int) -> None:
        if n == number:
            os.kill(max(workers_of(os.getpid())), signal.SIGKILL)

    return on_request


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_shards_give_the_index_of_one_build(corpus: list[Path], tmp_path: Path, n: int) -> None:
    one = built(tmp_path / "one", corpus, FAST)
    assert built(tmp_path / "shards", corpus, FAST, shards=n) == one
    assert not (tmp_path / "shards" / "work").exists() and gpu_rag.verify(tmp_path / "shards").ok


@pytest.mark.slow
def test_a_model_is_asked_once_although_a_worker_dies(
    corpus: list[Path], tmp_path: Path, server: CountingServer, caplog: pytest.LogCaptureFixture
) -> None:
    models = {"embedder": "hash", "llm": f"{server.url}#misbehaving-7B", "connections": 2}
    settings = {"models": models, "index": {"extractor": "llm", "min_yield": 0.0}}
    one = built(tmp_path / "one", corpus, settings)
    assert len(server.asked) == 111 and not server.n_repeated
    server.asked.clear()
    assert built(tmp_path / "shards", corpus, settings, shards=2) == one
    assert len(server.asked) == 111 and not server.n_repeated
    server.asked.clear()
    server.on_request = kill_a_worker_at(100)
    assert built(tmp_path / "killed", corpus, settings, shards=2) == one
    assert "started again" in caplog.text
    assert len(server.asked) == 111 and server.n_repeated <= 12  # open, or not yet kept; its shard has about 50


@pytest.mark.slow
def test_fewer_documents_than_shards(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "text": f"Marta Orlo{n} built it."}) + "\n" for n in range(2)))
    one = built(tmp_path / "one", [path], FAST, "ppr,hoprag")
    assert built(tmp_path / "shards", [path], FAST, "ppr,hoprag", shards=3) == one


@pytest.mark.slow
def test_the_command_builds_in_shards(corpus: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*map(str, corpus), "--out", str(tmp_path / "ix"), "--for", "dense", "--set", "models.embedder=hash"]
    assert main(["index", *given, "--shards", "2", "--json", "--json-progress"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["documents"] == 111 and '"shards"' in printed.err
    assert gpu_rag.Index.open(tmp_path / "ix").manifest.digest() == built(tmp_path / "one", corpus, FAST, "dense")


@pytest.mark.slow
def test_an_error_of_a_shard_is_that_of_the_build(tmp_path: Path, corpus: list[Path]) -> None:
    corpus[0].write_text(corpus[0].read_text() + "no JSON\n")
    with pytest.raises(BadInput, match=r"rows\.jsonl:101"):
        built(tmp_path / "shards", corpus, FAST, shards=2, strict=True)


@pytest.mark.slow
def test_a_worker_that_always_dies_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "killed_task.py").write_text(
        "import os\n\ndef dies(task):\n    open(task['log'], 'a').write('x')\n    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(GpuRagError, match="died"):
        run_tasks("killed_task:dies", [{"log": str(tmp_path / "log")}])
    assert (tmp_path / "log").read_text() == "xxxx" and not workers_of(os.getpid())


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingBackend, match=r"gpu-rag\[ray\]"):
        run_tasks("time:sleep", [{}], "ray:auto")


def test_what_a_shard_makes() -> None:
    """Stages that ask about the whole corpus, and what needs them, are left to the build of the whole."""
    rules = make_settings({"hops": {"simulate": "templates"}, "alignment": {"decider": "similarity"}})
    model = make_settings({"index": {"extractor": "llm"}, "hops": {"simulate": "llm"}, "alignment": {"decider": "llm"}})
    assert asked_by_part(stages_for(["bm25"]), rules) == []
    assert asked_by_part(stages_for(["dense"]), rules) == ["passages", "passage_vectors"]
    of_ppr = asked_by_part(stages_for(["ppr"]), model)
    assert {"extraction", "entities", "entity_vectors"} <= set(of_ppr) and "graph" not in of_ppr
    of_hops = asked_by_part(stages_for(["hoprag"]), model)
    assert {"hop_questions", "hop_in_vectors"} <= set(of_hops) and "hop_edges" not in of_hops
    of_higra = [asked_by_part(stages_for(["higra-retriever"]), settings) for settings in (rules, model)]
    assert all("higra_exact_vectors" in names for names in of_higra)
    assert "higra_entity_vectors" in of_higra[0] and not {"higra_merge", "higra_entity_vectors"} & {*of_higra[1]}
    assert not any(name.startswith("kb") for name in asked_by_part(stages_for(["all"]), rules))


@pytest.mark.parametrize(
    "given",
    [{"shards": 2, "fresh": True}, {"shards": 2, "llm": ScriptedLLM(lambda request: "")}, {"shards": 0},
     {"on": "ray:auto"}, {"shards": 2, "on": "slurm:"}, {"shards": 2, "llm": "vllm:a-model"}],
)  # fmt: skip
def test_what_shards_cannot_do_is_refused(corpus: list[Path], tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        built(tmp_path / "ix", corpus, {"models": {"embedder": "hash"}}, "dense", **given)
    assert not (tmp_path / "ix" / "manifest.json").exists()
