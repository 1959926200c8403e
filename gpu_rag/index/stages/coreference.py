"""Texts with names in place of pronouns (HiGraAgent's P'), for extraction only: search uses the original."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.index.stages.requests import decided
from gpu_rag.index.work import Work
from gpu_rag.models.ask import Ask, read_prompt
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import clean_text
from gpu_rag.text.tokens import STOP_WORDS

PROMPT = "gpu_rag.index.stages.prompts:coreference"
Rewrite = tuple[str, str]  # the reason why there is no rewrite ("" if there is one), and the text
Span = tuple[int, int]


class Resolved(Struct, frozen=True):
    """A text with names in place of pronouns."""

    text: str


COREFERENCE: Ask[Resolved] = Ask("coreference", Resolved, rule=lambda passages: passages, prompt=PROMPT)

_POSSESSIVES = frozenset({"his", "its", "their", "hers", "theirs"})
PRONOUNS = frozenset({"he", "she", "it", "they", "him", "her", "them"}) | _POSSESSIVES
KEPT_SHARE = 0.8  # least share of the content words that a rewrite keeps
AT_ONCE = 512  # texts per call of fastcoref
GROWTH = 2.0  # greatest length of a rewrite, as a multiple of the original's
_WORD = re.compile(r"\w+")
_WORD_AFTER = re.compile(r"\s+[^\W\d_]")


def coreference_params(settings: Settings) -> dict[str, Any]:
    """Settings of coreference, on which extraction depends; {} without coreference."""
    kind = settings.index.coref
    if kind == "none":
        return {}
    if settings.index.extractor == "import":
        raise UsageError(
            "coreference serves extraction, and imported results are not extracted here",
            given=f"index.coref={kind} with index.extractor=import",
            do="leave out index.coref",
        )
    if kind == "fastcoref":
        return {"coref": kind}
    return {"coref": kind, "coref_prompt": read_prompt(PROMPT).digest, "coref_tokens": settings.index.coref_tokens}


def resolved(work: Work, passages: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Passages with the texts for extraction, and counts of passages: coref_changed, coref_same, coref_rejected,
    coref_unread, coref_failed.

    A rewrite that loses text (see `keeps_text`) is rejected. The original is used then, and also if the reply could not
    be read (unread) or the request failed. Without coreference the passages are unchanged and there are no counts.
    """
    kind = work.settings.index.coref
    if kind == "none":
        return COREFERENCE.rule(passages), {}
    work.progress.start("coreference", passages.num_rows, "passages")
    texts = passages["text"].to_pylist()
    rewrites = _by_fastcoref(work, texts) if kind == "fastcoref" else _by_llm(work, passages["title"], texts)
    counts = dict.fromkeys((f"coref_{status}" for status in ("changed", "same", "rejected", "unread", "failed")), 0)
    chosen = []
    for text, (status, rewrite) in zip(texts, rewrites, strict=True):
        if not status:
            status = "same" if rewrite == text else "changed" if keeps_text(text, rewrite) else "rejected"
        counts[f"coref_{status}"] += 1
        chosen.append(rewrite if status == "changed" else text)
    return passages.set_column(passages.schema.get_field_index("text"), "text", pa.array(chosen, pa.string())), counts


def _by_llm(work: Work, titles: pa.ChunkedArray, texts: Sequence[str]) -> Iterator[Rewrite]:
    tokens = work.settings.index.coref_tokens
    rows = zip(titles.to_pylist(), texts, strict=True)
    fields = ({"title": title, "text": text, "max_tokens": tokens} for title, text in rows)
    for reply in decided(work, COREFERENCE, fields):
        if isinstance(reply, str):
            yield "failed" if reply == "failed" else "unread", ""
        else:
            yield "", clean_text(reply.text)


def _by_fastcoref(work: Work, texts: Sequence[str]) -> Iterator[Rewrite]:
    model = load_fastcoref(work.settings.models.device)
    for start in range(0, len(texts), AT_ONCE):
        part = list(texts[start : start + AT_ONCE])
        predictions = model(part)
        yield from (("", replace_pronouns(text, clusters)) for text, clusters in zip(part, predictions, strict=True))
        work.progress.advance(len(part))


def load_fastcoref(device: str) -> Callable[[list[str]], list[list[list[tuple[int, int]]]]]:
    """Function that returns the clusters of spans of each text, by the package fastcoref. Raises MissingBackend if it,
    or its model, is not installed."""
    try:
        fastcoref = importlib.import_module("fastcoref")
    except ImportError as error:
        raise MissingBackend(
            "coreference by fastcoref needs a package that is not installed",
            given=f"index.coref=fastcoref ({error})",
            do="run: pip install fastcoref; or use index.coref=llm or none",
        ) from error
    try:
        model = fastcoref.FCoref(device="cuda:0" if device.startswith("cuda") else "cpu")
    except OSError as error:
        raise MissingBackend(
            "the model of fastcoref is not on this machine",
            given=str(error)[:200],
            do="download biu-nlp/f-coref once with the Hugging Face client, or use index.coref=llm or none",
        ) from error
    return lambda texts: [item.get_clusters(as_strings=False) for item in model.predict(texts=texts)]


# --- texts ---------------------------------------------------------------------------------------------


def replace_pronouns(text: str, clusters: Sequence[Sequence[Span]]) -> str:
    """`text` with each pronoun of a cluster replaced by the cluster's first mention that is not a pronoun; "'s" is
    added for a possessive. clusters: spans (start, end) of one thing's mentions. A cluster of pronouns only changes
    nothing.

    "her" is possessive if a word follows. Of overlapping spans the earlier one counts.

    >>> replace_pronouns("Ann sat. She sang her song.", [[(0, 3), (9, 12), (18, 21)]])
    "Ann sat. Ann sang Ann's song."
    """
    changes: list[tuple[int, int, str]] = []
    for spans in clusters:
        names = [text[start:end] for start, end in sorted(spans) if text[start:end].casefold() not in PRONOUNS]
        if names:
            changes += [(s, e, _form(text, s, e, names[0])) for s, e in spans if text[s:e].casefold() in PRONOUNS]
    parts, done = [], 0
    for start, end, name in sorted(changes):
        if start >= done:
            parts += [text[done:start], name]
            done = end
    return "".join([*parts, text[done:]])


def _form(text: str, start: int, end: int, name: str) -> str:
    pronoun = text[start:end].casefold()
    owns = pronoun in _POSSESSIVES or (pronoun == "her" and _WORD_AFTER.match(text, end) is not None)
    return f"{name}'s" if owns and not name.endswith(("'s", "’s")) else name


def keeps_text(original: str, rewrite: str) -> bool:
    """Whether `rewrite` keeps at least 80 % of the content words of `original`, with their counts, and all of its
    numbers, and is at most twice as long. Stop words and pronouns do not count."""
    original_words, rewrite_words = _content(original), _content(rewrite)
    kept = original_words & rewrite_words
    numbers = all(kept[word] == n for word, n in original_words.items() if word.isdigit())
    enough = sum(kept.values()) >= KEPT_SHARE * sum(original_words.values())
    return enough and numbers and len(rewrite) <= GROWTH * len(original)


def _content(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(text.casefold()) if word not in STOP_WORDS and word not in PRONOUNS)
