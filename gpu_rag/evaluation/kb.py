"""Scores of questions over knowledge bases: ranked nodes (STaRK), and answers on paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpu_rag.errors import BadInput
from gpu_rag.evaluation.metrics import hit_at, normalise_answer, recall_at, reciprocal_rank
from gpu_rag.index import tables
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KnowledgeBase
from gpu_rag.index.knowledge_base.load import load_kb
from gpu_rag.index.knowledge_base.tables import KB_RECORDS
from gpu_rag.sources.questions import QuestionRow
from gpu_rag.types import Answer

SKB_MEASURES = ("hit@1", "hit@5", "recall@20", "mrr")
KG_MEASURES = ("hits@1", "answer_on_path", "answer_on_path_pruned")
DEPTH = 20  # nodes, or passages in their place, that score SKB questions


class KbGold:
    """The gold answers of questions over an index with a knowledge base.

    An SKB question has `answer_ids`; a KG question has answers but neither `answer_ids` nor `gold_ids`. Other questions
    are neither. An answer id is the id of a node in its source. A decimal id N also means the node "nN" if no node is
    called N, as in the tables of PrimeKG. `answer_types`, if a row has them, are the types that answers may have. Other
    nodes are left out of rankings, as STaRK's evaluation ranks only products on Amazon and only papers on MAG.

    Every method misses gold that is not a node; it is counted in `missed`, since a knowledge base may lack it. Raises
    BadInput if no gold of the set is a node (it then belongs to another base), and if an answer has none of these
    types: scores would silently be too low.
    """

    def __init__(self, index: Index, rows: Sequence[QuestionRow]):
        self._index = index
        self.is_kb = "kb" in index.stages
        self._known = self._records() if self.is_kb and any(row.meta.get("answer_ids") for row in rows) else {}
        self._gold = {row.question.id: self._nodes(row) for row in rows if self.is_skb(row)}
        self._types = {row.question.id: self._answer_types(row) for row in rows if self.is_skb(row)}
        self.missed = self._missed(rows)
        if self._gold and not any(map(any, self._gold.values())):
            row = next(filter(self.is_skb, rows))
            do = "index the knowledge base that the questions belong to"
            raise _bad("no answer id is a node of the knowledge base", row, str(row.meta["answer_ids"][0]), do=do)

    @property
    def _kb(self) -> KnowledgeBase:
        return self._index.loaded("kb", load_kb)

    def is_skb(self, row: QuestionRow) -> bool:
        """Whether the answers of a question are nodes."""
        return self.is_kb and bool(row.meta.get("answer_ids"))

    def is_kg(self, row: QuestionRow) -> bool:
        """Whether the answers of a question are expected on paths."""
        return self.is_kb and bool(row.answers) and not row.gold_ids and not row.meta.get("answer_ids")

    def nodes(self, row: QuestionRow) -> list[str]:
        """The ids of the nodes that answer an SKB question."""
        return [id for nodes in self._gold[row.question.id] for id in sorted(nodes)]

    def _records(self) -> dict[str, set[str]]:
        """The nodes of each id, as in the sources."""
        table = tables.read_table(self._index.folder("kb") / "kb_records.parquet", KB_RECORDS)
        known: dict[str, set[str]] = defaultdict(set)
        for id, node in zip(table["id"].to_pylist(), table["node"].to_pylist()):
            known[id].add(self._kb.node_ids[node])
        return known

    def _missed(self, rows: Sequence[QuestionRow]) -> dict[str, int]:
        """{"questions": number with gold that is not a node, by name or alias, "answers": amount of such gold}, or
        {}."""
        missed = []
        for row in rows:
            if self.is_skb(row):
                missed.append(sum(not nodes for nodes in self._gold[row.question.id]))
            elif self.is_kg(row):
                missed.append(sum(not self._is_name(answer) for answer in row.answers))
        return {"questions": sum(map(bool, missed)), "answers": sum(missed)} if any(missed) else {}

    def _is_name(self, answer: str) -> bool:
        return bool(self._kb.named(answer) or self._kb.named(normalise_answer(answer)))

    def _nodes(self, row: QuestionRow) -> list[set[str]]:
        """The node ids of each answer id; an empty set for an id that is not a node."""
        node_sets = []
        for given in dict.fromkeys(map(str, row.meta["answer_ids"])):
            nodes = self._known.get(given) or self._known.get(f"n{given}" if given.isdecimal() else given) or set()
            if not nodes or nodes not in node_sets:
                node_sets.append(nodes)
        return node_sets

    def _answer_types(self, row: QuestionRow) -> frozenset[str] | None:
        """The types that answers of a question may have; None for all."""
        given = row.meta.get("answer_types")
        if given is None:
            return None
        known = self._kb.type_names
        if not isinstance(given, list) or not given or any(type not in known for type in given):
            expected = f"a list of {' | '.join(known[:20])}"
            raise _bad("answer_types are not types of the knowledge base", row, repr(given), expected=expected)
        types = frozenset(given)
        gold = filter(None, self._gold[row.question.id])
        lost = next((nodes for nodes in gold if not self._of_types(nodes, types)), None)
        if lost is not None:
            raise _bad("an answer is of none of the answer_types", row, min(lost), expected=" | ".join(sorted(types)))
        return types

    def _of_types(self, nodes: Collection[str], types: Collection[str]) -> list[str]:
        """The nodes whose type is one of `types`, in their order."""
        kb = self._kb
        rows = ((node, kb.row_of(node)) for node in nodes)
        return [node for node, row in rows if row is not None and kb.type_names[kb.node_type[row]] in types]

    def ranking(self, answer: Answer) -> list[str]:
        """Node ids, best first: the answer's nodes, otherwise the nodes that own the documents of its evidence."""
        if answer.nodes:
            return list(dict.fromkeys(node.id for node in answer.nodes))
        own = self._index.loaded("owners of passages", lambda index: owners(self._kb))
        return list(dict.fromkeys(own[e.passage_id] for e in answer.evidence if e.passage_id in own))

    def scores(self, answer: Answer, row: QuestionRow) -> dict[str, float]:
        """SKB_MEASURES or KG_MEASURES of one question; {} for other questions."""
        if self.is_skb(row):
            return self.score_nodes(answer, row)
        return score_paths(answer, row.answers) if self.is_kg(row) else {}

    def score_nodes(self, answer: Answer, row: QuestionRow) -> dict[str, float]:
        """SKB_MEASURES of one question, as STaRK defines them. If no gold node is ranked, the reciprocal rank is 0.

        Several nodes under one answer id (from two sources) count once, at the best of their ranks.
        """
        gold = self._gold[row.question.id]
        named = {node: str(number) for number, nodes in enumerate(gold) for node in nodes}
        nodes, types = self.ranking(answer), self._types[row.question.id]
        nodes = nodes if types is None else self._of_types(nodes, types)
        ranking = list(dict.fromkeys(named.get(node, f"-{node}") for node in nodes))
        wanted = [str(number) for number in range(len(gold))]
        return {
            "hit@1": hit_at(ranking, wanted, 1),
            "hit@5": hit_at(ranking, wanted, 5),
            "recall@20": recall_at(ranking, wanted, DEPTH),
            "mrr": reciprocal_rank(ranking, wanted),
        }


def _bad(what: str, row: QuestionRow, given: str, **parts: str) -> BadInput:
    return BadInput(what, given=f"question {row.question.id} with {given}", **parts)


def owners(kb: KnowledgeBase) -> dict[str, str]:
    """{passage id: id of the node that owns its document}."""
    owner_of: dict[str, str] = {}
    first, rows = kb.node_passages.offsets.tolist(), kb.node_passages.values
    for node in kb.n_own.nonzero()[0].tolist():
        for row in rows[first[node] : first[node] + int(kb.n_own[node])].tolist():
            owner_of[kb.passage_ids[row]] = kb.node_ids[node]
    return owner_of


def score_paths(answer: Answer, gold: Sequence[str]) -> dict[str, float]:
    """KG_MEASURES of one question. A name is a gold answer if both are equal after normalisation (as for em).

    hits@1: the first ranked node (or the answer text if there are no nodes) is a gold answer. answer_on_path_pruned: a
    path of the answer has one; answer_on_path: one of these paths, or any pool of the search, has one.
    """
    wanted = {normalise_answer(name) for name in gold}
    answered = answer.nodes[0].name if answer.nodes else answer.text
    kept = any(normalise_answer(name) in wanted for path in answer.paths for edge in path.edges for name in edge[::2])
    searched = any(on_path(pool.entities, wanted) for pool in answer.pools)
    return {
        "hits@1": float(answered is not None and normalise_answer(answered) in wanted),
        "answer_on_path": float(kept or searched),
        "answer_on_path_pruned": float(kept),
    }


def on_path(entities: Sequence[str], wanted: set[str]) -> bool:
    """Whether one of the names is wanted."""
    return any(normalise_answer(name) in wanted for name in entities)


def pool_shares(pairs: Iterable[tuple[Answer, QuestionRow]]) -> dict[str, dict[str, float]]:
    """{pool: {"n": questions with it, "share": of these, with a gold answer in it, "paths": on average}}."""
    counts: dict[str, list[tuple[bool, int]]] = {}
    for answer, row in pairs:
        wanted = {normalise_answer(name) for name in row.answers}
        for pool in answer.pools:
            counts.setdefault(pool.name, []).append((on_path(pool.entities, wanted), pool.n_paths))
    return {
        name: {
            "n": len(pools),
            "share": sum(hit for hit, _ in pools) / len(pools),
            "paths": sum(n for _, n in pools) / len(pools),
        }
        for name, pools in counts.items()
    }


def by_hops(rows: Sequence[QuestionRow], scores: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """{hops: {"n", measures}} of KG questions that state their hops. scores: scores of these questions."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if (hops := row.meta.get("hops")) is not None:
            places[str(hops)].append(place)
    return {
        hops: {"n": len(group), **{name: sum(values[i] for i in group) / len(group) for name, values in scores.items()}}
        for hops, group in sorted(places.items())
    }
