"""Display of answers in a notebook, and as tables of pandas and Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from gpu_rag.errors import needing
from gpu_rag.types import Answer, Evidence

if TYPE_CHECKING:
    import pandas
    import pyarrow

MAX_SHOWN, MAX_PATHS, MAX_CHARS = 10, 5, 280  # results per list, paths, characters of a passage without a mark
GROUNDED = {
    "supported": "supported by the evidence",
    "mentioned": "its words stand in the evidence, which may say them of something else",
    "unsupported": "unsupported: the evidence does not state it",
    "none": "undecided: the check of its words cannot tell, so read the evidence",
}


def mark(status: str, llm_calls: int) -> str:
    """Words for the grounding of an answer. A count that no model made needs none."""
    return GROUNDED[status] if llm_calls or status != "none" else ""


class Result(Answer):
    """The answer to one question, or only its evidence if no model was asked."""

    def __repr__(self) -> str:
        passages = f"{len(self.evidence)} passages"
        text = "" if self.text is None else f" {_cut(self.text)!r},"
        return f"Result({self.question_id}, {self.method}, {self.status}:{text} {passages})"

    def _repr_html_(self) -> str:
        """The notebook view: paths, supporting sentences, the answer with its grounding, passages."""
        titles = {item.passage_id: item.title for item in self.evidence}
        passages = [(item, list(self._parts(item))) for item in self.evidence]
        shown = {"titles": titles, "passages": passages, "paths": self.paths[:MAX_PATHS], "most": MAX_SHOWN}
        return str(_template().render(answer=self, words=self._words(), **shown))

    def _words(self) -> str:
        """The remark after the answer, or in its place."""
        if self.error is not None:
            return "failed, {type}: {message}".format(**self.error)
        if self.text is None:
            return "no answer: the reader found no support in the evidence" if self.usage.llm_calls else ""
        return mark(self.grounding.status, self.usage.llm_calls)

    def _parts(self, item: Evidence) -> Iterator[tuple[str, bool]]:
        """A passage as (text, whether it is marked); text outside marked sentences is shortened."""
        end = 0
        spans = [(s.start, s.end) for s in self.support if s.passage_id == item.passage_id]
        for start, stop in sorted(spans):
            yield _cut(item.text[end:start]), False
            yield item.text[start:stop], True
            end = stop
        yield _cut(item.text[end:]), False

    def to_pandas(self) -> pandas.DataFrame:
        """One row per passage, best first; rank counts from 1. Raises MissingBackend."""
        return _frame(_passage_rows(self), _PASSAGE)

    def to_arrow(self) -> pyarrow.Table:
        """The rows of `to_pandas` as an Arrow table, which `datasets.Dataset` takes."""
        return _arrow(_passage_rows(self), _PASSAGE)


class Results(list[Result]):
    """Results in the order of their questions."""

    def __repr__(self) -> str:
        counts = Counter(result.status for result in self)
        return f"Results({', '.join(f'{n} {status}' for status, n in counts.items()) or 'none'})"

    def _repr_html_(self) -> str:
        """The notebook view of the first ten results."""
        more = f"<div>and {len(self) - MAX_SHOWN} more</div>" if len(self) > MAX_SHOWN else ""
        return "<hr>".join(result._repr_html_() for result in self[:MAX_SHOWN]) + more

    def to_pandas(self, *, passages: bool = False) -> pandas.DataFrame:
        """One row per question, with the ids of its passages (best first), its cost and its error.

        passages: one row per passage instead, as in `Result.to_pandas`. Raises MissingBackend.
        """
        return _frame(*self._table(passages))

    def to_arrow(self, *, passages: bool = False) -> pyarrow.Table:
        """The rows of `to_pandas` as an Arrow table, which `datasets.Dataset` takes."""
        return _arrow(*self._table(passages))

    def _table(self, passages: bool) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """(rows, columns)."""
        if passages:
            return [row for result in self for row in _passage_rows(result)], _PASSAGE
        return [_row(result) for result in self], _ROW


_PASSAGE = ("question_id", "rank", "passage_id", "title", "score", "text", "start", "end", "file", "place", "why")
_ROW = ("id", "question", "method", "status", "answer", "grounding", "passages", "llm_calls", "prompt_tokens",
        "generated_tokens", "llm_s", "embed_s", "graph_s", "error")  # fmt: skip
_INTEGERS = ("rank", "start", "end", "llm_calls", "prompt_tokens", "generated_tokens")
_FLOATS = ("score", "llm_s", "embed_s", "graph_s")


def _passage_rows(result: Result) -> list[dict[str, Any]]:
    passages = enumerate(result.evidence, 1)
    return [{"question_id": result.question_id, "rank": rank, **vars(item)} for rank, item in passages]


def _row(result: Result) -> dict[str, Any]:
    error = None if result.error is None else "{type}: {message}".format(**result.error)
    return {
        **vars(result.usage),
        **vars(result),
        "grounding": result.grounding.status,
        "id": result.question_id,
        "answer": result.text,
        "passages": [item.passage_id for item in result.evidence],
        "error": error,
    }


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pandas.DataFrame:
    with needing("tables need pandas", "pip install 'gpu-rag[pandas]'"):
        import pandas
    return pandas.DataFrame([[row[name] for name in columns] for row in rows], columns=list(columns))


def _arrow(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pyarrow.Table:
    import pyarrow

    types = dict.fromkeys(columns, pyarrow.string())
    types |= dict.fromkeys(_INTEGERS, pyarrow.int64()) | dict.fromkeys(_FLOATS, pyarrow.float64())
    types["passages"] = pyarrow.list_(pyarrow.string())
    schema = pyarrow.schema([(name, types[name]) for name in columns])
    return pyarrow.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema)


def _cut(text: str) -> str:
    """The text; a long one is cut to its two ends."""
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS // 2]} … {text[-MAX_CHARS // 2 :]}"


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("gpu_rag", "report"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("answer.html")
