"""The decisions of HydraRAG. Exploration samples at its own temperature; pruning and answers do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_rag.methods.hydrarag import gold, rules
from gpu_rag.methods.hydrarag.replies import (
    NOT_ANSWERED,
    Analysed,
    Answered,
    FollowUp,
    Predicted,
    Prediction,
    Step,
    TextPath,
    TextPaths,
    Topics,
    chain_of,
    folded,
    in_words,
)
from gpu_rag.methods.hydrarag.state import Analysis, Chain, Params
from gpu_rag.models.ask import Ask, Choose, Packed, Refused, read_prompt
from gpu_rag.program.knowledge_base.query import Query
from gpu_rag.text.prompts import Prompt

PROMPTS = "gpu_rag.methods.hydrarag.prompts"
NOTHING = "nothing"
SUMMARY_TOKENS = 256  # six short sentences
_NO_CHAIN = Refused("the chain has no answer, or several, or not one relation between each two entities")


# --- step I -----------------------------------------------------------------------------------------


def _topics(reply: Topics) -> Topics:
    return Topics(tuple(dict.fromkeys(filter(None, map(folded, reply.topics)))))


def _analysis(reply: Analysed, topics: Sequence[str]) -> Analysed | Refused:
    chain = chain_of(reply.entities, reply.relations, topics)
    return _NO_CHAIN if chain is None else Analysed(reply.subquestions, chain.entities, chain.relations)


TOPICS = Ask(
    "topics",
    Topics,
    rule=rules.topics,
    prompt=f"{PROMPTS}:topics",
    check=_topics,
    words=lambda reply: reply.topics,
    gold=gold.topics,
    temperature=Params.temperature,
)
ANALYSE = Ask(
    "analysis",
    Analysed,
    rule=rules.analysis,
    prompt=f"{PROMPTS}:analysis",
    show=lambda question, topics: {"question": question, "topics": "; ".join(topics) or "none"},
    check=_analysis,
    words=lambda reply: (Chain(reply.entities, reply.relations).text,),
    gold=gold.analysis,
    temperature=Params.temperature,
)
QUERY = Ask(
    "query",
    Query,
    rule=lambda proposal: proposal,
    prompt=lambda shown: shown.prompt,
    show=lambda shown: shown.slots,
    schema=lambda shown: shown.schema,
    words=lambda reply: tuple(topic.text() for topic in reply.entities),
    gold=gold.query,
    temperature=Params.temperature,
)
SOURCES = Choose("source_selector", f"{PROMPTS}:sources", helps=gold.has_gold, plans=True)

# --- step II ----------------------------------------------------------------------------------------


def _facts(analysis: Analysis, facts: Sequence[str]) -> dict[str, str | Packed]:
    """The current search text, and the paths found so far."""
    return {**analysis.shown, "paths": Packed([f"- {fact}" for fact in facts] or [NOTHING])}


def _follow_up(reply: FollowUp, analysis: Analysis) -> FollowUp | Refused:
    chain = chain_of(reply.entities, reply.relations, [mention.text for mention in analysis.mentions])
    return _NO_CHAIN if chain is None else FollowUp(folded(reply.question), chain.entities, chain.relations)


def _predictions(reply: Predicted, analysis: Analysis) -> Predicted:
    """The predictions with a usable chain."""
    topics = [mention.text for mention in analysis.mentions]
    named = [(folded(guess.answer), guess) for guess in reply.predictions]
    chains = [(name, chain_of(guess.entities, guess.relations, [*topics, name])) for name, guess in named]
    return Predicted(tuple(Prediction(name, c.entities, c.relations) for name, c in chains if c is not None and name))


def _sentences(analysis: Analysis, sentences: Sequence[str], places: Sequence[int]) -> Mapping[str, str | Packed]:
    topics = "; ".join(mention.text for mention in analysis.mentions) or "none"
    lines = [f"[{number}] {sentence}" for number, sentence in enumerate(sentences, 1)]
    return {**analysis.shown, "topics": topics, "sentences": Packed(lines, places, "\n")}


def _text_paths(reply: TextPaths, shown: Sequence[int]) -> TextPaths:
    """The paths of sentences that were shown."""
    paths = (path for path in reply.paths if path.sentence - 1 in shown)
    return TextPaths(tuple(TextPath(path.sentence, tuple(map(_step, path.steps))) for path in paths))


def _step(step: Step) -> Step:
    return Step(folded(step.subject), folded(step.relation), folded(step.object))


FOLLOW_UP = Ask(
    "follow_up",
    FollowUp,
    rule=rules.follow_up,
    prompt=f"{PROMPTS}:refined",
    show=_facts,
    check=_follow_up,
    words=lambda reply: (reply.question, Chain(reply.entities, reply.relations).text),
    temperature=Params.temperature,
)
PREDICT = Ask(
    "predict",
    Predicted,
    rule=rules.predictions,
    prompt=f"{PROMPTS}:predict",
    show=_facts,
    check=_predictions,
    words=lambda reply: tuple(prediction.answer for prediction in reply.predictions),
    gold=gold.predictions,
    temperature=Params.temperature,
)
TEXT_PATHS = Ask(
    "text_paths",
    TextPaths,
    rule=lambda: TextPaths(()),  # rules add nothing to the facts found in the sentences
    prompt=f"{PROMPTS}:text_paths",
    show=_sentences,
    check=_text_paths,
    words=lambda reply: tuple("; ".join(map(in_words, path.steps)) for path in reply.paths),
    temperature=Params.temperature,
)
WEB_RESULTS = Choose("web_results", f"{PROMPTS}:web")

# --- steps III and IV -------------------------------------------------------------------------------


def _paths(question: str, subquestions: Sequence[str], facts: Sequence[str]) -> dict[str, str | Packed]:
    numbered = "\n".join(f"{i}. {text}" for i, text in enumerate(subquestions, 1)) or "none"
    return {"question": question, "subquestions": numbered, "paths": Packed(facts)}


def _answer_prompt(last: bool) -> Prompt:
    return read_prompt(f"{PROMPTS}:{'answer_last' if last else 'answer'}")


PATHS = Choose("paths", f"{PROMPTS}:select", helps=gold.holds_gold)
REFINE = Ask(
    "refine",
    str,
    rule=lambda: NOTHING,  # the paths themselves follow in the prompt
    prompt=f"{PROMPTS}:refine",
    show=_paths,
    check=lambda reply: reply.strip() or NOTHING,
    words=lambda reply: () if reply == NOTHING else (reply,),
    max_tokens=SUMMARY_TOKENS,
)
ANSWER = Ask(
    "answer",
    Answered,
    rule=rules.answer,
    prompt=_answer_prompt,
    show=_paths,
    unread=lambda: NOT_ANSWERED,
    words=lambda reply: (reply.answer,) if reply.answer else (),
    gold=gold.answer,
)
KNOWLEDGE = Ask(
    "knowledge",
    str,
    rule=lambda: "",
    prompt=f"{PROMPTS}:knowledge",
    unread=lambda: "",
    max_tokens=SUMMARY_TOKENS,
    reads="any",
)
