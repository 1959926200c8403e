"""Every prompt file of the product: it renders, fits a small context beside its reply, fences what others wrote, and
its examples are replies that its step can read."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gpu_rag
from gpu_rag.evaluation import judge
from gpu_rag.index.stages import coreference, extraction
from gpu_rag.methods.bubblerag import asks as bubblerag
from gpu_rag.methods.higra import asks as higra
from gpu_rag.methods.higra.stages import links, merge
from gpu_rag.methods.hoprag import asks as hoprag
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.hoprag.stages import questions as hop_questions
from gpu_rag.methods.hybgrag.crag import asks as crag_asks
from gpu_rag.methods.hybgrag.examples import read_examples
from gpu_rag.methods.hydrarag import replies
from gpu_rag.methods.hydrarag.asks import SUMMARY_TOKENS
from gpu_rag.models.budget import longest, reply_tokens
from gpu_rag.models.llm.interface import estimate_tokens
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.models.packaged import packaged_llm_folder
from gpu_rag.program import questions
from gpu_rag.program.knowledge_base.query_prompt import query_schema
from gpu_rag.settings import make_settings
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import parse_json
from gpu_rag.text.structs import schema_of
from gpu_rag.types import Malformed

CONTEXT = 2048
LARGER = {"stages/extract": 4096, "hybgrag/route": 4096}  # thirty names and facts of a passage; eight example routes
SETTINGS = make_settings({})
TYPES, RELATIONS = ("person", "film", "genre"), ("directed_by", "has_genre", "starred")
CHOICE, TEXT = "a choice", "a text"
CRAG_LISTS = ("Halden Bridge", "Marta Orlo"), ("opened in", "designed by"), ("graph", "text")


STEPS: dict[str, str] = {
    "bubblerag/answer": TEXT,
    "bubblerag/enough": CHOICE,
    "bubblerag/expand": CHOICE,
    "bubblerag/groups": schema_of(bubblerag.Grouping),
    "bubblerag/keywords": schema_of(bubblerag.Listed),
    "bubblerag/relax": schema_of(bubblerag.Rewording),
    "bubblerag/specialise": schema_of(bubblerag.Rewording),
    "evaluation/judge": schema_of(judge.Judgement),
    "higra/librarian": schema_of(higra.Told),
    "higra/link": links.relations_schema(20),
    "higra/merge": merge.groups_schema(20),
    "higra/seeds": CHOICE,
    "higra/seeker": schema_of(higra.Action),
    "higra/seeker_final": schema_of(higra.LastWord),
    "hoprag/choose": CHOICE,
    "hoprag/choose_all": schema_of(hoprag.Ways),
    "hoprag/hop_in": schema_of(hop_questions.InQuestions),
    "hoprag/hop_out": schema_of(hop_questions.OutQuestions),
    "hybgrag/comment": CHOICE,
    "hybgrag/crag_answer": schema_of(crag_asks.Answered),
    "hybgrag/crag_comment": CHOICE,
    "hybgrag/crag_route": crag_asks.route_schema(*CRAG_LISTS, 4),
    "hybgrag/crag_validate": CHOICE,
    "hybgrag/module": CHOICE,
    "hybgrag/route": query_schema(TYPES, RELATIONS),
    "hybgrag/validate": CHOICE,
    "hybgrag/validate_yes_no": CHOICE,
    "hydrarag/analysis": schema_of(replies.Analysed),
    "hydrarag/answer": schema_of(replies.Answered),
    "hydrarag/answer_last": schema_of(replies.Answered),
    "hydrarag/knowledge": TEXT,
    "hydrarag/predict": schema_of(replies.Predicted),
    "hydrarag/query": query_schema(TYPES, RELATIONS),
    "hydrarag/refine": TEXT,
    "hydrarag/refined": schema_of(replies.FollowUp),
    "hydrarag/select": CHOICE,
    "hydrarag/sources": CHOICE,
    "hydrarag/text_paths": schema_of(replies.TextPaths),
    "hydrarag/topics": schema_of(replies.Topics),
    "hydrarag/web": CHOICE,
    "program/clarify": schema_of(questions.Rewritten),
    "program/condense": schema_of(questions.Rewritten),
    "program/decompose": schema_of(questions.Planned),
    "program/reader": TEXT,
    "stages/coreference": schema_of(coreference.Resolved),
    "stages/extract": schema_of(extraction.Extracted),
}
ROOMS = {  # of replies whose room is fixed
    CHOICE: 80,
    TEXT: SETTINGS.reader.max_tokens,
    "hydrarag/knowledge": SUMMARY_TOKENS,
    "hydrarag/refine": SUMMARY_TOKENS,
    "bubblerag/keywords": bubblerag.KEYWORD_TOKENS,
    "evaluation/judge": 160,
    "hoprag/hop_in": HopSettings.tokens,
    "hoprag/hop_out": HopSettings.tokens,
    "program/clarify": questions.MAX_TOKENS_QUESTION,
    "program/condense": questions.MAX_TOKENS_QUESTION,
    "program/decompose": questions.MAX_TOKENS_PLAN,
    "stages/coreference": SETTINGS.index.coref_tokens,
    "stages/extract": SETTINGS.index.extract_tokens,
}
JSON = [name for name, schema in STEPS.items() if schema not in (CHOICE, TEXT)]
MEASURED = {name: STEPS[name] for name in JSON if name not in ROOMS}


# The question and words of our own: no text of a document, page or graph, and none that a reply wrote of these.
OPEN = {"question", "plan", "notice", "subquestions", "features", "examples", "gold"}
OPEN_IN = {  # what a name means in one file
    "bubblerag/enough": {"options"},
    "hybgrag/crag_answer": {"kind", "query_time"},  # the time is the asker's, as the question is
    "hybgrag/crag_comment": {"options"},
    "hybgrag/crag_route": {"query_time", "sources"},
    "hybgrag/crag_validate": {"options", "query_time"},
    "hybgrag/module": {"options"},
    "hybgrag/validate": {"options"},
    "hybgrag/validate_yes_no": {"options"},
    "hydrarag/predict": {"indicator"},  # read out of the question alone
    "hydrarag/refined": {"indicator"},
    "hydrarag/select": {"indicator"},
    "hydrarag/sources": {"options", "indicator"},
    "hydrarag/analysis": {"topics"},
}
PASSAGE = (
    "The Halden Bridge was designed by Marta Orlo and opened in 1931. It crosses the river Ves at Kerling, where the "
    "council had asked for a bridge since 1899. Anna Stroud, then mayor of Kerling, opened it with Piet Ammer. "
    "Its two arches of iron were cast in Tamsin, where Marta Orlo was born, and came down the river on barges."
)
QUESTION = (
    "In which of the towns on the upper Ves was the engineer born who designed the bridge that Anna Stroud opened?"
)
LINE = "Halden Bridge - designed by -> Marta Orlo - born in -> Tamsin (kg, document; score 0.71)"
CANDIDATE = "Halden Bridge - designed by - Marta Orlo | relation | Halden Bridge | 1, 2"


def listed(line: str, n: int) -> str:
    """A numbered list."""
    return "\n".join(f"{i}. {line}" for i in range(1, n + 1))


SAMPLES: dict[str, str] = {
    **dict.fromkeys(("question", "indicator"), QUESTION),
    **dict.fromkeys(("passages", "evidence", "library", "references"), "\n\n".join([PASSAGE] * 2)),
    **dict.fromkeys(("text",), PASSAGE),
    **dict.fromkeys(("paths", "sentences"), listed(LINE, 9)),
    **dict.fromkeys(("plan", "subquestions"), listed(QUESTION, 3)),
    **dict.fromkeys(
        ("title", "answer", "gold", "topics", "features", "types", "keywords"), "Halden Bridge; Marta Orlo"
    ),
    **dict.fromkeys(("candidates", "entities", "relations"), listed(CANDIDATE, 20)),
    "options": listed(CANDIDATE, 10),
    "places": f"From Halden Bridge\n{listed(QUESTION, 20)}",
    "query_time": "03/01/2031, 10:00:00 PT",
    "kind": "comparison (things are compared); the answer changes within years; encyclopedia",
    "sources": "graph or text",
    "history": "\n\n".join(f"[{i}] {QUESTION}\nanswers: Marta Orlo\nevidence: {PASSAGE}" for i in range(1, 3)),
    "notice": higra.UNRESOLVED.format(questions=QUESTION),
    "action": "module: hybrid\nentity: Marta Orlo (person) along directed_by",
    "examples": "\n\n".join(e.route() for e in read_examples(None, "routes", False)),
}


def files() -> Iterator[tuple[str, Path]]:
    """("method or folder/name", path) of each prompt file; those of models/probe show texts of our own."""
    root = Path(gpu_rag.__file__).parent
    for path in sorted(root.rglob("prompts/*.txt")):
        yield f"{path.parent.parent.name}/{path.stem}", path


PATHS = dict(files())


@cache
def prompt(name: str) -> Prompt:
    """The prompt of a file."""
    package = ".".join(PATHS[name].parent.relative_to(Path(gpu_rag.__file__).parents[1]).parts)
    return Prompt.read(package, PATHS[name].stem)


@pytest.fixture(scope="module")
def model() -> ScriptedLLM:
    """A model with the tokenizer of the packaged one, and a small context."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(packaged_llm_folder())

    class Counting(ScriptedLLM):
        def count_tokens(self, text: str) -> int:
            return len(tokenizer(text)["input_ids"])

    return Counting(lambda _: "", context_tokens=CONTEXT)


def room(name: str, model: ScriptedLLM) -> int:
    """Tokens of the reply to a prompt."""
    if name in MEASURED:
        return reply_tokens(model, MEASURED[name])
    return ROOMS.get(name) or ROOMS[STEPS[name]]


def example_replies(name: str) -> list[str]:
    """The JSON objects in the static part, each on its own line."""
    return re.findall(r"^(?:Reply: )?(\{.*\})$", prompt(name).system, re.MULTILINE)


def test_each_file_has_its_step() -> None:
    assert set(PATHS) == set(STEPS)


@pytest.mark.parametrize("name", PATHS)
def test_it_renders_and_fits_beside_its_reply(name: str, model: ScriptedLLM) -> None:
    one = prompt(name)
    text = one.render(**{field: SAMPLES[field] for field in one.fields})
    assert "{{" not in text and all(SAMPLES[field].splitlines()[0] in text for field in one.fields)
    used = model.count_tokens(one.system) + model.count_tokens(text) + 24  # what a chat template adds
    assert used + room(name, model) <= LARGER.get(name, CONTEXT), f"{used} and {room(name, model)} for the reply"


@pytest.mark.parametrize("name", PATHS)
def test_what_others_wrote_stands_inside_a_fence(name: str) -> None:
    inside, bare = False, set()
    for line in prompt(name).template.splitlines():
        if line in ("<data>", "</data>"):
            assert inside == (line == "</data>"), "a fence inside a fence, or one that was not opened"
            inside = not inside
        else:
            assert "<data>" not in line and "</data>" not in line
            bare.update(() if inside else re.findall(r"\{\{(\w+)\}\}", line))
    assert not inside and bare <= OPEN | OPEN_IN.get(name, set())


@pytest.mark.parametrize("name", JSON)
def test_its_examples_are_replies_that_can_be_read(name: str, model: ScriptedLLM) -> None:
    replies = example_replies(name)
    if name == "hybgrag/route":  # its examples stand in a file
        examples = read_examples(None, "routes", False)
        types = {topic.type for e in examples for topic in e.action.topics}
        relations = {relation for e in examples for topic in e.action.topics for relation in topic.relations}
        relations |= {one.relation for e in examples for one in e.operations.constraints}
        schema = query_schema(sorted(types), sorted(relations))
        replies = [e.route().split("Reply: ")[1] for e in examples]
    else:
        schema = STEPS[name]
    assert replies
    for reply in replies:
        assert not isinstance(read := parse_json(reply, schema), Malformed), read
        assert model.count_tokens(reply) <= room(name, model)


@pytest.mark.parametrize("name", MEASURED)
def test_the_room_covers_what_the_schema_lets_be_written(name: str, model: ScriptedLLM) -> None:
    schema = MEASURED[name]
    whole = json.dumps(longest(json.loads(schema)))
    assert not isinstance(parse_json(whole, schema), Malformed)
    large = ScriptedLLM(lambda _: "", context_tokens=100_000)
    assert estimate_tokens(whole) < reply_tokens(large, schema) and reply_tokens(model, schema) <= CONTEXT // 2
