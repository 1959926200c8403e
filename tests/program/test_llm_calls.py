"""The steps of the product: a name for each; `llm` behind real services, and what it leaves in the reply cache."""

import importlib
import pkgutil
import threading

import pytest
from toy_steps import Toys, graph

import gpu_rag.methods
import gpu_rag.program
from gpu_rag.errors import RequestFailed
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.llm.service import as_streaming
from gpu_rag.program.kinds import Models
from gpu_rag.program.steps import llm
from gpu_rag.runtime import Kind, RunStats, Step, batched, gather, run_rounds, run_streaming
from gpu_rag.runtime import streaming as streaming_module
from gpu_rag.runtime.step import SERVICES
from gpu_rag.types import Question, Request


def ask(text):
    return llm(Request("static part", text, max_tokens=8))


def said(request):
    return f"reply to {request.prompt}"


def resources(model, **answers):
    return {"models": Models(model, load_embedder("hash")), **Toys(answers).resources}


async def program(ctx):
    first = await ask(f"{ctx.question.id} a")
    more = await gather(*(ask(f"{ctx.question.id} {first.text} {i}") for i in range(3)))
    return [reply.text for reply in (first, *more)]


@pytest.fixture
def cached(tmp_path):
    model = CachedLLM(ScriptedLLM(said), tmp_path / "replies.sqlite")
    yield model
    model.close()


def questions(n, run=program):
    return [(Question(f"q{i}", "?"), run) for i in range(n)]


def test_a_service_and_the_function_give_the_same(cached):
    direct = ScriptedLLM(said)
    expected = run_rounds(questions(9), resources(direct))
    heard, threads = [], set()

    def on_reply(reply):
        heard.append(reply)
        threads.add(threading.current_thread())

    for streaming in (as_streaming(ScriptedLLM(said)), cached, cached):
        heard.clear()
        options = {"low_water": 2, "max_live": 4, "on_answer": on_reply}
        found = run_streaming(questions(9), resources(direct), (llm, streaming), **options)
        assert [o.draft for o in found] == [o.draft for o in expected]
        for one, other in zip(found, expected):
            assert (one.usage.llm_calls, one.usage.prompt_tokens, one.usage.generated_tokens) == (
                other.usage.llm_calls,
                other.usage.prompt_tokens,
                other.usage.generated_tokens,
            )
        assert len(heard) == 36 and streaming.n_open == 0
    assert all(reply.from_cache for reply in heard), "the second run over the cache asked nothing"
    assert threads == {threading.current_thread()} and len(cached) == 36


@pytest.mark.parametrize("taken", [True, False])
def test_the_late_reply_to_an_aborted_request_is_counted_and_kept(taken, cached, monkeypatch):
    """taken: the engine works on the request when a sibling fails, and cannot stop; else it has not begun it."""
    monkeypatch.setattr(streaming_module, "LATE_WAIT_S", 60.0)  # on a busy machine they may come later than that
    begun, free = threading.Event(), threading.Event()
    left = ["late"] if taken else ["one", "two"]

    def slow(request):
        begun.set()
        assert free.wait(60)
        return said(request)

    def fail(queries, k):
        assert begun.wait(60)
        return [RequestFailed("no")] * len(queries)

    def abort(key, plain=cached.abort):
        plain(key)
        left.pop()
        if not left:
            free.set()

    async def fails_first(ctx):
        await gather(graph(0), *map(ask, tuple(left)))

    async def waits(ctx):
        return (await ask("begins the only worker")).text

    cached.llm, cached.abort, stats = ScriptedLLM(slow), abort, RunStats()
    programs = questions(1, fails_first) if taken else [*questions(1, waits), (Question("q9", "?"), fails_first)]
    outcomes = run_streaming(programs, resources(cached, graph=fail), (llm, cached), stats=stats)
    assert isinstance(outcomes[-1].error, RequestFailed)
    asked = [request.prompt for request in cached.llm.calls]
    assert len(cached) == len(asked) == 1 and asked[0] == ("late" if taken else "begins the only worker")
    assert stats.n_late_calls == (1 if taken else 2)
    usage, lost = outcomes[-1].usage, stats.stages["(cancelled)"]
    assert usage.llm_calls == lost.llm_calls == taken, "a request that never ran is no call"
    assert usage.generated_tokens == lost.generated_tokens and (lost.generated_tokens > 0) == taken


def all_steps() -> list[Step]:
    found: dict[int, Step] = {}
    for package in (gpu_rag.program, gpu_rag.methods):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found.update({id(value): value for value in values if isinstance(value, Step)})
    return list(found.values())


def twice(steps: list[Step]) -> list[str]:
    names = [step.name for step in steps]
    return sorted({name for name in names if names.count(name) > 1})


def test_every_step_has_a_name_of_its_own_and_a_docstring() -> None:
    steps = all_steps()
    assert {"llm", "embed", "similarity", "search_dense", "search_bm25", "rank_by_graph"} <= {s.name for s in steps}
    assert twice(steps) == [] and [step.name for step in steps if not step.__doc__] == []
    assert {step.kind.resource for step in steps} == {"index", "models"}
    assert {step.kind.service for step in steps} == {*SERVICES}
    wrong = batched(Kind("index", "graph", 1), name="search_dense")(lambda index, queries: queries)
    assert twice([*steps, wrong]) == ["search_dense"]
