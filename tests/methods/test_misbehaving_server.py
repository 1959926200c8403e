"""Every method, both drivers and every index stage under a server that misbehaves: no reply fails for its form."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from personas import PERSONAS

import gpu_rag
from gpu_rag import Index
from gpu_rag.methods.registry import method_names
from gpu_rag.models.llm import http_servers
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.misbehave import FAULTS, MisbehavingServer
from gpu_rag.types import FALLBACKS, Answer, Question

FACTS = """Marta Orlo\tdesigned\tHalden Bridge
Halden Bridge\tcrosses\tVes
Halden Bridge\tstands in\tKerling
Marta Orlo\tborn in\tTamsin
Marta Orlo\tstudied under\tPiet Ruyven
Piet Ruyven\ttaught at\tUniversity of Loss
"""
NOTES = {
    "Halden Bridge": "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling.",
    "Marta Orlo": "Marta Orlo was an engineer born in Tamsin. She studied under Piet Ruyven.",
    "Piet Ruyven": "Piet Ruyven taught at the University of Loss. He was born in Ostrand in 1871.",
    "Lighthouse of Tamsin": "The Lighthouse of Tamsin was built in 1902 by the engineer Marta Orlo.",
}
PAGE = {"url": "https://w/0", "title": "Ves", "text": "The Ves is a river. It passes Ostrand and Kerling."}
QUESTIONS = [
    "Where was the designer of the Halden Bridge born?",
    "At which university did the teacher of Marta Orlo teach?",
    "Which river passes Kerling?",
]
WRITTEN = {"index": {"extractor": "llm", "min_yield": 0.0, "coref": "llm"}, "hops": {"simulate": "llm"}}
WRITTEN["alignment"] = {"decider": "llm", "tau": 0.9, "link_radius": 0.9}
READS = [name for name in method_names() if name not in ("dense", "bm25", "hybrid", "auto")]
Serve = Callable[..., MisbehavingServer]


@pytest.fixture
def serve(misbehaving: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    monkeypatch.setitem(HttpLLM.__init__.__kwdefaults__, "backoff_s", 0.01)
    monkeypatch.setattr(http_servers, "LOAD_PAUSE_S", 0.05)
    return misbehaving


def models(url: str) -> dict[str, Any]:
    return {"embedder": "hash", "llm": url, "capable": True, "device": "cpu"}


def sources(folder: Path) -> dict[str, Any]:
    (folder / "facts.tsv").write_text(FACTS)
    rows = ({"id": title, "title": title, "text": text} for title, text in NOTES.items())
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pages.jsonl").write_text(json.dumps(PAGE) + "\n")
    named = {"notes": f"documents:{folder / 'notes.jsonl'}", "net": f"web:{folder / 'pages.jsonl'}"}
    return {"kg": [folder / "facts.tsv"], "sources": [f"{name}={where}" for name, where in named.items()]}


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a graph, documents and web pages, made by rules."""
    folder = tmp_path_factory.mktemp("sound")
    gpu_rag.build((), out=folder / "ix", methods=["all"], settings={"models": models("none")}, **sources(folder))
    return folder / "ix"


def answers(index: Path, method: str, url: str, driver: str = "rounds") -> list[Answer]:
    settings = {"models": models(url), "runtime": {"driver": driver}}
    return list(Index.open(index).answer(QUESTIONS, method=method, settings=settings))


def timeless(answer: Answer) -> Any:
    row = asdict(answer)
    row["usage"] = {key: value for key, value in row["usage"].items() if not key.endswith("_s")}
    row["trace"] = [{**step, "s": 0} for step in row["trace"]]
    return row


@pytest.mark.parametrize("method", READS)
def test_no_question_fails_for_the_form_of_a_reply(sound: Path, serve: Serve, method: str) -> None:
    found = [answers(sound, method, serve(seed=7).url, driver) for driver in ("rounds", "streaming")]
    for answer in found[0]:
        assert answer.error is None and answer.status != "failed", answer.error
        assert answer.usage.replies_read > 0
        assert {key.rsplit("/", 1)[1] for key in answer.usage.fallbacks} <= set(FALLBACKS)
    first, second = ([timeless(answer) for answer in run] for run in found)
    assert first == second


def test_together_the_runs_meet_every_fault_and_count_what_became_of_it(sound: Path, serve: Serve) -> None:
    done: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for method in ("bubblerag", "higra-agent", "hybgrag", "hydrarag"):
        server = serve(seed=4, share=0.6)
        for answer in answers(sound, method, server.url):
            for key, n in answer.usage.fallbacks.items():
                kinds[key.rsplit("/", 1)[1]] += n
        done += server.done
    assert set(done) == {"", *FAULTS} and set(kinds) >= {"lenient", "repaired", "rule"}, (done, kinds)


@pytest.mark.parametrize("method", READS)
def test_a_server_that_fences_or_thinks_is_no_failure(sound: Path, serve: Serve, method: str) -> None:
    calm = answers(sound, method, serve(share=0.0).url)
    thinks = answers(sound, method, serve(share=0.0, thinks=True).url)
    assert [(a.status, a.text) for a in thinks] == [(a.status, a.text) for a in calm]
    assert all(not a.usage.malformed for a in thinks)
    fenced = answers(sound, method, serve(share=1.0, faults=("fenced",)).url)
    assert [a.status for a in fenced] == [a.status for a in calm]
    for answer, plain in zip(fenced, calm):
        kinds = {key.rsplit("/", 1)[1] for key in answer.usage.fallbacks.keys() - plain.usage.fallbacks.keys()}
        assert kinds <= {"lenient"} and not answer.usage.malformed


def test_every_index_stage_ends_and_counts(tmp_path: Path, serve: Serve) -> None:
    """With thinking replies too; what is made is the same in another run."""
    given, digests = sources(tmp_path), []
    for run in range(2):
        server = serve(seed=2)
        settings = {**WRITTEN, "models": models(server.url)}
        report = gpu_rag.build((), out=tmp_path / f"ix{run}", methods=["all"], settings=settings, **given).report
        digests.append(report.manifest.digest())
        counts = {name: stage for name, stage in report.stages.items() if stage.replies_read}
        assert {"extraction", "hop_questions"} <= set(counts)
        read = sum(stage.replies_read for stage in counts.values())
        fallbacks = sum((Counter(stage.fallbacks) for stage in counts.values()), Counter())
        rules = sum(n for key, n in fallbacks.items() if key.endswith("/rule"))
        assert 0 < sum(fallbacks.values()) <= read and rules <= 0.25 * read, fallbacks
        assert sum(server.done.values()) - server.done[""] > 5
        server.close()
    assert len(set(digests)) == 1


DECIDE = [name for name in READS if name not in ("ppr", "fused", "hydrarag-e")]  # methods in which a model decides
FORMS = ("Who built {}, and when?", "Who studied or taught with {}?")
NAMED = (*NOTES, "the river Ves", "Ostrand", "the University of Loss")
SIXTEEN = [*QUESTIONS[:2], *(form.format(name) for name in NAMED for form in FORMS)]
# Two kinds of servers for each method, and two or three methods for each kind: the client knows no methods
MET = [(kind, method) for (i, kind), (k, method) in product(*map(enumerate, (PERSONAS, DECIDE))) if (i + k) % 3 == 0]
MANNERS = ("429", "500", "reset", "half_closed", "not_json", "error_200")  # each passes, and is never a reply


@pytest.mark.slow
@pytest.mark.parametrize(("persona", "method"), MET)
def test_each_kind_of_server_gives_rows_and_exact_accounts(
    sound: Path, serve: Serve, persona: str, method: str
) -> None:
    """Whatever it refuses, ignores or sends in place of a reply: the rows are those of the same server that is calm."""
    rows = []
    for share in (0.0, 0.15):
        server = serve(seed=5, share=share, kind=PERSONAS[persona], faults=MANNERS)
        settings = {"models": models(server.url), "runtime": {"driver": "streaming"}}
        engine = Index.open(sound).engine(settings)
        with closing(engine.models):
            run = engine.run(method, [Question(str(i), text) for i, text in enumerate(SIXTEEN)])
            [account] = engine.models.servers()
        usages = [answer.usage for answer in run.answers]
        failed = [answer for answer in run.answers if answer.status not in ("answered", "unsupported")]
        assert not failed, [answer.error for answer in failed]
        assert account.requests == server.n_replies > 0 and (share == 0 or account.failures > 0)
        assert account.prompt_tokens == sum(usage.prompt_tokens for usage in usages) > 0
        assert account.generated_tokens == sum(usage.generated_tokens for usage in usages) > 0
        n_calls = sum(usage.llm_calls for usage in usages)
        assert account.estimated == (0 if PERSONAS[persona].counts else n_calls)
        assert account.other_model == (n_calls if PERSONAS[persona].model_name else 0)
        rows.append([(answer.status, answer.text, answer.evidence) for answer in run.answers])
    assert rows[0] == rows[1]


def test_a_budget_of_tokens_binds_at_a_server_that_counts_none(sound: Path, serve: Serve) -> None:
    for persona in ("vllm", "proxy"):
        settings = {"models": models(serve(share=0.0, kind=PERSONAS[persona]).url), "runtime": {"max_tokens": 200}}
        for answer in Index.open(sound).answer(QUESTIONS, method="hydrarag", settings=settings):
            assert answer.usage.llm_calls <= 4 and answer.usage.prompt_tokens > 0


def test_a_job_with_errors_of_status_200_heals_by_the_same_command(sound: Path, serve: Serve, tmp_path: Path) -> None:
    from gpu_rag.cli.main import main

    (tmp_path / "q.jsonl").write_text("".join(json.dumps({"id": q, "question": q}) + "\n" for q in QUESTIONS))
    server = serve(share=0.6, seed=1, faults=("wrong_type", "empty", "error_200"))
    out = tmp_path / "a.jsonl"
    command = ["answer", str(sound), str(tmp_path / "q.jsonl"), "--method", "hydrarag", "--out", str(out)]
    command += ["--max-fallbacks", "100%"]
    for name, value in models(server.url).items():
        command += ["--set", f"models.{name}={str(value).lower() if isinstance(value, bool) else value}"]
    assert main(command) == 0
    first = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(row["usage"]["malformed"] for row in first) > 0 and server.done["error_200"] > 0
    port = int(server.url.split(":")[2].split("/")[0])
    server.close()
    calm = serve(port=port, share=0.0)
    assert main(command) == 0 and not calm.done, "all rows are there"
    assert main([*command, "--retry-unread"]) == 0
    healed = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(healed) == len(QUESTIONS) and not any(row["usage"]["malformed"] for row in healed) and calm.done[""] > 0


def test_an_index_heals_by_the_same_command(tmp_path: Path, serve: Serve) -> None:
    given, target = sources(tmp_path), tmp_path / "ix"
    server = serve(share=0.7, seed=2, faults=("wrong_type", "empty", "error_200", "not_json"))
    settings = {**WRITTEN, "models": models(server.url)}
    first = gpu_rag.build((), out=target, methods=["hoprag"], settings=settings, **given)
    lost = [name for name, n in first.manifest.stages["extraction"].counts.items() if name.endswith("malformed") and n]
    assert lost, first.manifest.stages["extraction"].counts
    server.close()
    calm = serve(share=0.0, port=int(server.url.split(":")[2].split("/")[0]))
    gpu_rag.build((), out=target, methods=["hoprag"], settings=settings, **given)
    assert not calm.done, "a stage that stands is not made again"
    second = gpu_rag.build((), out=target, methods=["hoprag"], settings=settings, retry_unread=True, **given)
    counts = second.manifest.stages["extraction"].counts
    still = [name for name, n in counts.items() if name.endswith(("malformed", "truncated", "failed")) and n]
    assert not still and 0 < calm.done[""] <= 30
