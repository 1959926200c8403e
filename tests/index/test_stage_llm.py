"""The extraction layer with a language model: repair tries, statuses, counts, failures, and what a second run asks."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.errors import GpuRagError, IndexMismatch, RequestFailed
from gpu_rag.index.build import BuildReport
from gpu_rag.index.index import Index
from gpu_rag.index.stages.extraction import Extracted
from gpu_rag.index.verify import verify
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.llm.service import StreamingEngine
from gpu_rag.text.lenient import REPAIR
from gpu_rag.text.replies import parse_json
from gpu_rag.text.structs import schema_of
from gpu_rag.types import JsonSchema, Malformed, Reply, Request

ANN = {"name": "Ann", "aliases": ["Annie"], "types": ["person"], "description": "friend of Bo"}
BO = {"name": "Bo", "aliases": [], "types": [], "description": ""}
GOOD = json.dumps({"entities": [ANN, BO], "triples": [["Ann", "knows", "Bo"]]})
EMPTY = json.dumps({"entities": [], "triples": []})
BAD = "Ann knows Bo."
SAID = Callable[[Request], "str | Reply | RequestFailed"]


def cut(text: str) -> Reply:
    """A reply that ran into max_tokens."""
    return Reply(text, "length", 10, 4, 512)


# what is said to each passage at the first and at the second attempt, and the status that follows
CASES: dict[str, tuple[str | Reply | RequestFailed, str | Reply | RequestFailed, str]] = {
    "valid": (GOOD, BAD, "ok"),
    "fenced": (f"```json\n{GOOD}\n```", BAD, "ok"),
    "nothing": (EMPTY, GOOD, "empty"),
    "repaired": (BAD, GOOD, "ok"),
    "repaired-to-nothing": (BAD, EMPTY, "empty"),
    "malformed": (BAD, BAD, "malformed"),
    "wrong-shape": ('{"entities": [], "triples": [["Ann", "knows"]]}', '{"entities": []}', "malformed"),
    "chatty": (f"Here is what I found:\n{GOOD}\nI hope it helps.", BAD, "ok"),
    "names-alone": ('{"entities": ["Ann"], "triples": []}', EMPTY.replace("[]", '["Ann"]', 1), "malformed"),
    "cut-late": (cut(GOOD[:-4]), BAD, "ok"),  # without the last triple
    "cut": (cut(GOOD[:30]), cut(GOOD[:20]), "truncated"),
    "cut-then-repaired": (cut(GOOD[:30]), GOOD, "ok"),
    "cut-then-malformed": (cut(GOOD[:30]), BAD, "truncated"),
    "cut-but-whole": (cut(GOOD), BAD, "ok"),
    "failed": (RequestFailed("the server said no"), GOOD, "failed"),
    "failed-later": (BAD, RequestFailed("the server said no"), "malformed"),
}
EXPECTED = {name: status for name, (_, _, status) in CASES.items()}


def by_case(request: Request) -> str | Reply | RequestFailed:
    name = request.prompt.split("Title: ")[1].split("\n")[0]
    return CASES[name][request.attempt]


def write_cases(path: Path, names: list[str]) -> Path:
    rows = [{"id": name, "title": name, "text": f"Ann knows Bo. This is the case {name}."} for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def build(corpus: Path, out: Path, llm: ScriptedLLM, **index: Any) -> BuildReport:
    settings = {"models": {"embedder": "hash", "max_batch": 1}, "index": {"extractor": "llm", "block": 8, **index}}
    return gpu_rag.build(corpus, out, settings=settings, llm=llm).report


def statuses(out: Path) -> dict[str, str]:
    from gpu_rag.index import tables

    index = Index.open(out)
    table = tables.read_table(index.folder("extraction") / "extractions.parquet", tables.EXTRACTIONS)
    return {index.passage_ids[row["passage"]]: row["status"] for row in table.to_pylist()}


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return write_cases(tmp_path / "cases.jsonl", list(CASES))


def test_every_kind_of_reply_has_its_status(cases: Path, tmp_path: Path) -> None:
    llm = ScriptedLLM(by_case)
    report = build(cases, tmp_path / "ix", llm, min_yield=0.1)
    assert statuses(tmp_path / "ix") == EXPECTED
    assert verify(tmp_path / "ix") == []
    stage = report.stages["extraction"]
    assert stage.counts == {f"extraction_{status}": n for status, n in Counter(EXPECTED.values()).items()}
    assert report.count("extraction_ok") == 7
    assert stage.replies_read == len(CASES)
    kinds = {"lenient": 2, "salvaged": 1, "repaired": 3, "rule": 6}  # a request that failed at first is no fallback
    assert stage.fallbacks == {f"extraction/{kind}": n for kind, n in kinds.items()}
    assert stage.failures == sum(status in ("malformed", "truncated", "failed") for status in EXPECTED.values())


def test_an_engine_that_can_sleep_does_while_stages_without_it_run(cases: Path, tmp_path: Path) -> None:
    slept: list[int] = []

    class Sleepy(StreamingEngine[Any, Any], ScriptedLLM):
        def __init__(self) -> None:
            super().__init__()
            ScriptedLLM.__init__(self, by_case)

        def sleep(self) -> None:
            slept.append(len(self.calls))

    llm = Sleepy()
    report = build(cases, tmp_path / "ix", llm, min_yield=0.1)
    asking = [name for name, stage in report.stages.items() if stage.llm_calls]
    assert asking == ["extraction"] and slept.count(len(llm.calls)) >= 2
    assert set(slept) <= {0, len(llm.calls)}  # never in the middle of its stage


def test_a_repair_asks_the_unread_ones_once_more_and_warmer(cases: Path, tmp_path: Path) -> None:
    llm = ScriptedLLM(by_case)
    build(cases, tmp_path / "ix", llm, min_yield=0.1, extract_tokens=77)
    first = {r.prompt: r for r in llm.calls if r.attempt == 0}
    second = {r.prompt.split(REPAIR.split("{")[0])[0]: r for r in llm.calls if r.attempt == 1}
    assert len(first) + len(second) == len(llm.calls)  # nobody is asked the same twice
    assert set(first) >= set(second) and len(first) == len(CASES)
    unread = {"malformed", "wrong-shape", "names-alone", "cut", "repaired", "failed-later"}
    unread |= {"repaired-to-nothing", "cut-then-repaired", "cut-then-malformed"}
    assert {r.prompt.split("Title: ")[1].split("\n")[0] for r in second.values()} == unread
    assert {(r.max_tokens, r.constraint, r.temperature) for r in first.values()} == {
        (77, JsonSchema(schema_of(Extracted)), 0.0)
    }
    assert {(r.temperature, r.max_tokens) for r in second.values()} == {(0.3, 154)}
    assert all("could not be read: " in r.prompt for r in second.values())
    assert len({r.system for r in llm.calls}) == 1  # one shared prefix
    assert llm.batches == [len(CASES), len(unread)]  # all at once, so that an engine which runs many never drains


def test_costs_are_those_of_the_replies(cases: Path, tmp_path: Path) -> None:
    llm = ScriptedLLM(by_case)
    stage = build(cases, tmp_path / "ix", llm, min_yield=0.1).stages["extraction"]
    n_failed = sum(isinstance(by_case(request), RequestFailed) for request in llm.calls)
    assert stage.llm_calls == len(llm.calls) - n_failed
    n_cut = sum(isinstance(by_case(request), Reply) for request in llm.calls)
    assert stage.cached_tokens == 4 * n_cut
    said = [llm._reply(request) for request in list(llm.calls)]
    assert stage.generated_tokens == sum(r.n_generated for r in said if isinstance(r, Reply))
    assert stage.prompt_tokens == sum(r.n_prompt for r in said if isinstance(r, Reply))


def test_too_low_a_yield_stops_the_build_and_the_next_run_asks_nothing_again(tmp_path: Path) -> None:
    corpus = write_cases(tmp_path / "c.jsonl", ["valid", "malformed", "cut", "nothing", "repaired"])
    with pytest.raises(GpuRagError, match=r"too few passages; given 2 of 5 .*; expected at least 50%"):
        build(corpus, tmp_path / "ix", ScriptedLLM(by_case))
    again = ScriptedLLM(by_case)
    report = build(corpus, tmp_path / "ix", again, min_yield=0.4)  # 2 of 5 is enough now
    assert again.calls == []
    assert report.stages["extraction"].llm_calls == 0
    assert report.stages["extraction"].prompt_tokens > 0  # what the replies once cost
    assert statuses(tmp_path / "ix") == {name: EXPECTED[name] for name in statuses(tmp_path / "ix")}
    assert verify(tmp_path / "ix") == []


def test_a_finished_build_asks_its_failed_requests_again(tmp_path: Path) -> None:
    corpus = write_cases(tmp_path / "c.jsonl", ["valid", "failed", "malformed"])
    build(corpus, tmp_path / "ix", ScriptedLLM(by_case), min_yield=0.3)
    still = ScriptedLLM(by_case)
    assert not build(corpus, tmp_path / "ix", still, min_yield=0.3).stages["extraction"].skipped
    healed = ScriptedLLM(lambda request: GOOD)
    report = build(corpus, tmp_path / "ix", healed, min_yield=0.3)
    assert len(still.calls) == len(healed.calls) == 1
    assert report.count("extraction_ok") == 2 and verify(tmp_path / "ix") == []
    assert build(corpus, tmp_path / "ix", healed, min_yield=0.3).stages["extraction"].skipped  # malformed is final


def test_an_interrupted_extraction_keeps_every_reply_it_had(tmp_path: Path) -> None:
    names = [f"n{i:02d}" for i in range(20)]
    corpus = write_cases(tmp_path / "c.jsonl", names)
    whole = ScriptedLLM(lambda request: GOOD)
    build(corpus, tmp_path / "whole", whole)
    asked: list[str] = []

    def interrupted(request: Request) -> str:
        if len(asked) == 11:
            raise KeyboardInterrupt
        asked.append(request.prompt)
        return GOOD

    with pytest.raises(KeyboardInterrupt):
        build(corpus, tmp_path / "ix", ScriptedLLM(interrupted))
    rest = ScriptedLLM(lambda request: GOOD)
    build(corpus, tmp_path / "ix", rest)
    assert len(rest.calls) == 9 and not {r.prompt for r in rest.calls} & set(asked)
    digests = {gpu_rag.Index.open(tmp_path / name).manifest.digest() for name in ("whole", "ix")}
    assert len(digests) == 1 and verify(tmp_path / "ix") == []


def test_another_prompt_length_asks_again_and_another_model_is_refused(tmp_path: Path) -> None:
    corpus = write_cases(tmp_path / "c.jsonl", ["valid"])
    build(corpus, tmp_path / "ix", ScriptedLLM(by_case))
    same = ScriptedLLM(by_case)
    assert build(corpus, tmp_path / "ix", same).stages["extraction"].skipped and same.calls == []
    longer = ScriptedLLM(by_case)
    assert not build(corpus, tmp_path / "ix", longer, extract_tokens=99).stages["extraction"].skipped
    other = ScriptedLLM(by_case, name="another")
    with pytest.raises(IndexMismatch, match="stage extraction was written by another model"):
        build(corpus, tmp_path / "ix", other, extract_tokens=99)
    assert build(corpus, tmp_path / "new", other, extract_tokens=99).count("extraction_ok") == 1
    assert len(longer.calls) == len(other.calls) == 1


def test_a_reply_that_repeats_itself_ends_within_its_tokens() -> None:
    def reply(n: int, name: str = "Marta Orlo") -> str:
        entity = {"name": name, "aliases": [], "types": ["person"], "description": "engineer"}
        return json.dumps({"entities": [entity], "triples": [[name, "designed", "Halden Bridge"]] * n})

    assert isinstance(parse_json(reply(30), schema_of(Extracted)), dict)
    for endless in (reply(31), reply(1, "Orlo " * 50)):
        assert isinstance(parse_json(endless, schema_of(Extracted)), Malformed)
