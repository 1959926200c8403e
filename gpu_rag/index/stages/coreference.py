"""Texts with names in place of pronouns (HiGraAgent's P'), for extraction alone: search uses the original."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gpu_rag.errors import MissingBackend, UsageError
from gpu_rag.index.stages.requests import ask, text_requests
from gpu_rag.index.work import Work
from gpu_rag.settings import Settings
from gpu_rag.text.normalise import clean_text
from gpu_rag.text.prompts import Prompt
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.text.tokens import STOP_WORDS

COREF_SCHEMA = canonical_schema(object_of({"text": {"type": "string"}}))
Texts = Sequence[str]
Rewrite = tuple[str, str]  # why there is none, or "" and the text
Span = tuple[int, int]

_POSSESSIVES = frozenset({"his", "its", "their", "hers", "theirs"})
PRONOUNS = frozenset({"he", "she", "it", "they", "him", "her", "them"}) | _POSSESSIVES
KEPT_SHARE = 0.8  # least share of the content words that a rewrite keeps
AT_ONCE = 512  # texts that fastcoref is given
GROWTH = 2.0  # greatest length of a rewrite, as a multiple of the original's
_WORD = re.compile(r"\w+")
_WORD_AFTER = re.compile(r"\s+[^\W\d_]")


def coreference_params(settings: Settings) -> dict[str, Any]:
    """The settings of coreference, on which extraction depends; nothing without coreference."""
    kind = settings.alignment.coref
    if kind == "none":
        return {}
    if settings.index.extractor == "import":
        raise UsageError(
            "coreference serves extraction, and imported results are not extracted here",
            given=f"alignment.coref={kind} with index.extractor=import",
            do="leave out alignment.coref",
        )
    if kind == "fastcoref":
        return {"coref": kind}
    prompt = Prompt.read("gpu_rag.index.stages.prompts", "coreference")
    return {"coref": kind, "coref_prompt": prompt.digest, "coref_tokens": settings.alignment.coref_tokens}


def resolved_texts(work: Work, titles: Texts, texts: Texts) -> tuple[list[str], dict[str, int]]:
    """The texts for extraction, and counts of passages: coref_changed, coref_same, coref_rejected, coref_unread,
    coref_failed.

    A rewrite that loses text (see `keeps_text`) is rejected; then, and where the reply could not be read (unread) or
    the request failed, the original is used. Without coreference the texts as they are, and no counts.
    """
    kind = work.settings.alignment.coref
    if kind == "none":
        return list(texts), {}
    work.progress.start("coreference", len(texts), "passages")
    rewrites = (_by_fastcoref if kind == "fastcoref" else _by_llm)(work, titles, texts)
    counts = dict.fromkeys((f"coref_{status}" for status in ("changed", "same", "rejected", "unread", "failed")), 0)
    resolved = []
    for text, (status, rewrite) in zip(texts, rewrites, strict=True):
        if not status:
            status = "same" if rewrite == text else "changed" if keeps_text(text, rewrite) else "rejected"
        counts[f"coref_{status}"] += 1
        resolved.append(rewrite if status == "changed" else text)
    return resolved, counts


def _by_llm(work: Work, titles: Texts, texts: Texts) -> list[Rewrite]:
    prompt = Prompt.read("gpu_rag.index.stages.prompts", "coreference")
    tokens, seed = work.settings.alignment.coref_tokens, work.settings.runtime.seed
    requests = text_requests(prompt, titles, texts, schema=COREF_SCHEMA, max_tokens=tokens, seed=seed)
    return [
        ("failed" if said == "failed" else "unread", "") if isinstance(said, str) else ("", clean_text(said["text"]))
        for said in ask(work, requests, "coreference")
    ]


def _by_fastcoref(work: Work, titles: Texts, texts: Texts) -> list[Rewrite]:
    model = load_fastcoref(work.settings.models.device)
    found: list[Rewrite] = []
    for start in range(0, len(texts), AT_ONCE):
        part = list(texts[start : start + AT_ONCE])
        predictions = model(part)
        found += [("", replace_pronouns(text, clusters)) for text, clusters in zip(part, predictions, strict=True)]
        work.progress.advance(len(part))
    return found


def load_fastcoref(device: str) -> Callable[[list[str]], list[list[list[tuple[int, int]]]]]:
    """The clusters of spans of each text by the package fastcoref. Raises MissingBackend where it is not installed."""
    try:
        fastcoref = importlib.import_module("fastcoref")
    except ImportError as error:
        raise MissingBackend(
            "coreference by fastcoref needs a package that is not installed",
            given=f"alignment.coref=fastcoref ({error})",
            do="run: pip install fastcoref; or use alignment.coref=llm or none",
        ) from error
    try:
        model = fastcoref.FCoref(device="cuda:0" if device.startswith("cuda") else "cpu")
    except OSError as error:
        raise MissingBackend(
            "the model of fastcoref is not on this machine",
            given=str(error)[:200],
            do="download biu-nlp/f-coref once with the Hugging Face client, or use alignment.coref=llm or none",
        ) from error
    return lambda texts: [item.get_clusters(as_strings=False) for item in model.predict(texts=texts)]


# --- texts ---------------------------------------------------------------------------------------------


def replace_pronouns(text: str, clusters: Sequence[Sequence[Span]]) -> str:
    """`text` with each pronoun of a cluster replaced by the cluster's first mention that is none, "'s" added where it
    is possessive. clusters: spans (start, end) of one thing's mentions; a cluster of pronouns alone changes nothing.

    "her" is possessive where a word follows. Of overlapping spans the earlier counts.

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
    """Whether `rewrite` holds at least 80 % of the content words of `original`, each as often as there, and all of its
    numbers, and is at most twice as long. Stop words, and with them pronouns, do not count."""
    wanted, found = _content(original), _content(rewrite)
    kept = wanted & found
    numbers = all(kept[word] == n for word, n in wanted.items() if word.isdigit())
    enough = sum(kept.values()) >= KEPT_SHARE * sum(wanted.values())
    return enough and numbers and len(rewrite) <= GROWTH * len(original)


def _content(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(text.casefold()) if word not in STOP_WORDS and word not in PRONOUNS)
