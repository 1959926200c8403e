"""Programs and models: a request with one repair, a choice by each decider, the packer, and their steps."""

import json
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from toy_steps import pairs

from gpu_rag.errors import BadInput, ContextOverflow, RequestFailed, UsageError
from gpu_rag.models import pack as packer
from gpu_rag.models.ask import Ask, Choose, Packed
from gpu_rag.models.pack import pack
from gpu_rag.program.choose import best, option_labels
from gpu_rag.program.decide import decide, decider_of
from gpu_rag.program.embed import embed
from gpu_rag.program.kinds import Models
from gpu_rag.program.replies import Form, reply_to
from gpu_rag.program.run import Run
from gpu_rag.runtime import RunStats, gather, request_seed, run_rounds
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.structs import schema_of
from gpu_rag.types import Choice, JsonSchema, Rank, Reply

ASK = Prompt.parse("ask", "You answer.\n=== question ===\nQuestion: {{question}}")
READ = Prompt.parse("read", "You read.\n=== question ===\n{{evidence}}\nQuestion: {{question}}")
PICK = Prompt.parse("pick", "You pick what helps.\n=== question ===\n{{question}}\n{{options}}")
COLOURS = ["a red bird", "a blue fish", "a green tree"]


class Number(Struct):
    n: int


SCHEMA = schema_of(Number)
UNREAD = "unread"


async def ask(run, prompt, fields, *, max_tokens, reply=str, evidence=None, name="ask"):
    """A reply of any model."""
    slots = {**fields, **({} if evidence is None else {"evidence": Packed(evidence)})}
    shown = {"prompt": lambda: prompt, "show": lambda: slots}
    decision = Ask(name, reply, rule=lambda: UNREAD, unread=lambda: UNREAD, reads="any", **shown)
    return await decide(run, decision, max_tokens=max_tokens)


@dataclass
class WordLLM:
    """Tokens are words. `answer(request)` is a text, a Reply or a RequestFailed."""

    answer: object = "yes"
    capable: bool = True
    context_tokens: int = 10_000
    name: str = "words"
    content_hash: str = "0" * 64
    requests: list = field(default_factory=list)

    def count_tokens(self, text):
        return len(text.split())

    def complete(self, requests, on_reply=None):
        self.requests += requests
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        said = self.answer(request) if callable(self.answer) else self.answer
        if not isinstance(said, str):
            return said
        n = self.count_tokens(request.system) + self.count_tokens(request.prompt)
        return Reply(said, "stop", n, 1, self.count_tokens(said))

    def close(self):
        pass


class ToyEmbedder:
    """A unit vector by the first colour word; what was embedded is logged."""

    name, content_hash, dim, device, n_truncated, row_identical = "toy", "1" * 64, 3, "cpu", 0, True

    def __init__(self):
        self.log = []

    def embed(self, texts, on_batch=None):
        self.log.append(list(texts))
        rows = np.array([[("red" in t) + 0.1, ("blue" in t) + 0.1, ("green" in t) + 0.1] for t in texts], np.float32)
        rows = rows.reshape(-1, 3)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def run_all(*programs, llm=None, embedder=None, stats=None, decider="auto", **setting):
    """Outcomes of programs of a Run."""
    models = Models(llm, embedder or ToyEmbedder(), **setting)

    def bound(program):
        return lambda ctx: program(Run(ctx, None, models, decider_of(decider, llm), None, 5))

    return run_rounds(pairs(map(bound, programs)), {"models": models}, stats=stats, run_seed=5)


def outcome_of(program, llm=None, embedder=None, **setting):
    """Outcome of one program."""
    return run_all(program, llm=llm, embedder=embedder, **setting)[0]


def hashed(text):
    return Reply(text, "stop", 0, 0, 0).hash


def steps(outcome):
    return [(s.verb, s.n_candidates, s.chosen, s.reply_hash) for s in outcome.trace]


def test_ask_returns_the_text_and_books_its_cost():
    async def program(run):
        return await ask(run, ASK, {"question": "who?"}, max_tokens=9)

    llm = WordLLM("Ada Lovelace")
    outcome = outcome_of(program, llm)
    (request,) = llm.requests
    assert outcome.draft == "Ada Lovelace"
    assert (request.system, request.prompt, request.constraint) == ("You answer.", "Question: who?", None)
    assert (request.max_tokens, request.attempt, request.temperature) == (9, 0, 0.0)
    assert request.seed == request_seed(5, "q0", (0,), 0)
    usage = outcome.usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (1, 4, 1, 2)
    assert steps(outcome) == [("ask", 0, (), hashed("Ada Lovelace"))]
    assert hashed("Ada Lovelace") == "a69a9f8a4684" and usage.llm_s > 0 and outcome.trace[0].s > 0


async def ask_number(run):
    return await ask(run, ASK, {"question": "how many?"}, reply=Number, max_tokens=9, name="count")


def test_ask_under_a_schema_reads_json():
    outcome = outcome_of(ask_number, WordLLM('```json\n{"n": 3}\n```'))
    assert outcome.draft == Number(3) and outcome.usage.malformed == 0
    assert [s.verb for s in outcome.trace] == ["count"]


def test_a_malformed_reply_gets_one_repair_try():
    llm = WordLLM(lambda request: '{"n": 4}' if request.attempt else '{"n": "four"}')
    outcome = outcome_of(ask_number, llm)
    first, second = llm.requests
    assert outcome.draft == Number(4) and outcome.usage.malformed == 1 and outcome.usage.llm_calls == 2
    assert (first.attempt, second.attempt) == (0, 1) and first.constraint == second.constraint == JsonSchema(SCHEMA)
    assert second.prompt.startswith(first.prompt) and "'four' is not of type 'integer'" in second.prompt
    assert (first.seed, second.seed) == (request_seed(5, "q0", (0,), 0), request_seed(5, "q0", (0,), 1))
    assert steps(outcome) == [("count/malformed", 0, (), hashed('{"n": "four"}')), ("count", 0, (), hashed('{"n": 4}'))]


def test_two_malformed_replies_leave_what_stands_in_for_them():
    outcome = outcome_of(ask_number, WordLLM("no idea"))
    assert outcome.draft == UNREAD and outcome.error is None
    assert outcome.usage.malformed == 2 and outcome.usage.fallbacks == {"count/rule": 1}
    assert [s.verb for s in outcome.trace] == ["count/malformed", "count/malformed", "count"]


def test_a_cut_reply_says_so_and_a_repair_that_does_not_fit_repeats_the_prompt():
    cut = Reply('{"n": ', "length", 5, 0, 9)
    llm = WordLLM(lambda request: '{"n": 1}' if request.attempt else cut)
    assert outcome_of(ask_number, llm).draft == Number(1)
    assert "cut off at 9 tokens" in llm.requests[1].prompt
    tight = WordLLM(lambda request: '{"n": 1}' if request.attempt else cut, context_tokens=16)
    assert outcome_of(ask_number, tight).draft == Number(1)
    assert tight.requests[1].prompt == tight.requests[0].prompt and tight.requests[1].attempt == 1


def test_a_failed_request_is_raised_and_its_call_counted():
    async def program(run):
        with pytest.raises(RequestFailed, match="too odd"):
            await ask(run, ASK, {"question": "x"}, max_tokens=9)
        return "fallback"

    outcome = outcome_of(program, WordLLM(RequestFailed("too odd")))
    assert outcome.draft == "fallback" and outcome.usage.llm_calls == 1


def test_ask_with_evidence_counts_what_is_cut():
    async def program(run):
        return await ask(run, READ, {"question": "q?"}, max_tokens=10, evidence=["one two three", "four five six"])

    llm = WordLLM("ok", context_tokens=18)  # 10 reply, 2 + 2 prompt: room for 4
    outcome = outcome_of(program, llm)
    assert llm.requests[0].prompt == "one two three\n\nfour\nQuestion: q?" and outcome.usage.cut == 2


def test_requests_with_one_system_part_reach_the_engine_together():
    async def program(run):
        even = int(run.ctx.question.id[1]) % 2 == 0
        prompt, fields = (ASK, {"question": run.ctx.question.id}) if even else (READ, {"question": "r", "evidence": ""})
        return await ask(run, prompt, fields, max_tokens=9)

    llm, stats = WordLLM(lambda request: request.prompt), RunStats()
    outcomes = run_all(*[program] * 6, llm=llm, stats=stats)
    assert [r.system for r in llm.requests] == ["You answer."] * 3 + ["You read."] * 3
    assert [o.draft for o in outcomes[::2]] == [f"Question: q{i}" for i in (0, 2, 4)], "replies go back to their own"
    assert stats.steps["llm"].batch_sizes == {6: 1}


def test_an_engine_that_loses_replies_is_named():
    async def program(run):
        return await reply_to(run, ASK, "x", Form("ask", None, 9, 0.0))

    llm = WordLLM()
    with patch.object(llm, "complete", lambda requests: []):
        assert "words lost replies; given 0; expected 1 replies" in str(outcome_of(program, llm).error)


def test_embed_gives_each_its_rows_and_embeds_a_text_once():
    async def program(run):
        rows, other, empty = await gather(embed(["red", "blue", "red"]), embed(["blue"]), embed([]))
        return rows, other, empty

    embedder = ToyEmbedder()
    outcome = outcome_of(program, None, embedder)
    rows, other, empty = outcome.draft
    assert embedder.log == [["red", "blue"]]
    assert rows.shape == (3, 3) and empty.shape == (0, 3)
    assert np.array_equal(rows[0], rows[2]) and np.array_equal(rows[1], other[0])
    assert rows[0].argmax() == 0 and rows[1].argmax() == 1 and outcome.usage.embed_s > 0


@pytest.mark.parametrize(("bad", "kind"), [(5, UsageError), ("\udc80", BadInput)])
def test_one_bad_text_does_not_fail_the_batch_of_others(bad, kind):
    async def program(run):
        return await embed(["red", bad] if run.ctx.question.id == "q1" else ["red"])

    outcomes = run_all(*[program] * 3)
    assert [type(o.error) for o in outcomes] == [type(None), kind, type(None)]


def chooser(options=COLOURS, **given):
    given.setdefault("query", "something blue")

    async def program(run):
        kept = {name: given[name] for name in ("k", "query", "scores", "threshold") if name in given}
        more = {"none": given.get("allow_none", False), "shuffled": given.get("shuffled", False)}
        choice = Choose("choose", lambda: PICK, lambda: {"question": "which?"}, **more)
        return await decide(run, choice, options=options, **kept)

    return program


def test_a_wrong_field_is_reported_though_rules_decide():
    async def program(run):
        return await decide(run, Choose("choose", lambda: PICK), options=COLOURS, scores=[0, 1, 0], quest="which?")

    assert isinstance(outcome_of(program).error, UsageError)


def check_choice(outcome, chosen, how, options=COLOURS):
    assert outcome.error is None, outcome.error
    assert outcome.draft == chosen
    last = outcome.trace[-1]
    assert (last.verb, last.n_candidates) == (f"choose/{how}", len(options))
    assert last.chosen == tuple(options[i] for i in chosen)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, [1]),
        ({"k": 2}, [1, 0]),
        ({"k": 9}, [1, 0, 2]),
        ({"query": "nothing"}, [0]),
        ({"k": 9, "allow_none": True, "threshold": 0.5}, [1]),
        ({"k": 9, "allow_none": True, "threshold": 1.0, "query": "all alike"}, []),
        ({"scores": [0.1, 0.2, 0.9], "k": 2}, [2, 1]),
        ({"scores": [3, 7, 7], "k": 3, "allow_none": True, "threshold": 5}, [1, 2]),
    ],
)
def test_similarity_takes_the_best_by_cosine_or_by_given_scores(given, chosen):
    embedder = ToyEmbedder()
    outcome = outcome_of(chooser(**given), None, embedder)
    check_choice(outcome, chosen, "rule")
    assert all(step.reply_hash == "" for step in outcome.trace) and bool(embedder.log) == ("scores" not in given)


def test_auto_needs_a_capable_model():
    llm = WordLLM("B", capable=True)
    check_choice(outcome_of(chooser(), llm), [1], "model")
    small = WordLLM("B", capable=False)
    check_choice(outcome_of(chooser(), small), [1], "rule")
    assert small.requests == []
    check_choice(outcome_of(chooser(), llm, decider="rule"), [1], "rule")


@pytest.mark.parametrize(("name", "fact"), [("model", "language model"), ("best", "best")])
def test_deciders_that_make_no_sense(name, fact):
    with pytest.raises(UsageError) as error:
        decider_of(name, None)
    assert fact in str(error.value)


def test_a_capable_model_chooses_among_labels():
    llm = WordLLM("C")
    outcome = outcome_of(chooser(), llm)
    check_choice(outcome, [2], "model")
    assert llm.requests[0].constraint == Choice(("A", "B", "C"))
    assert "A. a red bird\nB. a blue fish\nC. a green tree\nReply with" in llm.requests[0].prompt
    assert outcome.trace[-1].reply_hash == hashed("C")


def test_a_capable_model_may_choose_none():
    llm = WordLLM("none")
    check_choice(outcome_of(chooser(allow_none=True), llm), [], "model")
    assert llm.requests[0].constraint.options == ("A", "B", "C", "none")
    assert "\nnone. none of these\n" in llm.requests[0].prompt
    check_choice(outcome_of(chooser(options=["a red bird"], allow_none=True), llm), [], "model", ["a red bird"])


def test_a_capable_model_ranks_up_to_k_labels():
    llm = WordLLM('{"chosen": ["C", "A", "C"]}')
    check_choice(outcome_of(chooser(k=3), llm), [2, 0], "model")
    schema = json.loads(llm.requests[0].constraint.schema)["properties"]["chosen"]
    assert (schema["items"]["enum"], schema["minItems"], schema["maxItems"]) == (["A", "B", "C"], 1, 3)
    check_choice(outcome_of(chooser(k=2, allow_none=True), WordLLM('{"chosen": []}')), [], "model")


@pytest.mark.parametrize("k", [1, 2])
def test_an_unreadable_choice_is_repaired_once_then_falls_back_to_similarity(k):
    good = "A" if k == 1 else '{"chosen": ["A"]}'
    llm = WordLLM(lambda request: good if request.attempt else "D")
    outcome = outcome_of(chooser(k=k), llm)
    check_choice(outcome, [0], "model")
    assert outcome.usage.malformed == 1 and [s.verb for s in outcome.trace] == ["choose/malformed", "choose/model"]
    assert [r.seed for r in llm.requests] == [request_seed(5, "q0", (0,), a) for a in (0, 1)]
    outcome = outcome_of(chooser(k=k), WordLLM('{"chosen": []}'))
    check_choice(outcome, [1, 0][:k], "fallback")
    assert outcome.usage.malformed == 2 and outcome.usage.llm_calls == 2


@pytest.mark.parametrize(
    ("k", "said", "chosen"),
    [
        (1, "a blue fish", [1]),
        (1, "`B. a blue fish`", [1]),
        (2, '{"chosen": ["a green tree", "A. a red bird"]}', [2, 0]),
        (2, '{"chosen": ["a green tree", "B"]}', [2, 1]),
    ],
)
def test_an_option_written_out_is_its_label(k, said, chosen):
    outcome = outcome_of(chooser(k=k), WordLLM(said))
    check_choice(outcome, chosen, "model")
    assert outcome.usage.fallbacks == {"choose/lenient": 1} and outcome.usage.llm_calls == 1


def test_a_list_of_labels_is_shown_by_an_example():
    llm = WordLLM('{"chosen": ["C"]}')
    outcome_of(chooser(k=3), llm)
    assert llm.requests[0].prompt.endswith('labels of 1 to 3 options, the best first, as in {"chosen": ["B", "C"]}')


@pytest.mark.parametrize("capable", [True, False])
def test_mixed_options_are_shown_in_random_order_and_the_nearest_are_kept(capable):
    firsts, lasts = [], []
    for i in range(40):
        options = [f"option {i} {j} " + "and so on " * 3 for j in range(8)]
        llm = WordLLM("A" if capable else rank_reply(-1.0, *[-2.0] * 7), capable=capable)
        outcome = outcome_of(chooser(options=options, shuffled=True), llm, decider="model")
        listed = [line for line in llm.requests[0].prompt.splitlines() if f"option {i} " in line]
        assert len(listed) == 8 and " ".join(options[outcome.draft[0]].split()) in listed[0]
        firsts.append(outcome.draft[0])
        small = WordLLM("A" if capable else rank_reply(*[-1.0] * 8), capable=capable, context_tokens=60)
        outcome_of(chooser(options=options, shuffled=True), small, decider="model")
        lasts.append({j for j in range(8) if f"option {i} {j} " in small.requests[0].prompt})
    assert len(set(firsts)) > 5 and firsts.count(0) < 15
    assert all(kept == set(range(len(kept))) and 0 < len(kept) < 8 for kept in lasts)


def rank_reply(*scores):
    return lambda request: Reply("?", "rank", 5, 0, 0, tuple(scores))


@pytest.mark.parametrize(
    ("given", "scores", "chosen"),
    [
        ({}, (-3.0, -2.0, -1.0), [2]),
        ({"k": 2}, (-1.0, -2.0, -1.0), [0, 2]),
        ({"k": 3, "allow_none": True}, (-1.0, -2.0, -1.5, -1.5), [0]),
        ({"allow_none": True}, (-1.0, -2.0, -1.5, -0.5), []),
    ],
)
def test_a_small_model_ranks_options_by_their_scores(given, scores, chosen):
    llm = WordLLM(rank_reply(*scores), capable=False)
    check_choice(outcome_of(chooser(**given), llm, decider="model"), chosen, "rank")
    none = ("none of these",) if given.get("allow_none") else ()
    assert llm.requests[0].constraint == Rank((*COLOURS, *none))
    assert "- a red bird\n- a blue fish" in llm.requests[0].prompt


def test_an_engine_without_scores_is_given_labels_and_then_similarity():
    def answer(request):
        return rank_reply(-1.0)(request) if isinstance(request.constraint, Rank) else says

    says = "B"
    check_choice(outcome_of(chooser(), WordLLM(answer, capable=False), decider="model"), [1], "model")
    says = "no label"
    outcome = outcome_of(chooser(), WordLLM(answer, capable=False), decider="model")
    check_choice(outcome, [1], "fallback")
    assert outcome.usage.fallbacks == {"choose/rule": 1} and outcome.usage.malformed == 3


def test_choices_that_need_nobody():
    llm = WordLLM("A")
    assert outcome_of(chooser(options=[]), llm).draft == []
    check_choice(outcome_of(chooser(options=["only"]), llm), [0], "only", ["only"])
    assert llm.requests == []


def test_options_that_do_not_fit_cannot_be_chosen_and_are_counted():
    llm = WordLLM(lambda request: request.constraint.options[-1], context_tokens=60)
    options = [f"option number {i} " + "and so on " * 3 for i in range(8)]
    outcome = outcome_of(chooser(options=options), llm)
    shown = len(llm.requests[0].constraint.options)
    assert 0 < shown < 8 and outcome.draft == [shown - 1] and outcome.usage.cut > 0
    tiny = WordLLM("A", context_tokens=24)
    assert type(outcome_of(chooser(options=options), tiny).error) is ContextOverflow


def test_labels_have_one_length_and_are_distinct():
    for n in (1, 26, 27, 99, 100, 1000):
        labels = option_labels(n)
        assert len(set(labels)) == n and len({len(label) for label in labels}) == 1
    assert option_labels(3) == ["A", "B", "C"] and option_labels(100)[:2] == ["001", "002"]


def check_best(ranked):
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.integers(0, 4, size=7).astype(np.float32)
        expected = [int(i) for i in np.lexsort((np.arange(7), -scores))]
        assert ranked(scores, 4) == expected[:4]
        assert ranked(scores, 7, 2.0) == [i for i in expected if scores[i] >= 2]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda scores, k, least=None: [int(i) for i in np.argsort(scores)[::-1][:k]],
        lambda scores, k, least=None: best(scores, k),
        lambda scores, k, least=None: best(scores, k, None if least is None else least + 0.5),
    ],
    ids=["ties reversed", "threshold ignored", "threshold moved"],
)
def test_wrong_rules_of_similarity_are_caught(wrong):
    check_best(best)
    with pytest.raises(AssertionError):
        check_best(wrong)


def check_pack(packer_, evidence, room):
    """The laws of packing for a model whose tokens are words; READ has 4 words beside its evidence."""
    llm = WordLLM(context_tokens=room + 4 + 10)
    text, n_kept, n_cut = packer_(READ, {"question": "q?"}, "evidence", evidence, llm=llm, max_tokens=10)
    total = sum(len(piece.split()) for piece in evidence)
    shown = text.removesuffix("\nQuestion: q?").split()
    assert llm.count_tokens(READ.system) + llm.count_tokens(text) + 10 <= llm.context_tokens
    assert shown == [word for piece in evidence for word in piece.split()][: len(shown)], "a prefix, in rank order"
    assert len(shown) == min(total, room), "as much as fits"
    assert n_cut == total - len(shown)
    ends = np.cumsum([0] + [len(piece.split()) for piece in evidence])
    assert n_kept == (len(evidence) if total <= room else int(np.searchsorted(ends, len(shown))))


pieces = st.lists(
    st.lists(st.sampled_from(["alpha", "beta", "Ω", "日本", "e\u0301t"]), min_size=1, max_size=6), max_size=6
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(pieces.map(lambda lists: [" ".join(words) for words in lists]), st.integers(0, 20))
def test_the_packer_keeps_its_laws(evidence, room):
    evidence = [piece.replace("日本", "nihon") for piece in evidence]  # scripts without spaces have their own test
    check_pack(pack, evidence, room)


def keeps_whole_pieces_only(prompt, fields, slot, evidence, *, llm, max_tokens):
    with patch.object(packer, "_cut", lambda *args: ("", 0)):
        return pack(prompt, fields, slot, evidence, llm=llm, max_tokens=max_tokens)


def keeps_the_last(prompt, fields, slot, evidence, *, llm, max_tokens):
    text, n, cut = pack(prompt, fields, slot, evidence[::-1], llm=llm, max_tokens=max_tokens)
    return text, n, cut


def forgets_the_reply(prompt, fields, slot, evidence, *, llm, max_tokens):
    return pack(prompt, fields, slot, evidence, llm=llm, max_tokens=1)


def counts_nothing(prompt, fields, slot, evidence, *, llm, max_tokens):
    return (*pack(prompt, fields, slot, evidence, llm=llm, max_tokens=max_tokens)[:2], 0)


@pytest.mark.parametrize("wrong", [keeps_whole_pieces_only, keeps_the_last, forgets_the_reply, counts_nothing])
def test_wrong_packers_are_caught(wrong):
    evidence = ["one two three", "four five six", "seven"]
    check_pack(pack, evidence, 5)
    with pytest.raises(AssertionError):
        check_pack(wrong, evidence, 5)


class SuperadditiveLLM(WordLLM):
    """The whole has more tokens than its parts, as some tokenizers give: one more for each blank line."""

    def count_tokens(self, text):
        return len(text.split()) + 2 * max(0, text.count("\n\n") - 1)


def test_a_tokenizer_that_does_not_add_up_still_fits():
    llm = SuperadditiveLLM(context_tokens=40)
    evidence = ["one two three"] * 12
    text, n_kept, _ = pack(READ, {"question": "q?"}, "evidence", evidence, llm=llm, max_tokens=10)
    assert llm.count_tokens(READ.system) + llm.count_tokens(text) <= 30 and n_kept >= 3


class CharLLM(WordLLM):
    def count_tokens(self, text):
        return len(text)


def test_scripts_without_spaces_are_cut_between_characters():
    llm = CharLLM(context_tokens=60)
    text, n_kept, n_cut = pack(READ, {"question": "q?"}, "evidence", ["日本語の文章" * 20], llm=llm, max_tokens=10)
    shown = text.removesuffix("\nQuestion: q?")
    assert n_kept == 1 and shown and ("日本語の文章" * 20).startswith(shown) and n_cut > 0
    assert len(READ.system) + len(text) <= 50 and len(READ.system) + len(text) >= 47


def test_a_prompt_that_does_not_fit_without_evidence_names_the_sizes():
    with pytest.raises(
        ContextOverflow, match=r"read does not fit .* given 4 tokens and 10 for the reply; expected <= 12"
    ):
        pack(READ, {"question": "q?"}, "evidence", ["x"], llm=WordLLM(context_tokens=12), max_tokens=10)
    with pytest.raises(UsageError, match="filled by the packer"):
        pack(READ, {"question": "q?", "evidence": "x"}, "evidence", [], llm=WordLLM(), max_tokens=10)


def test_a_short_prompt_asks_no_tokenizer():
    llm = WordLLM()
    with patch.object(llm, "count_tokens", side_effect=AssertionError("not needed")):
        text, n_kept, n_cut = pack(READ, {"question": "q?"}, "evidence", ["a", "b"], llm=llm, max_tokens=10)
    assert (text, n_kept, n_cut) == ("a\n\nb\nQuestion: q?", 2, 0)


def test_rules_decide_where_the_requests_of_a_run_are_spent():
    async def program(run):
        bounded, picked = replace(run, most_calls=3), []
        choice = Choose("pick", lambda: PICK, lambda: {"question": "?"})
        for _ in range(3):
            picked.append(await decide(bounded, choice, options=COLOURS, scores=[0.0, 1.0, 0.0]))
        read = Ask("read", str, rule=lambda: "", prompt=lambda: ASK, reads="any", max_tokens=9)
        return picked, await decide(bounded, read, question="who?"), await decide(run, read, question="who?")

    llm = WordLLM("A")
    outcome = outcome_of(program, llm)
    assert outcome.draft == ([[0], [0], [1]], "", "A")  # a third choice and its repair would be four requests
    assert outcome.usage.llm_calls == len(llm.requests) == 3
    assert [step[0] for step in steps(outcome)] == ["pick/model", "pick/model", "pick/rule", "read"]
