"""The first passages of `ppr`, reranked by a small model over features from several methods; then the reader.

A full date in the question decides among similar passages, see `_by_date`: the model knows multi-hop questions, and
gives shared words little weight.

`batched` describes the features of a passage, `model` the model. The package brings weights, made by
scripts/train_fused.py. Weights that `gpu-rag tune` fitted to an index are stored in it and take precedence.
"""

from __future__ import annotations

from collections.abc import Set
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


async def candidates(question: Question, run: Run, params: Params) -> Candidates:
    """The first passages of `ppr` and their features; at least run.depth passages."""
    (vector,) = await embed([question.text])
    lists = await gather(*(_listed(question, run, name) for name in params.lists))
    return await fused_candidates(Asked(question.text, vector, tuple(lists)), max(run.depth, DEPTH), len(lists))


async def _listed(question: Question, run: Run, name: str) -> Ranking:
    method: Any = load_method(name)
    ranking: Ranking = await method.ranking(question, replace(run, limit=DEPTH), method.Params(**LISTS[name]))
    return ranking


async def retrieve(question: Question, run: Run, params: Params) -> Support:
    """The run.limit passages of highest score; for a question with a full date see `_by_date`."""
    ranking = await _ranked(question, run, params)
    if dates := full_dates(question.text):
        ranking = await _by_date(ranking, dates, question, run, params)
    return Support(run.evidence(ranking, "weighed by several rankings", "fused"))


async def _ranked(question: Question, run: Run, params: Params) -> Ranking:
    scored = await candidates(question, run, params)
    return model(run.index, params).ranked(scored.ranking, scored.values, scored.pairs, max(run.depth, DEPTH))


async def _by_date(ranking: Ranking, dates: Set[str], question: Question, run: Run, params: Params) -> Ranking:
    """A passage that states a full date of the question comes before those that do not, unless they hold more of its
    other words, by BM25. Those that state it are ordered by the model, asked without the date: the lists are made
    twice. The scores keep their places, so that a passage that moved has the score of its new rank."""
    other = replace(question, text=without_full_dates(question.text))
    by_model, by_all = await _ranked(other, run, params), await search_bm25(question.text, DEPTH)
    by_words = await search_bm25(other.text, WORDS)
    place, words = {row: i for i, row in enumerate(by_model.rows)}, dict(zip(by_words.rows, by_words.scores))
    rows = list(dict.fromkeys((*by_all.rows, *ranking.rows)))
    texts = (f"{passage['title']}\n{passage['text']}" for passage in run.index.passage_rows(rows))
    dated = [row for row, text in zip(rows, texts) if dates & full_dates(text)]
    stating, order = {*dated}, list[int]()
    dated.sort(key=lambda row: place.get(row, len(place)))
    for row in ranking.rows:
        least = words.get(row, 0.0)
        first = dated[:1] if row in stating else [near for near in dated if words.get(near, 0.0) >= least]
        dated = [near for near in dated if near not in first]
        order += first if row in stating else [*first, row]
    order += dated
    last = ranking.scores[-1:] * (len(order) - len(ranking.rows))
    return Ranking(tuple(order), (*ranking.scores, *last))
