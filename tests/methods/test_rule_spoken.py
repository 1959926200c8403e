"""A model that says what the rules would say changes nothing: who decides is no part of a program."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hydrarag_case
import msgspec
import pytest

import gpu_rag
from gpu_rag.errors import UsageError
from gpu_rag.methods.registry import method_names
from gpu_rag.models.ask import Ask, Choose, Options, Taken
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.program.choose import NONE_LABEL, option_labels, shuffled
from gpu_rag.program.decide import MODEL, RULE
from gpu_rag.program.run import Run
from gpu_rag.types import Answer, Question, Request

QUESTIONS = [
    "Who taught the designer of the Halden Bridge?",
    "When was the University of Loss founded?",
    "the town on the river Ves",
]
METHODS = [name for name in method_names() if name != "auto"]
DIALOGUE = ("clarify", "plan", "seeker/action")
DECIDED = {
    "hoprag": ("hop",),
    "bubblerag": ("enough", "keywords", "specialise", "relax", "groups", "expand"),
    "higra-retriever": ("seeds",),
    "dual-agent": DIALOGUE,
    "higra-agent": (*DIALOGUE, "seeds"),
    "hydrarag": ("text_paths",),
    "hydrarag-e": ("predict",),
    "hybgrag": ("hybgrag_route", "hybgrag_module", "hybgrag_validator"),  # rules accept where they would comment
    "hybgrag-crag": ("crag_route", "crag_answer", "crag_validator", "crag_commentor"),
}


READ = {"hybgrag-crag": "Marta Orlo"}  # what the reader says: this method judges it


@dataclass
class Spoken:
    """A decider whose model says the rule's reply to every decision. replies: by the seed of the request, which tells
    gathered siblings apart. wrong: say another option in place of the first; instead: other replies, by decision."""

    wrong: bool = False
    instead: Mapping[str, Any] = field(default_factory=dict)
    read: str = ""  # what the reader says in any case
    replies: dict[int, str] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def engine(self) -> ScriptedLLM:
        return ScriptedLLM(lambda request: self._said(request), context_tokens=1 << 20)

    def _said(self, request: Request) -> str:
        return self.replies.get(request.seed) or self.read or read(request)  # reading is no decision

    def _speaks(self, run: Run, name: str, text: str) -> None:
        self.asked[name] += 1
        self.replies[run.ctx.request_seed(run.ctx.slot)] = text

    async def reply(self, run: Run, ask: Ask[Any], fields: Mapping[str, Any]) -> Taken:
        taken = await RULE.reply(run, ask, fields)
        text = taken.value if isinstance(taken.value, str) else msgspec.json.encode(taken.value).decode()
        self._speaks(run, ask.name, json.dumps(self.instead[ask.name]) if ask.name in self.instead else text)
        spoken = await MODEL.reply(run, ask, fields)
        assert spoken.by == "model", f"{ask.name}: the rule says what the reply cannot hold"
        assert (spoken.value == taken.value) == (ask.name not in self.instead)
        return spoken

    async def choice(self, run: Run, choose: Choose, options: Options, fields: Mapping[str, Any]) -> Taken:
        taken = await RULE.choice(run, choose, options, fields)
        n, labels = len(options.texts), option_labels(len(options.texts))
        order = shuffled(run, options.name, options.texts[0], n) if choose.shuffled else range(n)
        label_of = dict(zip(order, labels))  # as a model sees the options
        chosen = [label_of[i] for i in taken.value] or ([labels[-1]] if self.wrong else [])
        if self.wrong and labels[-1] not in chosen:  # beside the rule's where there is room
            chosen = [*chosen[: options.k - 1], labels[-1]]
        one = chosen[0] if chosen else NONE_LABEL
        self._speaks(run, choose.name, one if options.k == 1 else json.dumps({"chosen": list(dict.fromkeys(chosen))}))
        return await MODEL.choice(run, choose, options, fields)


def read(request: Request) -> str:
    """Reply of a reader, by its request alone: the first name of the passages that the question does not hold."""
    passages, question = request.prompt.rsplit("\n\nQuestion: ", 1)
    names = re.findall(r"[A-Z][a-z]+(?: [A-Z][a-z]+)+", passages.split("\n\n", 1)[-1])
    answer = next((name for name in names if name not in question), "unknown")
    if request.constraint is None:
        return answer
    return json.dumps({"evidence": "it stands there", "answers": [answer], "passages": [1]})


def row(answer: Answer) -> Any:
    """All of an answer but its costs and its notes, which say who decided."""
    assert answer.error is None, answer.error
    return replace(answer, trace=(), usage=None, config_hash="")  # type: ignore[arg-type]


def answers(
    index: gpu_rag.Index,
    method: str,
    decider: Any,
    llm: ScriptedLLM,
    settings: Mapping[str, Any],
    texts: Sequence[str] = QUESTIONS,
) -> list[Any]:
    engine = index.engine(settings, llm=llm)
    questions = [Question(f"q{i}", text) for i, text in enumerate(texts)]
    found = engine.run(method, questions, decider=decider).answers
    return [row(answer) for answer in found]


@pytest.mark.parametrize("method", METHODS)
def test_a_spoken_rule_is_the_rule(
    build: Callable[..., gpu_rag.Index], facts: Any, fast: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_rag.program.choices.MASS", 0.0)  # only what a model chose moves passages up
    index = build(facts, methods=[method, "bubblerag"] if method == "fused" else [method], named=True)
    spoken = Spoken(read=READ.get(method, ""))
    by_model = answers(index, method, spoken, spoken.engine(), fast)
    by_rule = answers(index, method, RULE, ScriptedLLM(lambda request: spoken.read or read(request)), fast)
    assert by_model == by_rule
    assert set(DECIDED.get(method, ())) <= spoken.asked.keys(), spoken.asked
    assert method.startswith("hybgrag") or any(answer.status == "answered" for answer in by_rule)


@pytest.mark.parametrize("method", ["higra-retriever", "hybgrag", "hybgrag-crag"])
def test_another_reply_is_another_row(
    build: Callable[..., gpu_rag.Index], facts: Any, fast: dict[str, Any], method: str
) -> None:
    """The comparison sees a reply that is not the rule's."""
    index, rows = build(facts, methods=[method], named=True), []
    for spoken in (Spoken(read=READ.get(method, "")), Spoken(True, read=READ.get(method, ""))):
        rows.append(answers(index, method, spoken, spoken.engine(), fast))
    assert rows[0] != rows[1]


def test_a_dialogue_without_an_answer_closes_alike(build: Callable[..., gpu_rag.Index], facts: Any, fast: Any) -> None:
    """The Seeker asks once more, gives up, and speaks its last word; the Librarian finds nothing."""
    index, rows = build(facts, methods=["dual-agent"], named=True), []
    for spoken in (Spoken(), None):
        engine = spoken.engine() if spoken else ScriptedLLM(lambda _: "unknown")
        engine = ScriptedLLM(silent(engine))
        rows.append(answers(index, "dual-agent", spoken or RULE, engine, fast))
        assert spoken is None or {"seeker/action", "seeker/final"} <= spoken.asked.keys()
    assert rows[0] == rows[1] and all(answer.status == "unsupported" for answer in rows[0])


def silent(engine: ScriptedLLM) -> Callable[[Request], str]:
    """The engine's decisions; its reading finds nothing."""

    def reply(request: Request) -> str:
        if "Question: " in request.prompt and request.constraint is None:
            return "unknown"
        if request.constraint is not None and '"passages"' in getattr(request.constraint, "schema", ""):
            return json.dumps({"evidence": "nothing", "answers": [], "passages": []})
        return engine.complete([request])[0].text

    return reply


GRAPH = [
    ("Halden Bridge", "designed by", "Marta Orlo"),
    ("Halden Bridge", "planned by", "Marta Orlo"),
    ("Halden Bridge", "crosses", "Ves"),
    ("Marta Orlo", "born in", "Tamsin"),
    ("Marta Orlo", "studied under", "Piet Ruyven"),
    ("Piet Ruyven", "studied under", "Ada Brink"),
    ("Ada Brink", "born in", "Tamsin"),
    ("Tamsin", "twin town of", "Kerling"),
    ("Kerling", "lies on", "Ves"),
]
PAGES = {"Tamsin": "Tamsin is a port. Marta Orlo was born in Tamsin. It lies at the sea.", "Ves": "The Ves is long."}
KB_QUESTIONS = [
    *QUESTIONS,
    "Where was the designer of the Halden Bridge born?",
    "Which town lies on the Ves and is a twin town of Tamsin?",
    "What do the Halden Bridge and Ada Brink share?",
    "what was founded long ago",
    "?",
]
DECISIONS = {"topics", "analysis", "query", "paths", "refine", "answer", "follow_up", "predict"}
TEXT_DECISIONS = {"source_selector", "web_results", "text_paths"}
CHAIN = {"entities": ["kerling", "ANSWER"], "relations": ["lies on"]}
INSTEAD: dict[str, Any] = {
    "topics": {"topics": ["Kerling"]},
    "analysis": {"subquestions": [], **CHAIN},
    "follow_up": {"question": "Who founded the University of Loss?", **CHAIN},
    "predict": {"predictions": [{"answer": "University of Loss", **CHAIN}]},
    "text_paths": {"paths": [{"sentence": 1, "steps": [{"subject": "Ves", "relation": "at", "object": "Tamsin"}]}]},
    "answer": {"reason": "", "settled": [], "sufficient": True, "answer": "Kerling"},
}


@pytest.fixture(params=["graph alone", "graph, texts and web"])
def base(request: pytest.FixtureRequest, tiny_corpus: Path, tmp_path: Path, fast: Any, facts: Any) -> gpu_rag.Index:
    if request.param != "graph alone":
        return hydrarag_case.build(tiny_corpus, tmp_path, facts, GRAPH, PAGES, fast)
    (tmp_path / "facts.tsv").write_text("".join("\t".join(triple) + "\n" for triple in GRAPH))
    gpu_rag.build((), tmp_path / "ix", methods=["hydrarag"], kg=[tmp_path / "facts.tsv"], settings=fast)
    return gpu_rag.Index.open(tmp_path / "ix")


@pytest.mark.parametrize("method", ["hydrarag", "hydrarag-e"])
def test_a_spoken_rule_is_the_rule_over_a_knowledge_base(base: gpu_rag.Index, fast: Any, method: str) -> None:
    spoken = Spoken()
    by_model = answers(base, method, spoken, spoken.engine(), fast, KB_QUESTIONS)
    by_rule = answers(base, method, RULE, ScriptedLLM(read), fast, KB_QUESTIONS)
    assert by_model == by_rule
    assert spoken.asked.keys() >= (DECISIONS | TEXT_DECISIONS if base.n_passages else DECISIONS)
    assert any(answer.text for answer in by_rule) and any(answer.nodes for answer in by_rule)


@pytest.mark.parametrize("name", INSTEAD)
def test_each_reply_matters_over_a_knowledge_base(
    tiny_corpus: Path, tmp_path: Path, fast: Any, facts: Any, name: str
) -> None:
    index = hydrarag_case.build(tiny_corpus, tmp_path, facts, GRAPH, PAGES, fast)
    spoken, other = Spoken(), Spoken(instead={name: INSTEAD[name]})
    question = ["Where was the teacher of the designer of the Halden Bridge born?"]
    rows = [answers(index, "hydrarag", one, one.engine(), fast, question) for one in (spoken, other)]
    assert name in spoken.asked and rows[0] != rows[1]


TYPES = {"company": ["Norvex", "Orbis", "Telva"], "person": ["Ann Lee", "Bob Ray", "Cid Oak"], "prize": ["Gold Cup"],
         "product": ["Salt", "Rain"], "date": ["1990-05-01", "2010-02-03"], "number": ["35", "80"]}  # fmt: skip
EDGES = [
    ("Ann Lee", "works for", "Norvex"),
    ("Bob Ray", "works for", "Norvex"),
    ("Cid Oak", "works for", "Orbis"),
    ("Ann Lee", "won", "Gold Cup"),
    ("Norvex", "founded on", "1990-05-01"),
    ("Orbis", "founded on", "2010-02-03"),
    ("Norvex", "headed by", "Ann Lee"),
    ("Salt", "costs", "35"),
    ("Rain", "costs", "80"),
]
STATED = [
    ("Norvex", "headed by", "Bob Ray", "register 2019-01-02"),
    ("Norvex", "headed by", "Cid Oak", "gazette 2021-03-04"),
]
FORMS = {
    "Who works for Norvex but not for Orbis?": ("negated", True),
    "How many people work for Norvex?": ("aggregate", "count"),
    "Which people won no prize?": ("name", "any"),
    "Which products cost more than 40?": ("compare", "more"),
    "Which company is older, Norvex or Orbis?": ("relations", []),
    "According to the register, who heads Norvex?": ("relation", "(stated by)"),
    "Who heads Norvex now?": ("by", "(stated on)"),
}


@pytest.fixture
def stated(tmp_path: Path, fast: Any) -> gpu_rag.Index:
    """A typed graph, and two further sources with dates."""
    nodes = [{"id": name, "type": kind, "name": name} for kind, names in TYPES.items() for name in names]
    edges = [{"src": head, "relation": relation, "dst": tail} for head, relation, tail in EDGES]
    (tmp_path / "base").mkdir()
    for file, rows in (("nodes", nodes), ("edges", edges)):
        (tmp_path / f"base/{file}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    for fact in STATED:
        (tmp_path / f"{fact[3].split()[0]}.tsv").write_text("\t".join(fact) + "\n")
    sources = [
        f"base=kg:{tmp_path / 'base'}",
        *(f"{name}=kg:{tmp_path / name}.tsv" for name in ("register", "gazette")),
    ]
    gpu_rag.build((), tmp_path / "ix", methods=["hybgrag", "hydrarag"], sources=sources, settings=fast)
    return gpu_rag.Index.open(tmp_path / "ix")


def leaves(value: Any) -> list[tuple[str, Any]]:
    """(field, value) pairs at any depth."""
    pairs = (
        value.items() if isinstance(value, dict) else [("", one) for one in value] if isinstance(value, list) else []
    )
    return [pair for name, one in pairs for pair in [(name, one), *leaves(one)]]


@pytest.mark.parametrize("method", ["hybgrag", "hydrarag"])
def test_a_spoken_query_is_the_rules_query(stated: gpu_rag.Index, fast: Any, method: str) -> None:
    spoken, texts = Spoken(), list(FORMS)
    by_model = answers(stated, method, spoken, spoken.engine(), fast, texts)
    assert by_model == answers(stated, method, RULE, ScriptedLLM(read), fast, texts)
    said = [pair for text in spoken.replies.values() if text[:1] == "{" for pair in leaves(json.loads(text))]
    assert [form for form in FORMS.values() if form not in said] == []


@pytest.mark.parametrize("method", ["hybgrag", "hydrarag"])
def test_sources_that_disagree_are_shown_side_by_side_with_dates(stated: gpu_rag.Index, fast: Any, method: str) -> None:
    model = ScriptedLLM(read)
    answers(stated, method, RULE, model, fast, ["Who heads Norvex?"])
    prompts = [request.prompt for request in model.calls]
    if method == "hydrarag":  # its rule answers alone
        spoken = Spoken()
        model = ScriptedLLM(spoken._said, context_tokens=1 << 20)
        answers(stated, method, spoken, model, fast, ["Who heads Norvex?"])
        prompts += [request.prompt for request in model.calls]
    for fact, date in (("Bob Ray", "register 2019-01-02"), ("Cid Oak", "gazette 2021-03-04")):
        assert any(f"headed by {fact}: {date}]" in prompt for prompt in prompts)


@pytest.mark.parametrize("sure", [True, False])
def test_all_exact_answers_are_read(stated: gpu_rag.Index, fast: Any, sure: bool) -> None:
    """Only one node is shown whole; what is not surely understood is not said to be the answer."""
    model = ScriptedLLM(read)
    question = "Who works for Norvex but not for Orbis?" if sure else "Who flounders for Norvex but not for Orbis?"
    answers(stated, "hybgrag", RULE, model, {**fast, "reader": {"passages": 1}}, [question])
    lines = [line for call in model.calls for line in call.prompt.splitlines() if "answer the question: " in line]
    assert [sorted(line.split(": ")[1].split("; ")) for line in lines] == ([["Ann Lee", "Bob Ray"]] if sure else [])


def test_an_unknown_source_in_trust_is_an_error(stated: gpu_rag.Index, fast: Any) -> None:
    for name in ("register", "gazet"):
        settings = {**fast, "method": {"hydrarag": {"trust": f"{name}=0.5"}}}
        if name == "register":
            assert answers(stated, "hydrarag", RULE, ScriptedLLM(read), settings, ["Who heads Norvex?"])
        else:
            with pytest.raises(UsageError, match="gazet"):
                answers(stated, "hydrarag", RULE, ScriptedLLM(read), settings, ["Who heads Norvex?"])
