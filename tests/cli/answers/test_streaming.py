"""gpu-rag answer with --driver streaming: the rows of the rounds driver, durable as they come, with accounts."""

import re

import pytest


@pytest.fixture
def stream(answer):
    """stream(*options): `answer` by the streaming driver."""
    return lambda *options: answer("--driver", "streaming", *options)


def test_a_question_that_the_engine_names_as_its_killer_is_set_aside(driver, answer, out, cli, monkeypatch):
    from gpu_rag.errors import ModelError
    from gpu_rag.models.llm.replay import ReplayLLM

    plain = ReplayLLM.complete

    def complete(self, requests, on_reply=None):
        for request in requests:
            if "Who was mayor" in request.prompt:
                error = ModelError("the engine died over a request, again and again")
                error.request = request
                raise error
        return plain(self, requests, on_reply)

    monkeypatch.setattr(ReplayLLM, "complete", complete)
    result = answer("--driver", driver)
    assert result.status == 1 and "the engine died over a request" in result.error
    result = answer("--driver", driver, "--max-failures", 1, "--json")
    assert (result.status, result.document["failed"], result.document["n"]) == (0, 1, 5)
    rows = {row["id"]: row for row in cli.read_rows(out)}
    assert rows["q4"]["error"]["type"] == "SetAside" and rows["q4"]["config_hash"] == rows["q1"]["config_hash"]
    assert answer("--driver", driver, "--max-failures", 1, "--json").document["asked"] == 0


def test_the_accounts_of_a_run_add_up(driver, answer):
    document = answer("--driver", driver, "--json").document
    stages, llm, usage = document["stages"], document["llm"], document["usage"]
    assert list(stages) == ["rank_by_graph", "seed_facts", "read"]
    for name in ("llm_calls", "prompt_tokens", "cached_tokens", "generated_tokens", "llm_s", "embed_s", "graph_s"):
        assert sum(stage[name] for stage in stages.values()) == pytest.approx(usage[name])
    assert stages["read"]["llm_calls"] == 5 and stages["rank_by_graph"]["n_calls"] == 10
    assert llm["prefix_hit_rate"] == usage["cached_tokens"] / usage["prompt_tokens"]
    idle = sum(llm["idle_s"].values())
    assert llm["idle_share"] == pytest.approx(idle / (idle + llm["busy_s"]))
    assert llm["idle_s"]["ramp_up"] >= stages["rank_by_graph"]["graph_s"] * 0.9
    assert 0.999 * llm["busy_s"] <= llm["mean_open"] * (idle + llm["busy_s"]) and llm["mean_open"] <= 5


def test_a_run_without_requests_has_no_idle_share(answer, stream):
    answer()
    document = stream("--json").document
    assert document["llm"]["idle_share"] is None and document["llm"]["mean_open"] == 0
    assert document["stages"] == {} and document["llm"]["prefix_hit_rate"] is None
    assert "LLM: nothing was asked in this run" in stream().out


def test_the_summary_says_when_the_llm_was_idle(driver, answer):
    said = answer("--driver", driver).out
    assert re.search(r"LLM idle \d+\.\d % of \d+\.\d s, because: .*ramp-up \d+\.\d %.*requests open on average", said)
