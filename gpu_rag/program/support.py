"""The sentences of the evidence that bear on a question or support an answer, so that a reader can check it quickly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpu_rag.program.embed import embed
from gpu_rag.text.language import ENGLISH, language_of
from gpu_rag.text.sentences import LOG_LINE, POINTING, front_matter, split_sentences
from gpu_rag.text.tokens import STOP_WORDS, words_of
from gpu_rag.types import Draft, Evidence, Grounding, GroundingSentence, Path, RankedNode, Sentence

_CITED = re.compile(r"\[\d{1,2}\]")  # an answer cites passages by number
# Ends as no sentence does, and is no row of a table and no line of a log.
_HEADING = re.compile(rf"(?!{LOG_LINE})[^\t]*[^\t.!?:;…。！？\"'”’»)]")
_NEXT_ITEM = re.compile(r"[^\S\n]*\n[ ]{0,3}\d{1,2}[.)]\s")
_NUMBER = re.compile(r"\d{1,2}[.)]")  # the number of a list item
_MARKDOWN_HEADING = re.compile(r"#{1,6}\s")
_WORD = re.compile(r"[^\W_]+")  # up to an apostrophe: "It's" points back; "IT", in capitals, is a name
PASSAGES, SENTENCES, BEFORE = 5, 3, 2  # passages searched, sentences returned, sentences before one
WORDS_SHARE, LETTERS, HEADING_WORDS, HEADINGS = 0.3, 5, 8, 2


async def supported(question: str, draft: Draft) -> tuple[Sentence, ...]:
    """The sentences that bear on the question, best first: at most three, from the first five passages.

    score(s) = cos(q, s) + WORDS_SHARE * sum of idf(w) over words w in q and s / sum of idf(w) over words w in q

    Vectors have the title in front of the sentence. idf(w) = ln((1 + n) / (1 + sentences with w)) of n sentences. The
    first LETTERS letters stand for a word, since endings differ in every language. Ties go to the earlier sentence; of
    equal sentences only the best is returned. Where one begins with a pronoun, its span begins with the sentence before
    it (at most BEFORE sentences) unless that is returned itself, so that it names what it speaks of.
    """
    spans = [(e, start, end) for e in draft.evidence[:PASSAGES] for start, end in _statements(e.text)]
    if not spans:
        return ()
    vectors = await embed([question, *(_titled(e, e.text[start:end]) for e, start, end in spans)])
    texts = [e.text[start:end] for e, start, end in spans]
    scores = vectors[1:] @ vectors[0] + WORDS_SHARE * _shared_words(question, texts)
    order = np.argsort(-scores, kind="stable").tolist()
    first = {texts[i]: i for i in reversed(order)}  # files are copied, and pages repeat their heads
    best = [i for i in order if first[texts[i]] == i][:SENTENCES]
    sentences = []
    for i in best:
        passage, _, end = spans[i]
        begin = i
        while begin > i - BEFORE and begin - 1 not in best and _points_back(texts[begin]):
            if not begin or spans[begin - 1][0] is not passage:
                break
            begin -= 1
        start = spans[begin][1]
        sentences.append(Sentence(passage.passage_id, start, end, passage.text[start:end], float(scores[i])))
    return tuple(sentences)


def _points_back(sentence: str) -> bool:
    first = _WORD.search(sentence)
    return first is not None and first[0].casefold() in POINTING and not (len(first[0]) > 1 and first[0].isupper())


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """Spans of sentences. The last two questions, headings, labels on lines of their own or numbers of items before a
    sentence go with it; of more in a row, the older ones belong to none. Front matter is no sentence."""
    before: list[int] = []
    is_numbered = is_below = False
    body = len(front_matter(text))
    for start, end in ((body + start, body + end) for start, end in split_sentences(text[body:])):
        words = text[start:end]
        if _NUMBER.fullmatch(words):
            before, is_numbered = [*before, start][-HEADINGS:], True
            is_below = text[max(0, start - 2) : start].count("\n") == 1  # an empty line: maybe a numbered heading
            continue
        if "\t" in words and text.startswith(f"\n{words.split(chr(9))[0]}: ", end):
            continue  # the names of the columns of a table, which the cells below repeat
        if words.isdecimal() and not before:
            continue  # the number of a page
        is_item, is_numbered = is_numbered and (is_below or _NEXT_ITEM.match(text, end) is not None), False
        is_heading = bool(_HEADING.fullmatch(words)) and len(words.split()) <= HEADING_WORDS and not is_item
        if is_heading or _MARKDOWN_HEADING.match(words) or words.endswith(("?", "？", "؟")):
            before = [*before, start][-HEADINGS:]
            continue
        yield [*before, start][0], end
        before = []
    if before:
        yield before[0], len(text.rstrip())


def _shared_words(question: str, sentences: Sequence[str]) -> np.ndarray:
    """The share of the question's words, weighted by rarity, that each sentence has: f64[sentences], 0 to 1."""
    wanted = sorted({word[:LETTERS] for word in words_of(question) if word not in STOP_WORDS})
    n, words = len(sentences), [{word[:LETTERS] for word in words_of(sentence)} for sentence in sentences]
    has = np.array([[word in own for word in wanted] for own in words], np.float64).reshape(n, len(wanted))
    idf = np.log((1 + n) / (1 + has.sum(0)))
    return np.asarray(has @ idf / max(idf.sum(), 1e-9))


def _titled(evidence: Evidence, sentence: str) -> str:
    return f"{evidence.title}. {sentence}" if evidence.title else sentence


def grounded(
    question: str, answer: str, evidence: Sequence[Evidence], paths: Sequence[Path], nodes: Sequence[RankedNode] = ()
) -> Grounding:
    """Whether passages with their titles, paths and knowledge base nodes support an answer. A function of its
    arguments alone, so that `verify-answers` can repeat it.

    Nothing is `supported` in another language than English, and an answer that may be a translation not `unsupported`.
    """
    from gpu_rag.text.grounding import NONE, UNSUPPORTED, grounding  # most runs of retrieval have no answer
    from gpu_rag.text.stepwise import supporting_steps
    from gpu_rag.text.supporting import supporting

    answer = _CITED.sub("", answer)
    texts = [*(f"{item.title}. {item.text}" for item in evidence), *(path.text for path in paths)]
    status = grounding(question, answer, [*texts, *(f"{node.name} ({node.type})" for node in nodes)])
    languages = {language_of(question), language_of("\n".join(texts))}
    if status == UNSUPPORTED:
        return Grounding(NONE if len(languages) > 1 else status)
    if languages != {ENGLISH}:
        return Grounding(status)
    passages = [(item.title, item.text) for item in evidence]
    numbers = {item.passage_id: number for number, item in enumerate(evidence)}
    chains: list[list[tuple[str, str, int]]] = []
    for path in paths:
        chains.append([])
        for subject, relation, object_, passage in path.edges:
            if passage not in numbers:  # an edge without a text is a sentence itself
                passages.append(("", f"{subject} {relation.replace('_', ' ')} {object_}."))
            chains[-1].append((subject, object_, numbers.get(passage, len(passages) - 1)))
    spans = supporting_steps(question, answer, passages)
    if spans is None or (chains and not spans):
        spans = supporting(question, answer, passages, chains)
    sentences = [
        GroundingSentence(evidence[s.passage].passage_id, s.start, s.end, s.answer)
        for s in spans
        if s.passage < len(evidence)
    ]
    return Grounding("supported", tuple(sentences)) if spans else Grounding(status)
