"""Models on real workers: an embedder's bits, replies, deaths, poison, refusals, the streaming face."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_rag.cluster.models import RayEmbedder, RayLLM
from gpu_rag.cluster.worker import LLMWorker
from gpu_rag.errors import BadInput, Cancelled, ModelError, RequestFailed, UsageError
from gpu_rag.models.embed.cache import CachedEmbedder
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.cache import CachedLLM
from gpu_rag.models.llm.interface import StreamingLLM
from gpu_rag.types import Choice, Reply, Request

pytestmark = pytest.mark.ray


def ask(prompt: str, **changes: Any) -> Request:
    return Request("Answer shortly.", prompt, **changes)


def echo():
    return lambda request: f"said {request.prompt}"


def holding(marks: Path):
    """Answers at once, but to a prompt "hold ...": that leaves the number of its process, and waits to be let go."""

    def answer(request: Request) -> str:
        import os
        import time
        from pathlib import Path

        if request.prompt.startswith("hold"):
            mark = Path(marks) / request.prompt.replace(" ", "-")
            while (mark.parent / "later").exists():
                time.sleep(0.01)
            (mark.parent / "writing").write_text(str(os.getpid()))
            (mark.parent / "writing").rename(mark)
            while not (mark.parent / "go").exists():
                time.sleep(0.01)
        if request.prompt == "kill":
            os.kill(os.getpid(), 9)
        return f"said {request.prompt}"

    return answer


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_every_reply_comes_once_in_order_from_all_workers(pools, all_ready) -> None:
    def answer(request: Request) -> str:
        import os

        return f"{request.prompt} by {os.getpid()}"

    pool = pools.llm(answer, window=8)
    all_ready(pool)
    llm, seen = RayLLM(pool), dict[int, Any]()
    requests = [ask(f"question {i}", max_tokens=5 + i) for i in range(100)]
    replies = llm.complete(requests, lambda i, reply: seen.setdefault(i, reply))
    assert [seen[i] for i in range(100)] == replies
    assert [reply.text.partition(" by ")[0] for reply in replies] == [request.prompt for request in requests]
    assert len({reply.text.partition(" by ")[2] for reply in replies}) == 2
    assert llm.complete([]) == []
    assert (llm.name, llm.context_tokens, llm.capable, llm.count_tokens("12 letters")) == ("scripted", 8192, True, 4)
    assert isinstance(llm, StreamingLLM)


def test_constraints_failures_and_scores_cross_the_wire(pools) -> None:
    def answer(request: Request) -> Any:
        if request.prompt == "refuse":
            return RequestFailed("no", given="3", do="ask again")
        return "blue" if request.constraint else Reply("x", "length", 1, 2, 3, (0.1, -0.30000000000000004))

    llm = RayLLM(pools.llm(answer, n=1))
    replies = llm.complete([ask("refuse"), ask("which", constraint=Choice(("red", "blue"))), ask("scores")])
    assert isinstance(replies[0], RequestFailed) and str(replies[0]) == "no; given 3; ask again"
    assert replies[0].given == "3" and replies[1].text == "blue"
    assert replies[2] == Reply("x", "length", 1, 2, 3, (0.1, -0.30000000000000004))


def test_the_work_of_a_killed_worker_is_done_by_others(pools, all_ready, until, marks) -> None:
    pool = pools.llm(holding(marks), window=4)
    all_ready(pool)
    llm = RayLLM(pool)
    requests = [ask("hold this"), *(ask(f"question {i}") for i in range(30))]
    for key, request in enumerate(requests):
        llm.submit(key, request)
    found = dict[int, Any]()
    until((marks / "hold-this").exists, lambda: found.update(llm.poll(0.1)))
    os.kill(int((marks / "hold-this").read_text()), signal.SIGKILL)
    (marks / "go").touch()
    until(lambda: not llm.n_open, lambda: found.update(llm.poll(0.5)))
    assert [found[key].text for key in range(31)] == [f"said {request.prompt}" for request in requests]
    assert pool.describe()["deaths"] == 1


def test_a_request_that_kills_workers_is_set_aside_and_nothing_else(pools, all_ready) -> None:
    pool = pools.llm(holding(Path()), window=40)
    all_ready(pool)
    requests = [ask(f"question {i}") for i in range(40)]
    requests[17] = ask("kill")
    replies = RayLLM(pool).complete(requests)
    assert isinstance(replies[17], RequestFailed) and "workers died" in str(replies[17])
    assert [r.text for i, r in enumerate(replies) if i != 17] == [f"said question {i}" for i in range(40) if i != 17]
    assert 2 <= pool.describe()["deaths"] <= 4


def test_an_engine_that_gives_up_is_a_death_with_its_reason(pools) -> None:
    def answer(request: Request) -> str:
        from gpu_rag.errors import ModelError

        if request.prompt == "large":
            raise ModelError("the device ran out of memory")
        return "fine"

    replies = RayLLM(pools.llm(answer, n=1)).complete([ask("small"), ask("large")])
    assert replies[0].text == "fine"
    assert isinstance(replies[1], RequestFailed) and "the device ran out of memory" in str(replies[1])


def test_without_restarts_the_run_ends_and_keeps_what_it_has(pools, all_ready, until, marks, tmp_path) -> None:
    pool = pools.llm(holding(marks), n=2, window=1, restarts=0)
    all_ready(pool)
    llm = CachedLLM(RayLLM(pool), tmp_path / "replies.sqlite")
    requests = [ask("kill"), ask("hold it"), *(ask(f"question {i}") for i in range(4))]
    (marks / "go").touch()
    with pytest.raises(ModelError, match="no worker of the llm is left.*scale.restarts=0.*run again"):
        while True:
            llm.complete(requests)
            requests.append(ask("kill", seed=len(requests), temperature=1.0))
    assert len(llm) >= 1
    with pytest.raises(ModelError, match="no worker"):
        llm.complete([ask("another")])


def test_workers_with_different_models_are_refused(pools, until) -> None:
    def name() -> str:
        import os

        return f"model of {os.getpid()}"

    pool = pools.llm(echo(), name=name)
    with pytest.raises(ModelError, match="the workers of the llm differ; given name model of .*; expected model of"):
        until(lambda: False, lambda: pool.pump(0.2))


def test_what_loading_raises_comes_back_as_itself(pools) -> None:
    def missing() -> None:
        from gpu_rag.errors import BadInput

        raise BadInput("no such model on this disk", given="m", do="fetch it")

    with pytest.raises(BadInput, match="no such model on this disk; given m; fetch it"):
        pools.built(missing, actor=LLMWorker)
    with pytest.raises(ModelError, match="a worker of the llm failed; given ZeroDivisionError"):
        pools.built(lambda: 1 // 0, actor=LLMWorker)


def test_a_pool_that_no_node_has_room_for_says_so(local_ray) -> None:
    from gpu_rag.cluster.pool import Plan, Pool
    from gpu_rag.settings.sections import ScaleSettings

    plan = Plan("llm", LLMWorker, lambda: None, 1, 1.0, 999.0)
    wanted = "no worker of the llm was ready within .*1 with 1 CPUs and 999 GPUs each; the cluster has 1 node,"
    with pytest.raises(ModelError, match=wanted):
        Pool(ScaleSettings(address="local", start_seconds=1.0), plan)


def test_an_engine_that_does_not_come_up_again_is_a_death_and_the_others_go_on(pools, until, marks) -> None:
    def build():
        import os
        import time

        from gpu_rag.cluster.worker import Loaded
        from gpu_rag.errors import ModelError
        from gpu_rag.models.llm.scripted import ScriptedLLM

        try:
            os.close(os.open(f"{marks}/first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            while not os.path.exists(f"{marks}/go"):
                time.sleep(0.01)
            raise ModelError("the GPU has no room") from None
        return Loaded(ScriptedLLM(lambda request: "fine"), 4)

    pool = pools.built(build, actor=LLMWorker, restarts=1)
    (marks / "go").touch()
    until(lambda: pool.describe()["deaths"] == 2, lambda: pool.pump(0.2))
    assert [reply.text for reply in RayLLM(pool).complete([ask("a"), ask("b")])] == ["fine", "fine"]
    assert pool.describe() == {**pool.describe(), "workers": 2, "joined": 1}


# --- the streaming face ----------------------------------------------------------------------------


def test_the_streaming_face_keeps_its_promises(pools, until, marks) -> None:
    llm = RayLLM(pools.llm(holding(marks), n=1, window=2))
    assert llm.poll(0.0) == [] and llm.n_open == 0
    for key, prompt in ((7, "hold a"), (3, "hold b"), (9, "hold c"), (1, "d")):
        llm.submit(key, ask(prompt))
    with pytest.raises(UsageError, match="key 3"):
        llm.submit(3, ask("again"))
    found = dict[int, Any]()
    until((marks / "hold-a").exists, lambda: found.update(llm.poll(0.05)))
    llm.abort(9)  # waits here: ends at once
    llm.abort(7)  # runs: comes back with its reply
    llm.abort(1000)
    (marks / "go").touch()
    until(lambda: not llm.n_open, lambda: found.update(llm.poll(0.5)))
    assert {key: getattr(reply, "text", "aborted") for key, reply in found.items()} == {
        7: "said hold a",
        3: "said hold b",
        9: "aborted",
        1: "said d",
    }
    assert "aborted" in str(found[9]) and llm.poll(0.0) == []


def test_a_dead_pool_hands_out_what_it_has_and_then_says_so(pools, until) -> None:
    llm = RayLLM(pools.llm(holding(Path()), n=1, window=1, restarts=0))
    llm.submit(1, ask("good"))
    llm.submit(2, ask("kill"))
    found = dict[int, Any]()
    with pytest.raises(ModelError, match="no worker of the llm is left"):
        until(lambda: False, lambda: found.update(llm.poll(0.5)))
    assert found[1].text == "said good" and llm.n_open == 1


def test_closing_ends_open_requests_and_processes(pools, until, marks) -> None:
    pool = pools.llm(holding(marks), n=1)
    llm = RayLLM(pool)
    llm.submit(1, ask("hold on"))
    until((marks / "hold-on").exists, lambda: llm.poll(0.05))
    pid = int((marks / "hold-on").read_text())
    llm.close()
    until(lambda: has_ended(pid))
    with pytest.raises(Cancelled):
        llm.complete([ask("more")])
    llm.close()


TEXTS = [f"town {i} lies on the river {'and its bank ' * (i % 7)}" for i in range(60)]


def hashing():
    return HashEmbedder


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_vectors_are_those_of_the_local_embedder_bit_by_bit(pools, all_ready, batch: int) -> None:
    pool = pools.built(HashEmbedder)
    all_ready(pool)
    here, there = HashEmbedder(), RayEmbedder(pool, batch)
    assert (there.name, there.content_hash, there.dim, there.device) == ("hash", here.content_hash, 256, "cpu")
    texts = [*TEXTS, TEXTS[3], "", TEXTS[3]]
    told: list[int] = []
    vectors = there.embed(texts, told.append)
    assert vectors.dtype == np.float32 and np.array_equal(vectors, here.embed(texts))
    assert told == sorted(told) and told[-1] == 61 and len(told) == -(-61 // batch)  # distinct texts
    assert there.embed([]).shape == (0, 256)


def test_minilm_on_workers_gives_the_bits_of_minilm_here(pools, all_ready) -> None:
    def build():
        from gpu_rag.models.embed import load_embedder

        return load_embedder("minilm")

    from gpu_rag.models.embed import load_embedder

    pool = pools.built(build)
    all_ready(pool)
    here, there = load_embedder("minilm"), RayEmbedder(pool, 5)
    texts = [*TEXTS[:20], "a long text of many words " * 100]
    assert np.array_equal(there.embed(texts), here.embed(texts))
    assert there.content_hash == here.content_hash
    assert there.n_truncated == here.n_truncated == 1


def test_what_was_finished_before_the_end_is_kept(pools, tmp_path) -> None:
    def build():
        import os

        from gpu_rag.models.embed.hashing import HashEmbedder

        class Fragile(HashEmbedder):
            def embed(self, texts, on_batch=None):
                if any("poison" in text for text in texts):
                    os.kill(os.getpid(), 9)
                return super().embed(texts, on_batch)

        return Fragile()

    class Counting(HashEmbedder):
        n = 0

        def embed(self, texts, on_batch=None):
            self.n += len(texts)
            return super().embed(texts, on_batch)

    texts = [*TEXTS[:10], "poison " * 100]  # the longest comes last
    path = tmp_path / "cache.vectors"
    remote = CachedEmbedder(RayEmbedder(pools.built(build, n=1), 1), path, 2**30)
    with pytest.raises(ModelError, match="texts could not be embedded; given 1 texts, the first 'poison"):
        remote.embed(texts)
    remote.close()
    here = Counting()
    again = CachedEmbedder(here, path, 2**30)
    assert np.array_equal(again.embed(texts), HashEmbedder().embed(texts))
    assert here.n == 1  # nothing but the poison was left to do


def test_workers_that_compute_other_bits_are_refused(pools, until) -> None:
    def build():
        import os

        from gpu_rag.models.embed.hashing import HashEmbedder

        class Own(HashEmbedder):
            def embed(self, texts, on_batch=None):
                vectors = super().embed(texts, on_batch)
                return vectors * (1 + 2e-7 * os.getpid())  # f32 tells any two numbers of processes apart

        return Own()

    pool = pools.built(build)
    with pytest.raises(ModelError, match="the workers of the embedder differ; given bits"):
        until(lambda: False, lambda: pool.pump(0.2))
