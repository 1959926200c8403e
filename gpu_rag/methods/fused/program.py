"""The first passages of `ppr`, reranked by a small model over features from several methods; then the reader.

The model knows multi-hop questions, and gives shared words little weight. So a passage that holds nearly all words of
the question, and its names, comes before others, and a full date in the question decides among similar passages: see
`placed`.

`batched` describes the features of a passage, `model` the model. The package brings weights, made by
scripts/train_fused.py. Weights that `gpu-rag tune` fitted to an index are stored in it and take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any

from gpu_rag.index.folder import canonical_json, sha256_text
from gpu_rag.index.index import Index
from gpu_rag.index.tuned import TUNED, tuned
from gpu_rag.methods.fused.batched import DEPTH, PAIRS, Asked, Candidates, columns, fused_candidates
from gpu_rag.methods.fused.model import SHIPPED, Model, model_of, shipped
from gpu_rag.methods.registry import load_method
from gpu_rag.program.embed import embed
from gpu_rag.program.reader import Support
from gpu_rag.program.run import Run
from gpu_rag.program.search import Ranking, search_bm25
from gpu_rag.runtime.gather import gather
from gpu_rag.settings.check import Declared
from gpu_rag.text.dates import full_dates, without_full_dates
from gpu_rag.types import Question

LISTS = {"bubblerag": {"depth": 0}}  # parameters: trees without growth cost a fifth less, and rank as well

WORDS = 10_000  # passages whose words are compared for a question with a date


@dataclass(frozen=True)
class Params(Declared):
    """The lists that are weighed."""

    bubblerag: Annotated[bool, "whether the ranking of `bubblerag` takes part; false: faster, but finds less"] = True

    @property
    def lists(self) -> tuple[str, ...]:
        """The methods whose lists are weighed."""
        return ("bubblerag",) if self.bubblerag else ()


def model(index: Index, params: Params, *, own: bool = True) -> Model:
    """The weights for an index: its own, if it was tuned with these lists, else the package's. Without `own`
    always the package's. Raises BadInput."""

    def load(index: Index) -> Model:
        key, names = ",".join(params.lists), (*columns(params.lists), *PAIRS)
        document = tuned(index.path).get("fused", {}).get(key) if own else None
        if document is None:
            return model_of(shipped()[key], names, SHIPPED)
        return model_of(document, names, index.path / TUNED)

    return index.loaded(f"fused model {params.lists} {own}", load)


def check(index: Index, params: Params) -> None:
    """Raise BadInput if the weights cannot be used."""
    model(index, params)


def config(index: Index, params: Params) -> dict[str, Any]:
    """Inputs of an answer besides the parameters."""
    return {"weights": sha256_text(canonical_json(model(index, params).document()))[:16]}


@dataclass(frozen=True)
class Dated:
    """Passages that state a full date of the question, by BM25, then by `ppr`. words: BM25 of passages."""

    rows: tuple[int, ...]
    words: Mapping[int, float]


async def without_dates(question: Question, run: Run, params: Params) -> Asked:
    """The question without its full dates, its vector and its lists."""
    other = replace(question, text=without_full_dates(question.text)) if full_dates(question.text) else question
    (vector,) = await embed([other.text])
    return Asked(other.text, vector, tuple(await gather(*(_listed(other, run, name) for name in params.lists))))


async def candidates(question: Question, asked: Asked, run: Run, k: int) -> tuple[Candidates, Dated]:
    """The first passages of `ppr` and their features, at least k passages; and those that state a full date of the
    question, among the first DEPTH by words and the first `run.depth` by `ppr`, at least DEPTH, for any k."""
    found, dates = await fused_candidates(asked, max(k, DEPTH), len(asked.lists)), full_dates(question.text)
    return found, await _dated(question.text, dates, found.ranking, run) if dates else Dated((), {})


async def _dated(text: str, dates: Set[str], ranking: Ranking, run: Run) -> Dated:
    by_words = await search_bm25(text, WORDS)
    rows = tuple(dict.fromkeys((*by_words.rows[:DEPTH], *ranking.rows[: max(run.depth, DEPTH)])))
    texts = (f"{passage['title']}\n{passage['text']}" for passage in run.index.passage_rows(rows))
    stating = tuple(row for row, text in zip(rows, texts) if dates & full_dates(text))
    return Dated(stating, dict(zip(by_words.rows, by_words.scores)))


async def _listed(question: Question, run: Run, name: str) -> Ranking:
    method: Any = load_method(name)
    ranking: Ranking = await method.ranking(question, replace(run, limit=DEPTH), method.Params(**LISTS[name]))
    return ranking


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit passages of highest score, see `placed`."""
    asked = await without_dates(question, run, params)

    async def rank(k: int) -> Ranking:
        found, by_date = await candidates(question, asked, run, k)
        n, weights = len(found.ranking.rows), model(run.index, params)
        return placed(weights.ranked(found.ranking, found.values, found.pairs, n), found.holding, by_date)

    return Support((await run.searched(rank, "weighed by several rankings", "fused"))[0])


def placed(ranking: Ranking, holding: Sequence[int], by_date: Dated) -> Ranking:
    """The ranking, but passages of `holding` come first, see `Candidates`, and then dates decide.

    A passage that states a full date of the question comes before those that do not, unless they hold more of its
    words, by BM25. The scores keep their places, so that a passage that moved has the score of its new rank.
    """
    is_held = {*holding}
    held = (row for row in ranking.rows if row in is_held)
    rows = _dated_first([*dict.fromkeys((*held, *holding, *ranking.rows))], by_date)
    return Ranking(rows, (*ranking.scores, *ranking.scores[-1:] * (len(rows) - len(ranking.rows))))


def _dated_first(ranked: Sequence[int], by_date: Dated) -> tuple[int, ...]:
    place = {row: i for i, row in enumerate(dict.fromkeys((*ranked, *by_date.rows)))}
    stating, words, order = {*by_date.rows}, by_date.words, list[int]()
    dated = sorted(stating, key=lambda row: words.get(row, 0.0))  # not yet placed before one that states no date
    for row in ranked:
        near = []
        while row not in stating and dated and words.get(dated[-1], 0.0) >= words.get(row, 0.0):
            near.append(dated.pop())
        order += [*sorted(near, key=place.__getitem__), row]
    return tuple(dict.fromkeys((*order, *sorted(dated, key=place.__getitem__))))
