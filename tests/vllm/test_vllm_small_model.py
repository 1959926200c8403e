"""The packaged model, converted, through vLLM in this process: the same as through transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.transformers import TransformersLLM
from gpu_rag.models.packaged import packaged_llm_folder
from gpu_rag.types import Rank, Reply, Request

SYSTEM = "Answer from the passage, in a few words."
PASSAGES = [
    "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling.",
    "Kerling is a town on the river Ves. Its mayor was Anna Stroud.",
    "The lighthouse of Tamsin was built in 1902.",
]
QUESTIONS = ["Who designed the Halden Bridge?", "Who was the mayor of Kerling?", "When was the lighthouse built?"]
OPTIONS = [
    ("yes", "no"),
    ("Marta Orlo", "Anna Stroud", "Marta Stroud", "the river Ves", "1902"),
    ("A", "B", "C", "D", "E", "F"),
]


@pytest.fixture(scope="module")
def plain() -> TransformersLLM:
    return TransformersLLM(packaged_llm_folder(), dtype="float32")


def requests(n_tokens: int = 16) -> list[Request]:
    return [Request(SYSTEM, f"{p}\n{q}", max_tokens=n_tokens) for p, q in zip(PASSAGES, QUESTIONS)]


def test_greedy_text_and_counts_are_those_of_transformers(small, plain):
    ours, theirs = small.complete(requests()), plain.complete(requests())
    for one, other in zip(ours, theirs, strict=True):
        assert (one.text, one.finish_reason, one.n_prompt) == (other.text, other.finish_reason, other.n_prompt)
        assert one.n_generated == other.n_generated
    assert "stop" in {reply.finish_reason for reply in ours}
    text = f"{PASSAGES[0]} <|im_end|> naïve 東京"
    assert small.count_tokens(text) == plain.count_tokens(text)
    assert small.capable is plain.capable is False


def test_rank_scores_and_order_are_those_of_transformers(small, plain):
    asked = [Request(SYSTEM, f"{p}\n{q}", Rank(o)) for p, q in zip(PASSAGES, QUESTIONS) for o in OPTIONS]
    for one, other in zip(small.complete(asked), plain.complete(asked), strict=True):
        assert isinstance(one, Reply) and isinstance(other, Reply)
        assert one.scores == pytest.approx(other.scores, abs=1e-2)
        assert _order(one.scores) == _order(other.scores)
        assert (one.text, one.finish_reason, one.n_prompt) == (other.text, "rank", other.n_prompt)
        shifted = [*other.scores[1:], other.scores[0]]  # the bound is narrow enough to tell options apart
        assert one.scores != pytest.approx(shifted, abs=1e-2)


def _order(scores: tuple[float, ...]) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def test_a_ranking_computes_its_prompt_once(small):
    long = " ".join(f"Line {i} of a new passage that nobody has read." for i in range(60))
    request = Request(SYSTEM, long, Rank(OPTIONS[1]))
    [first] = small.complete([request])
    [again] = small.complete([request])
    assert first.n_cached < 64 and again.n_cached > 500
    assert again.scores == pytest.approx(first.scores, abs=1e-2)


def test_the_spec_and_its_content(small):
    assert small.name == "vllm:smollm2"
    llm = load_llm("smollm2", dtype="float32")
    assert llm.content_hash != small.content_hash  # other code, other replies
    llm.close()


def test_text_is_handed_on_as_it_comes(small):
    seen: list[list[str]] = [[] for _ in PASSAGES]
    asked = [replace(request, on_text=some.append) for request, some in zip(requests(), seen, strict=True)]
    replies = small.complete([*asked, *requests()])  # those that stream and those that do not share batches
    for reply, other, texts in zip(replies, replies[3:], seen, strict=False):
        assert reply.text == other.text and len(texts) > 2 and texts[-1] == reply.text
        assert all(reply.text.startswith(text) for text in texts)
