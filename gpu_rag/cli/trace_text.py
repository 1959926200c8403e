"""One answer in words: the question, decisions, findings and the answer.

Methods bring words for their own steps (`Method.explain`). The name of a step may end with how something was
chosen, "NAME/rule", or with "/malformed"; words are looked up without it.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any

from gpu_rag.cli.terminal import on_one_line, visible
from gpu_rag.index.metadata import in_words
from gpu_rag.jobs import best_sentences, in_one_line, no_answer, title_of
from gpu_rag.methods.registry import joined_hooks
from gpu_rag.program.support import LETTERS
from gpu_rag.report.answers import mark
from gpu_rag.text.tokens import STOP_WORDS, tokenize, words_of

if TYPE_CHECKING:
    from rich.text import Text

WORDS = {
    "search_dense": "passages nearest by vector, of {n}",
    "search_nodes": "things nearest by the texts that stand in for them, of {n}",
    "search_bm25": "passages that share rare words, of {n}",
    "search_hybrid": "passages high in both the vector and the word ranking, of {n}",
    "rank_by_graph": "passages reached in the graph from facts near the question, of {n}",
    "seed_facts": "facts near the question, from which the graph was searched, of {n}",
    "rerank_passages": "passages reordered, of {n}",
    "rerank_facts": "facts reordered, of {n}",
    "read": "the model reads the evidence and answers",
    "answer": "the model answers",
    "condense": "the question with what its words stand for",
    "clarify": "the question, rewritten",
    "plan": "plan",
}
HOW = {
    "only": "there is no other",
    "rule": "by rule",
    "rank": "by the model's log-probabilities",
    "model": "by the model",
    "oracle": "by an oracle",
    "encoder": "by the cross-encoder",
    "fallback": "by rule, since the model's replies could not be used",
    "malformed": "the reply could not be read",
}


_MATCHED = ("paths", "sentences", "evidence", "answer", "No")  # parts whose words are compared with question and answer
_ASKED = "bold yellow"
_GROUNDED = {"supported": "bold green", "unsupported": "bold red"}
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_WIDTH = 100
_MAX_CHARS = 323  # maximum characters of a passage
_REMARKS = ("missing", "unread", "sought", "barred")


def _wrapped(text: str, indent: str, hanging: str | None = None) -> str:
    following = indent if hanging is None else hanging
    return textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=following)


def trace_text(row: dict[str, Any], *, decisions: bool = True, evidence: int | None = None) -> str:
    """The text that `explain` and `ask` print. evidence: number of passages to show (default all)."""
    lines = [f"question  {row['question']}", f"method    {row['method']}"]
    if row.get("where"):
        lines.append(f"where     {row['where']}")
    if row["status"] == "retrieved":
        lines += [f"\n{no_answer(row)}", *_sentences(row)]
        lines += ["No word of the question is in these passages."] if _shares_no_word(row) else []
    if decisions and row["trace"]:
        lines.append("\ndecisions")
        lines.extend(_step(step) for step in row["trace"])
    if row["paths"]:
        lines.append("\npaths")
        for path in row["paths"][: None if decisions else _MAX_PATHS]:
            where = ", ".join(edge[3] for edge in path["edges"])
            lines.append(on_one_line(f"  {path['text']}   [{where}]"))
    if row["status"] != "retrieved":
        lines += ["\nsentences", *_sentences(row)] if row.get("support") else []
        lines += ["", _answer(row)]
    lines += [f"{name:<9} {line}" for name in _REMARKS for line in row.get(name, ())]
    if row.get("nodes"):
        lines.append("\nnodes")
        for number, node in enumerate(row["nodes"][:evidence], 1):
            line = f"  {number}. {node['name']}   [{node['id']}, {node['type']}]  score {node['score']:.3f}"
            lines.append(on_one_line(line))
    lines.append("\nevidence" if row["evidence"] else "\nevidence  no passages")
    for number, item in enumerate(row["evidence"][:evidence], 1):
        line = f"  {number}. {title_of(item)}   [{_place(item)}]  score {item['score']:.3f}: {item['why']}"
        lines.append(on_one_line(line))
        if item.get("metadata"):
            lines.append(_wrapped(in_words(item["metadata"]), "     "))
        text = textwrap.shorten(in_one_line(item["text"]), _MAX_CHARS, placeholder=" ...", break_on_hyphens=False)
        lines.append(_wrapped(text, "     "))
    usage = row["usage"]
    lines.append(
        f"\ncost      {usage['llm_calls']} LLM calls, {usage['prompt_tokens']} prompt and {usage['generated_tokens']} "
        f"generated tokens; seconds: LLM {usage['llm_s']:.2f}, embedding {usage['embed_s']:.3f}, "
        f"graph {usage['graph_s']:.3f}"
    )
    if usage["cut"]:
        lines.append(f"          {usage['cut']} tokens of evidence did not fit the prompt")
    return "\n".join(lines)


def _sentences(row: dict[str, Any]) -> list[str]:
    return [_wrapped(text, "  > ", "    ") for text in best_sentences(row)]


def _shares_no_word(row: dict[str, Any]) -> bool:
    """Whether the evidence has no word of the question, compared as `support` does, and nothing else was found."""
    question = row.get("condensed") or row["question"]
    asked = {word[:LETTERS] for word in words_of(question) if word not in STOP_WORDS}
    texts = " ".join(f"{item['title']} {item['text']}" for item in row["evidence"])
    found = row["paths"] or row.get("nodes") or asked & {word[:LETTERS] for word in words_of(texts)}
    return bool(asked and row["evidence"] and not found)


def styled(text: str, row: dict[str, Any]) -> Text:
    """`trace_text` of a row with styles for the heads of parts and, in paths, sentences and passages, for the words of
    the answer (green if it is supported) and of the question."""
    from rich.text import Text

    shown = Text()
    answered, asked = set(tokenize(row["answer"] or "")), set(tokenize(row.get("condensed") or row["question"]))
    status = row["grounding"]["status"]
    found = "bold green" if status == "supported" else "bold"
    part = ""
    for line in visible(text).splitlines(keepends=True):
        made = Text(line)
        if line[0].isalpha():
            part = line.split()[0]
            made.stylize("bold", 0, len(part))
        if part in _MATCHED:
            for word in _WORD.finditer(line):
                terms = set(tokenize(word[0]))
                style = found if terms & answered else _ASKED if terms & asked else ""
                made.stylize(style, *word.span())
        if part in ("answer", "failed") and line.startswith(part):
            made.stylize(_GROUNDED.get(status, "") if part == "answer" else "red", len(part))
        shown.append_text(made)
    return shown


def _answer(row: dict[str, Any]) -> str:
    """The line of the answer, with its grounding."""
    if row["status"] == "failed":
        return f"failed    {row['error']['type']}: {row['error']['message']}"
    if row["answer"] is None:
        asked = "the reader found no support in the evidence" if row["usage"]["llm_calls"] else "no model was asked"
        reason = asked if row["evidence"] or not row.get("where") else "no passage that fits the filter was found"
        return f"answer    none: {reason}"
    grounding = row["grounding"]
    words = mark(grounding["status"], row["usage"]["llm_calls"])
    words = f"   ({words})" if words else ""
    passages = {item["passage_id"]: item for item in row["evidence"]}
    quoted = [(passages[s["passage_id"]], s["start"], s["end"]) for s in grounding["sentences"]]
    texts = [f"{in_one_line(item['text'][start:end])} [{title_of(item)}]" for item, start, end in quoted]
    lines = [_wrapped(text, "  > ", "    ") for text in texts]
    return "\n".join([f"answer    {row['answer']}{words}", *lines])


def _place(item: dict[str, Any]) -> str:
    """The place of the quoted span: passage, file and page or line, characters of the document."""
    where = " ".join(filter(None, [item.get("file"), item.get("place")]))
    parts = [item["passage_id"] if item["passage_id"] != item.get("file") else "", where]
    return ", ".join([*filter(None, parts), f"characters {item['start']}-{item['end']}"])


_MAX_SHOWN = 16
_MAX_PATHS = 5  # without the decisions


def _step(step: dict[str, Any]) -> str:
    words = step_words(step["verb"], step["n_candidates"])
    among = f" among {step['n_candidates']:,}" if step["n_candidates"] and words is None else ""
    reply = f" (reply {step['reply_hash']})" if step["reply_hash"] else ""
    head = f"  {step['step'] + 1}. {words or step['verb']}{among}{reply}, {step['s'] * 1000:.1f} ms"
    chosen = [_wrapped(item, "       - ", "         ") for item in step["chosen"][:_MAX_SHOWN]]
    return "\n".join([head, *chosen])


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """(pattern of step names, words) of all methods; names without a star first."""
    words = WORDS | joined_hooks("explain")
    names = sorted(words, key=lambda name: "*" in name)
    return [(re.compile(re.escape(name).replace(r"\*", "([a-z0-9]+)")), words[name]) for name in names]


def step_words(verb: str, n_candidates: int) -> str | None:
    """The words for a step, or None if only its name can be shown.

    >>> step_words("expand_1_2/rule", 40)
    'evidence graph 1, hop 2: relations that lead on, of 40, by rule'
    """
    words = _words(verb, f"{n_candidates:,}")
    if words is not None:
        return words
    name, _, how = verb.rpartition("/")
    words = _words(name, f"{n_candidates:,}") if how in HOW else None
    return None if words is None else f"{words}, {HOW[how]}"


def _words(name: str, n: str) -> str | None:
    matches = ((pattern.fullmatch(name), text) for pattern, text in _patterns())
    return next((text.format(*match.groups(), n=n) for match, text in matches if match), None)
