"""The replies of HydraRAG's rules.

Topics are node names that occur in the question, and names marked by capitals, quotes or "_". A name in small letters
made only of common words ("director", "film genre") is dropped. Common words are words of the graph's own relations,
role nouns, verbs and stop words. A single word in small letters beside a longer name ("movies") is dropped too. If no
name is left, the runs of other words are taken, since nodes may be spelled differently ("john f kennedy"). If there are
no such runs either, the dropped names stay.

The answer stands behind the only topic, or between the first topic and the second. D_predict is the number of relations
that the question names (`n_relations`), minus one for several topics; the relations of the chain are unknown.
Sub-questions are the plan of `plan_by_rules`. The likely answers are the best answers of the paths so far.

A path settles the question if the question asks for its relations, or if it goes through all topics and its relevance
is at least `enough`. The answers are those at its answer place and at that of every path with the same relations. A
path without such a place (from a text) is read by the shared reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

from gpu_rag.methods.hydrarag.batched.names import names_in
from gpu_rag.methods.hydrarag.evidence import alike, by_shape, evidence_of, ranked_nodes
from gpu_rag.methods.hydrarag.replies import (
    ANSWER_CHARS,
    MAX_PREDICTIONS,
    NAME_CHARS,
    NOT_ANSWERED,
    SENTENCE_CHARS,
    Analysed,
    Answered,
    FollowUp,
    Predicted,
    Prediction,
    Topics,
    folded,
)
from gpu_rag.methods.hydrarag.state import (
    ANSWER,
    MAX_TOPICS,
    RELATED,
    SURE,
    Analysis,
    Chain,
    FoundPath,
    Params,
    Search,
)
from gpu_rag.program.knowledge_base.spoken import stands_as_name
from gpu_rag.program.reader import passage_block, read_blocks
from gpu_rag.text.keywords import names
from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.rules.decomposition import plan_by_rules
from gpu_rag.text.rules.decomposition.phrases import (
    AUX,
    BASE_VERBS,
    FUNCTION_WORDS,
    QUESTION_WORDS,
    is_person,
    is_relational,
)
from gpu_rag.text.rules.extraction.lexicon import is_verb
from gpu_rag.text.rules.relations.hops import n_relations
from gpu_rag.text.tokens import STOP_WORDS

_WORD = re.compile(r"\w+")
_WORDS_OF_NAMES = re.compile(r"[\w'.&-]*\w")
_AS_ONE = re.compile(r"\w+_\w+")  # "More_Than_Ever"
_SHOWN_ANSWERS = 20
_FUNCTION = FUNCTION_WORDS | QUESTION_WORDS | AUX | STOP_WORDS


async def topics(question: str, search: Search) -> Topics:
    """Names in the question, see `mentions_by_rules`."""
    known = await names_in(question.replace("_", " "))
    names = mentions_by_rules(question, known, search.relation_words, partial(stands_as_name, search.run.index))
    return Topics(tuple(name for name in map(folded, names) if len(name) <= NAME_CHARS))


def analysis(question: str, topics: Sequence[str], search: Search) -> Analysed:
    """The plan of the question, and a chain with unknown relations."""
    chain = chain_by_rules(question, topics, search.params.d_max, search.relation_words)
    steps = [step.question[:SENTENCE_CHARS] for step in plan_by_rules(question).steps]
    return Analysed(tuple(steps[:MAX_TOPICS]), chain.entities, chain.relations)


def follow_up(analysis: Analysis) -> FollowUp:
    """The original question again."""
    return FollowUp(folded(analysis.question)[:SENTENCE_CHARS], (ANSWER,), ())


def predictions(analysis: Analysis, search: Search) -> Predicted:
    """The best answers of the paths so far."""
    names = [folded(node.name)[:NAME_CHARS] for node in ranked_nodes(search.chosen, search)][:MAX_PREDICTIONS]
    return Predicted(tuple(prediction(name, analysis) for name in names if name))


def prediction(name: str, analysis: Analysis) -> Prediction:
    """A likely answer, placed after all topics."""
    topics = tuple(mention.text for mention in analysis.mentions)
    return Prediction(name, (*topics, ANSWER), (RELATED,) * len(topics))


async def answer(analysis: Analysis, chosen: Sequence[FoundPath], last: bool, search: Search) -> Answered:
    """The answer of the best path, see the module; "" if no path settles the question and further phases follow."""
    exact = search.asked
    if exact.exact and exact.nodes:
        all_names = joined_answers([folded(search.kb.node_names[node]) for node in exact.nodes])
        return Answered("", (), True, exact.count or all_names)
    settled = any(_settles(path, analysis) for path in chosen)
    if not (settled or last):
        return NOT_ANSWERED
    best = next((path for path in chosen if path.answers), chosen[0])
    names = _names(best, search)
    if names and best.kind == "kg" and best.asked < SURE:
        text = _with_relations(chosen, search)
    elif names:
        text = joined_answers(names)
    else:
        text = await _read(analysis.question, chosen, search)
    return Answered("", (), settled, text)


def _names(path: FoundPath, search: Search) -> list[str]:
    """The first answers of a path and of similar paths."""
    return [folded(search.kb.node_names[node]) for node in alike(path, by_shape(search.paths))[:_SHOWN_ANSWERS]]


def _with_relations(chosen: Sequence[FoundPath], search: Search) -> str:
    """The answers of each kind of remaining path, with its relations, since the question does not say which relation it
    means."""
    kinds = dict[str, list[str]]()
    for path in (path for path in chosen if path.answers):
        kinds.setdefault(" ".join(path.relations), _names(path, search))
    room = (max(0, ANSWER_CHARS - len(relations) - 3) for relations in kinds)
    texts = [f"{_joined('; ', names, n)} ({relations})" for (relations, names), n in zip(kinds.items(), room)]
    return _joined(" | ", texts, ANSWER_CHARS)


def joined_answers(names: Sequence[str]) -> str:
    """The first names, as many as fit into an answer, as one text."""
    return _joined("; ", names, ANSWER_CHARS)


def _joined(separator: str, texts: Sequence[str], limit: int) -> str:
    """The first texts, as many as fit, as one text; the first one is cut if necessary."""
    text = texts[0][:limit]
    for other in texts[1:]:
        if len(text) + len(separator) + len(other) > limit:
            break
        text += separator + other
    return text


def _settles(path: FoundPath, analysis: Analysis) -> bool:
    if path.asked >= SURE:
        return True
    may_answer = bool(path.answers or path.names) and path.scores.rel >= Params.enough
    return may_answer and all(set(path.nodes) & set(mention.nodes) for mention in analysis.mentions)


async def _read(question: str, chosen: Sequence[FoundPath], search: Search) -> str:
    """The reader's answer from the paths and the passages that state them."""
    facts = "\n".join(path.text for path in chosen)
    evidence = evidence_of(chosen, search, search.run.reader.passages)
    blocks = [f"Facts\n{facts}", *(passage_block(i, e) for i, e in enumerate(evidence, 1))]
    return folded(await read_blocks(search.run, question, blocks) or "")[:ANSWER_CHARS]


def mentions_by_rules(
    question: str,
    known: Sequence[str],
    common: frozenset[str],
    stands: Callable[[str, int, int], bool] = lambda text, start, end: False,
) -> list[str]:
    """The topics that a question names, in question order; at most MAX_TOPICS, the longest.

    known: normalised node names that occur in it; common: words of relations; stands: whether a plain word, at these
    characters of a text, stands where a name does.
    """
    as_one = [normalise_name(word.replace("_", " ")) for word in _AS_ONE.findall(question) if word != word.lower()]
    question = question.replace("_", " ")
    flat = normalise_name(question)
    spans: list[tuple[int, int]] = []
    by_length = _longest_first({*known, *names(question), *as_one} - {""})
    strong = [name for name in by_length if _is_written_as_name(name, question) or not is_common(name, common)]
    places = {name: match.span() for name in known if (match := re.search(rf"(?<!\w){re.escape(name)}(?!\w)", flat))}
    placed = {name for name in strong if name in places and stands(flat, *places[name])}
    sure = [name for name in strong if " " in name or _is_written_as_name(name, question)]
    sure = [name for name in strong if name in sure or name in placed] if sure else []
    for name in sure or strong or _longest_first(_runs(flat, common)) or by_length:
        occurrence = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", flat)
        if occurrence and all(occurrence.end() <= lo or occurrence.start() >= hi for lo, hi in spans):
            spans.append(occurrence.span())
    return [flat[lo:hi] for lo, hi in sorted(spans[:MAX_TOPICS])]


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=lambda name: (-len(name), name))


def _runs(flat: str, common: frozenset[str]) -> list[str]:
    """The longest runs of words that are not common: possible names in a question in small letters."""
    words = _WORDS_OF_NAMES.findall(flat)
    runs = (list(run) for plain, run in groupby(words, key=lambda word: not is_common(word, common)) if plain)
    return [name for run in runs if (name := " ".join(run)) in flat and any(len(word) > 2 for word in run)]


def _is_written_as_name(name: str, question: str) -> bool:
    """Whether a name has a capital letter in the question, other than the first letter of the question."""
    match = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", question, re.IGNORECASE)
    return match is not None and any(c.isupper() for c in match.group()[match.start() == 0 :])


def is_common(name: str, common: frozenset[str]) -> bool:
    """Whether a name consists of common words only."""
    return all(_is_common(word, common) for word in _WORD.findall(name))


def _is_common(word: str, common: frozenset[str]) -> bool:
    single = word.removesuffix("s")
    if word in _FUNCTION or word in common or single in common:
        return True
    return any(is_relational(w) or is_person(w) or w in BASE_VERBS or is_verb(w, "") for w in (word, single))


def chain_by_rules(question: str, topics: Sequence[str], deepest: int, common: frozenset[str] = frozenset()) -> Chain:
    """The skyline indicator by rules. "?" stands for every further step between the answer and its topics."""
    steps = n_relations(question, topics, common)
    depth = min(max(1, steps if len(topics) < 2 else steps - 1), deepest)
    entities = [*topics[:1], *["?"] * (depth - 1), ANSWER, *topics[1:]]
    return Chain(tuple(entities), (RELATED,) * (len(entities) - 1))
