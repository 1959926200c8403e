"""Whole runs with real workers: the index and the answers of a run without, commands, signals, real small models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recording_llm import RecordingLLM

import gpu_rag
from gpu_rag.cluster.models import RayLLM
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.settings.sections import ScaleSettings
from gpu_rag.types import Question, Request

pytestmark = pytest.mark.ray

LIMIT_S = 600

ASKED = [
    Question("q1", "Who founded the University of Loss?"),
    Question("q2", "Where was the designer of the Halden Bridge born?"),
    Question("q3", "Who was mayor where the Halden Bridge stands?"),
]
SCALE = {"address": "local", "embed_workers": 2, "llm_workers": 2}
METHOD = "ppr"


def extract(request: Request) -> str:
    """Entities to a passage, one word to a question."""
    if "Title: " not in request.prompt:
        return f"word {sum(map(ord, request.prompt)) % 97}"
    title = request.prompt.split("Title: ")[1].split("\n")[0]
    entity = {"name": title, "aliases": [], "types": ["place"], "description": "a name"}
    other = {"name": "Ves", "aliases": [], "types": [], "description": ""}
    return json.dumps({"entities": [entity, other], "triples": [[title, "lies on", "Ves"]]})


def settings_of(llm: str, scale: dict[str, Any] | None = None, **runtime: Any) -> dict[str, Any]:
    models = {"embedder": "hash", "llm": llm}
    return {"models": models, "index": {"extractor": "llm"}, "runtime": runtime, **({"scale": scale} if scale else {})}


@pytest.fixture
def recorded(tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """replay:FILE with all that a build and answers ask."""
    monkeypatch.setattr(ScaleSettings, "embed_batch", 4)  # several lists of texts a worker
    path = tmp_path / "recorded.jsonl"
    given = settings_of("smollm2")
    gpu_rag.build(tiny_corpus, tmp_path / "first", settings=given, llm=RecordingLLM(ScriptedLLM(extract), path))
    index = gpu_rag.Index.open(tmp_path / "first")
    index.answer(ASKED, method=METHOD, settings=given, llm=RecordingLLM(ScriptedLLM(extract), path))
    return f"replay:{path}"


def settled(answer: Any) -> dict[str, Any]:
    """An answer without its seconds."""
    usage = {name: value for name, value in vars(answer.usage).items() if not name.endswith("_s")}
    return {**vars(answer), "usage": usage, "trace": [{**vars(step), "s": 0} for step in answer.trace]}


def test_index_and_answers_are_those_of_a_run_without_workers(local_ray, tiny_corpus, tmp_path, recorded) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    plain = gpu_rag.build(tiny_corpus, here, settings=settings_of(recorded)).report
    report = gpu_rag.build(tiny_corpus, there, settings=settings_of(recorded, SCALE)).report
    assert report.manifest.digest() == plain.manifest.digest()
    assert report.stages["extraction"].llm_calls == 6
    workers = json.loads((there / "run.json").read_text())["workers"]
    assert {role: pool["workers"] for role, pool in workers.items()} == {"embedder": 2, "llm": 2}
    assert "workers" not in json.loads((here / "run.json").read_text())
    again = gpu_rag.build(tiny_corpus, there, settings=settings_of(recorded, SCALE)).report
    assert all(stage.skipped for stage in again.stages.values())
    answers = gpu_rag.Index.open(here).answer(ASKED, method=METHOD, settings=settings_of(recorded))
    assert {answer.status for answer in answers} == {"answered"}
    for driver in ("rounds", "streaming"):
        given = settings_of(recorded, SCALE, driver=driver)
        on_workers = gpu_rag.Index.open(there).answer(ASKED, method=METHOD, settings=given)
        assert [settled(a) for a in on_workers] == [settled(a) for a in answers]


def test_a_run_that_was_interrupted_asks_nothing_twice_that_it_has(pools, marks, tmp_path) -> None:
    def answer(request: Request) -> str:
        import os

        file = os.open(f"{marks}/asked", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{request.prompt}\n".encode())
        os.close(file)
        return "fine"

    requests = [Request("Answer.", f"question {i}") for i in range(60)]
    had: list[str] = []

    def interrupt(i: int, reply: Any) -> None:
        had.append(requests[i].prompt)
        if len(had) == 10:
            raise KeyboardInterrupt

    pool = pools.llm(answer, window=4)
    llm = CachedLLM(RayLLM(pool), tmp_path / "replies.sqlite")
    with pytest.raises(KeyboardInterrupt):
        llm.complete(requests, interrupt)
    assert len(llm) >= 10
    assert all(reply.text == "fine" for reply in llm.complete(requests))
    asked = Counter((marks / "asked").read_text().splitlines())
    assert set(asked) == {request.prompt for request in requests}
    assert {asked[prompt] for prompt in had} == {1} and sum(asked.values()) <= 60 + 2 * 4


# --- processes -------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
from pathlib import Path
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.cluster.models import RayLLM
from gpu_rag.cluster.pool import Plan, Pool
from gpu_rag.cluster.worker import Loaded, LLMWorker
from gpu_rag.settings.sections import ScaleSettings
from gpu_rag.types import Request

mark = Path(sys.argv[1])

def build():
    def answer(request):
        mark.touch()
        time.sleep(1000)
    return Loaded(ScriptedLLM(answer), 4)

pool = Pool(ScaleSettings(address="local"), Plan("llm", LLMWorker, build, 1, 1.0, 0.0))
try:
    RayLLM(pool).complete([Request("", "go on")])
finally:
    pool.close()
    print("closed", flush=True)
"""


def of_session(session: int) -> list[str]:
    """The processes of a session that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if rest.split()[3] == str(session) and rest.split()[0] != "Z":
            found.append(name)
    return found


def started(command: list[str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen(command, start_new_session=True, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_of_a_local_ray(number: int, tmp_path: Path, until) -> None:
    mark = tmp_path / "mark"
    process = started([sys.executable, "-c", SCRIPT, str(mark)], stdout=subprocess.PIPE)
    try:
        until(lambda: mark.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        assert len(of_session(process.pid)) > 3
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode != 0
        if number == signal.SIGINT:
            assert "closed" in out and "KeyboardInterrupt" in err
        assert "received at time" not in err  # the C++ trace that Ray prints at a signal
        until(lambda: not of_session(process.pid))
    finally:
        if process.poll() is None:
            process.kill()


@pytest.fixture
def command(tmp_path: Path):
    """command("index", corpus, ...): a command as a process of its own; its JSON document."""

    def run(*words: object) -> Any:
        done = subprocess.run(line(*words, "--json"), capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def line(*words: object) -> list[str]:
    return [sys.executable, "-m", "gpu_rag", *map(str, words)]


def sets(**settings: Any) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


# A command that stops at its second answer, in the middle of all others, until a signal comes.
GATED = """
import sys, time
from pathlib import Path
from gpu_rag import jobs
from gpu_rag.cli.main import program

mark = Path(sys.argv.pop(1))
add, n_added = jobs.AnswersFile.add, []

def gated(self, answer):
    row = add(self, answer)
    n_added.append(row)
    if len(n_added) == 2:
        mark.touch()
        time.sleep(100_000)
    return row

jobs.AnswersFile.add = gated
program()
"""


def test_commands_with_real_small_models_interrupted_and_continued(
    local_ray, command, tiny_corpus, tmp_path, until
) -> None:
    minilm: dict[str, Any] = {"models": {"vector_cache_gib": 0}}
    here = gpu_rag.build(tiny_corpus, tmp_path / "here", settings=minilm).report
    workers = {"scale": {"address": "local", "embed_workers": 2}}
    there = gpu_rag.build(tiny_corpus, tmp_path / "there", settings={**minilm, **workers}).report
    assert there.workers["embedder"]["workers"] == 2 and "llm" not in there.workers
    assert there.manifest.digest() == here.manifest.digest()
    scale = sets(scale__address="local", models__vector_cache_gib=0)
    rows = [{"id": f"q{i}", "question": f"Where is the river number {i}?"} for i in range(5)]
    questions, out, mark = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl", tmp_path / "mark"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["answer", tmp_path / "there", questions, "--method", "dense", "--out", out, *scale]
    one_role = sets(scale__embed_workers=0)
    process = started([sys.executable, "-c", GATED, str(mark), *map(str, words), *one_role])
    try:
        until(lambda: mark.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1 and "stopped by Ctrl-C" in err
        until(lambda: not of_session(process.pid))
    finally:
        if process.poll() is None:
            process.kill()
    document = command(*words, "--driver", "streaming")
    assert (document["n"], document["failed"], document["kept"]) == (5, 0, 2)
    told = {"workers": 1, "joined": 1, "cpus": 1.0, "deaths": 0}
    assert document["workers"]["llm"] == {**document["workers"]["llm"], **told}


def test_every_command_records_its_workers(local_ray, tiny_corpus, tmp_path, recorded, capsys) -> None:
    from gpu_rag.cli.main import main

    models = sets(models__embedder="hash", models__llm=recorded, index__extractor="llm")
    scale = sets(scale__address="local", scale__embed_workers=1, scale__llm_workers=1)
    rows = [{"id": q.id, "question": q.text, "answers": ["Ves"], "gold_ids": []} for q in ASKED]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = str(tmp_path / "there")
    for words in (
        ["index", str(tiny_corpus), "--out", index],
        ["answer", index, str(questions), "--method", METHOD, "--out", str(tmp_path / "answers.jsonl")],
        ["eval", index, str(questions), "--method", METHOD],
    ):
        assert main([*words, *models, *scale, "--json"]) == 0
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        told = {role: (pool["workers"], pool["joined"]) for role, pool in document["workers"].items()}
        assert told == {"embedder": (1, 1), "llm": (1, 1)}
    assert main([*words, *models, *scale]) == 0
    assert "workers: llm on 1 of 1 with 1 CPUs and 0 GPUs each" in capsys.readouterr().out


def test_a_cluster_that_does_not_answer_is_named(tiny_corpus, tmp_path) -> None:
    words = ("index", tiny_corpus, "--out", tmp_path / "x", *sets(scale__address="127.0.0.1:1"))
    done = subprocess.run(line(*words), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert "no Ray cluster; given scale.address=127.0.0.1:1: " in done.stderr and "ray start --head" in done.stderr


# A head without GPUs and two nodes that claim one each. An answer to "hold" waits until its node is gone.
ON_NODES = """
import json, sys, time
from pathlib import Path

from ray.cluster_utils import Cluster

cluster = Cluster()
memory = 80 * 2**20
cluster.add_node(num_cpus=4, num_gpus=0, object_store_memory=memory, include_dashboard=False)
nodes = [cluster.add_node(num_cpus=4, num_gpus=1, object_store_memory=memory) for _ in range(2)]
cluster.wait_for_nodes()

from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.cluster.models import RayLLM
from gpu_rag.cluster.pool import Plan, Pool
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, Loaded
from gpu_rag.settings.sections import ScaleSettings
from gpu_rag.types import Request

marks = Path(sys.argv[1])

def build():
    import ray
    node = ray.get_runtime_context().get_node_id()
    def answer(request):
        if request.prompt == "hold":
            (marks / "writing").write_text(node)
            (marks / "writing").rename(marks / "held")
            while not (marks / "go").exists():
                time.sleep(0.01)
        return f"said {len(request.prompt)}"
    return Loaded(ScriptedLLM(answer), 4)

settings = ScaleSettings(address=cluster.address)
pools = [
    Pool(settings, Plan("embedder", EmbedWorker, HashEmbedder, 2, 1.0, 0.25)),
    Pool(settings, Plan("llm", LLMWorker, build, 2, 1.0, 0.75)),
]
while any(len(pool.ready()) < 2 for pool in pools):
    for pool in pools:
        pool.pump(0.2)
llm = RayLLM(pools[1])
prompts = ["hold", *("x" * (3_000_000 + i) for i in range(40))]  # together more than a node's store holds
for key, prompt in enumerate(prompts):
    llm.submit(key, Request("", prompt))
found = {}
while not (marks / "held").exists():
    found.update(llm.poll(0.1))
gone = (marks / "held").read_text()
(node,) = (node for node in nodes if node.node_id == gone)
cluster.remove_node(node, allow_graceful=False)
(marks / "go").touch()
while llm.n_open:
    found.update(llm.poll(0.5))
assert [found[key].text for key in range(41)] == [f"said {len(prompt)}" for prompt in prompts]
told = pools[1].describe()
for pool in pools:
    pool.close()
print(json.dumps(told), flush=True)
"""


def test_parts_of_gpus_fit_together_and_the_work_of_a_lost_node_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ON_NODES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"workers": 2, "joined": 2' in done.stdout and '"deaths": 1' in done.stdout
