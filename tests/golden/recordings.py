"""Makes the golden files of a method again: python tests/golden/recordings.py METHOD

METHOD_replies.jsonl, METHOD_answers.json: what the packaged language model said to some sample questions in each run of
RECORDINGS below, and the answers, walks, trees and dialogues that this makes. Only questions whose every prompt stays
the same when all vectors get small noise, as another CPU's rounding might cause: they are answered again by replay to
find out. Make them again when a change is meant to alter what the method finds, or its prompts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import gpu_rag
from gpu_rag.engine import Engine
from gpu_rag.methods.registry import load_method
from gpu_rag.models.llm import load_llm
from gpu_rag.models.llm.interface import LLM
from gpu_rag.models.llm.replay import RecordingLLM
from gpu_rag.sample import corpus_path
from gpu_rag.settings import make_settings, merge
from gpu_rag.types import Answer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import record  # noqa: E402  (beside this file)

N_ANSWERED = 3
Found = dict[str, dict[str, Any]]  # {run: {question id: brief answer}}


@dataclass(frozen=True)
class Recording:
    """Golden runs of one method. layers: whose vectors get noise. runs: settings by name, beside `record.SETTINGS`, and
    under "constants" what of the method's parameters is fixed, to be something else.
    candidates: questions that are asked; of those that noise does not change the first `N_ANSWERED` are kept, by
    `order` of what was found and the question where it is given. brief: what is kept of an answer beside
    `record.brief`. each_run: the runs are methods of this folder, by name."""

    method: str
    layers: tuple[str, ...]
    runs: Mapping[str, Mapping[str, Any]]
    candidates: tuple[str, ...]
    brief: Callable[[Answer], dict[str, Any]]
    order: Callable[[Found, str], Any] | None = None
    each_run: bool = False

    @property
    def replies(self) -> Path:
        """What the model said."""
        return HERE / f"{self.method}_replies.jsonl"

    @property
    def answers(self) -> Path:
        """The answers that this makes."""
        return HERE / f"{self.method}_answers.json"

    def settings(self, run: str) -> dict[str, Any]:
        """The settings of one run."""
        return merge(record.SETTINGS, {name: part for name, part in self.runs[run].items() if name != "constants"})

    def _with_constants(self, run: str) -> AbstractContextManager[Any]:
        constants = self.runs[run].get("constants")
        return mock.patch.multiple(load_method(self.method).Params, **constants) if constants else nullcontext()

    def build(self, folder: Path) -> gpu_rag.Index:
        """The index of the sample corpus for the method."""
        methods = list(self.runs) if self.each_run else [self.method]
        gpu_rag.build(corpus_path(), folder, methods=methods, settings=record.SETTINGS)
        return gpu_rag.Index.open(folder)

    def answered(self, index: gpu_rag.Index, names: Sequence[str], llm: LLM) -> Found:
        """Every run over the questions named."""
        return {run: self._briefs(index.engine(self.settings(run), llm=llm), names, run) for run in self.runs}

    def _briefs(self, engine: Engine, names: Sequence[str], run: str) -> dict[str, Any]:
        asked = [question for question in record.questions() if question.id in names]
        with self._with_constants(run):
            answers = engine.run(run if self.each_run else self.method, asked).answers
        return {answer.question_id: {**record.brief(answer), **self.brief(answer)} for answer in answers}

    def _noisy(self, folder: Path, seed: int) -> Found:
        """The same by replay, over vectors with noise and an embedder with noise."""
        generator = np.random.default_rng(seed)
        index = gpu_rag.Index.open(folder)
        for layer in self.layers:
            held = index.vectors(layer)
            held += torch.from_numpy(generator.normal(0, record.NOISE, held.shape).astype(np.float32))
        found = {}
        for run in self.runs:
            models = record.NoisyModels(index.engine(self.settings(run)).models, generator)
            models.llm = lambda: load_llm(f"replay:{self.replies}")
            models.has_llm = lambda: True
            found[run] = self._briefs(Engine(index, make_settings(self.settings(run)), models), self.candidates, run)
        return found

    def _recorded(self, index: gpu_rag.Index, names: Sequence[str]) -> Found:
        self.replies.unlink(missing_ok=True)
        llm = RecordingLLM(load_llm("smollm2", device="cpu"), self.replies)
        found = self.answered(index, names, llm)
        llm.close()
        return found

    def record(self) -> None:
        """Records, then keeps questions that noise does not change."""
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "ix"
            index = self.build(folder)
            found = self._recorded(index, self.candidates)
            noisy = [self._noisy(folder, seed) for seed in range(record.N_NOISY)]
            sure = [q for q in self.candidates if all(n[run].get(q) == found[run][q] for n in noisy for run in found)]
            if self.order is not None:
                order = self.order
                sure = sorted(sure, key=lambda q: order(found, q))
            found = self._recorded(index, sure[:N_ANSWERED])  # again, without the questions that are not kept
        self.answers.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{self.replies.name}, {self.answers.name}: {', '.join(sure[:N_ANSWERED])}")


def steps_of(answer: Answer, *beginnings: str) -> list[list[Any]]:
    """Verb, number of candidates and choices of the steps whose verbs begin so."""
    return [[step.verb, step.n_candidates, *step.chosen] for step in answer.trace if step.verb.startswith(beginnings)]


def trees(answer: Answer) -> dict[str, Any]:
    evidence = [e.passage_id for e in answer.evidence[:5]]
    return {"evidence": evidence, "steps": steps_of(answer, "keywords", "groups", "trees", "expand", "enough")}


def paths(answer: Answer) -> dict[str, Any]:
    kept = ("topics", "phase", "verified_by")
    return {
        **{step.verb: list(step.chosen) for step in answer.trace if step.verb in kept},
        "paths": [[path.text, path.source] for path in answer.paths],
        "nodes": [node.name for node in answer.nodes[:3]],
    }


def dialogue(answer: Answer) -> dict[str, Any]:
    verbs = ("plan", "ask_", "seeker")
    return {"dialogue": [[step.verb, *step.chosen] for step in answer.trace if step.verb.startswith(verbs)]}


def by_request(found: Found, question: str) -> tuple[bool, str]:
    """First the questions that the model was asked about."""
    return found["documents"][question]["tokens"][0] == 0, question


def listed(*numbers: int) -> tuple[str, ...]:
    return tuple(f"q{number:02d}" for number in numbers)


PAPERS = {  # rankings as the papers have them: what the model is shown was recorded with these
    "hoprag": {"entry": "vertices", "inherit": 0.0},
    "bubblerag": {"passages": "fused"},
    "ppr": {"title_weight": 0.0},
    "higra-retriever": {"walk": "subgraph"},
    "higra-agent": {"walk": "subgraph"},
}
HIGRA = ("higra-retriever", "dual-agent", "higra-agent")
SIMILARITY, LLM_DECIDES = {"models": {"decider": "rule"}}, {"models": {"decider": "model"}}
RECORDINGS = {
    "hoprag": Recording(  # the model reads after a walk by similarity, or chooses every hop itself of a shorter walk
        "hoprag",
        ("passage_vectors", "hop_in_vectors", "hop_vertex_vectors"),
        {
            "similarity": {**SIMILARITY, "method": {"hoprag": PAPERS["hoprag"]}},
            "llm": {
                **LLM_DECIDES,
                "method": {"hoprag": {"top_k": 3, "n_hop": 2, **PAPERS["hoprag"]}},
                "constants": {"n_options": 4},
                "reader": {"passages": 2},
            },
        },
        listed(1, 2, 3, 5, 7, 9, 12, 13),
        lambda answer: {"walk": steps_of(answer, "hop_")[:-1]},
    ),
    "bubblerag": Recording(  # it reads what bubbles by similarity found, or takes every choice (one tree, two hops)
        "bubblerag",
        ("passage_vectors", "entity_vectors", "relation_vectors"),
        {
            "similarity": {
                **SIMILARITY,
                "method": {"bubblerag": {"rank": "score", **PAPERS["bubblerag"]}},
                "reader": {"passages": 3},
            },
            "llm": {
                **LLM_DECIDES,
                "method": {"bubblerag": {"n_trees": 1, "depth": 2, **PAPERS["bubblerag"]}},
                "constants": {"n_before": 2, "n_neighbours": 5, "max_picks": 2},
                "reader": {"passages": 2},
            },
        },
        listed(1, 2, 3, 5, 7, 9, 12, 13, 16, 18),
        trees,
    ),
    "hybgrag": Recording(  # it reads after a loop by rules, or judges the references itself; extracted knowledge base
        "hybgrag",
        ("passage_vectors", "kb_name_vectors", "kb_relation_vectors", "kb_text_vectors"),
        {
            "similarity": {**SIMILARITY, "reader": {"passages": 2}},
            "llm": {
                **LLM_DECIDES,
                "method": {"hybgrag": {"iterations": 3, "n_examples": 2}},
                "constants": {"n_references": 1},
                "reader": {"passages": 2},
            },
        },
        listed(1, 2, 3, 5, 7),
        lambda answer: {
            "nodes": [node.id for node in answer.nodes[:5]],
            "path": steps_of(answer, "hybgrag_")[:-1],
        },
    ),
    "hydrarag": Recording(  # over the extracted knowledge graph rules answer; over documents alone the model reads
        "hydrarag",
        ("passage_vectors", "kb_name_vectors", "kb_edge_vectors"),
        {
            "all": {"method": {"hydrarag": {"d_max": 2, "w1": 20}}},
            "documents": {"method": {"hydrarag": {"sources": "documents", "phases": 1}}},
        },
        listed(1, 2, 3, 4, 5, 6),
        paths,
        by_request,
    ),
    "sample": Recording(
        "sample",
        ("passage_vectors", "relation_vectors", "entity_vectors"),
        {method: {"method": {method: PAPERS[method]}} if method in PAPERS else {} for method in record.METHODS},
        listed(*range(1, 31)),
        lambda answer: {},
        each_run=True,
    ),
    "higra": Recording(
        "higra",
        ("passage_vectors", "higra_entity_vectors", "higra_relation_vectors"),
        {
            m: {"method": {m: PAPERS[m]}} if m in PAPERS else {}
            for m in ("higra-retriever", "dual-agent", "higra-agent")
        },
        listed(2, 3, 7, 9, 13, 16, 18),
        dialogue,
        each_run=True,
    ),
}

if __name__ == "__main__":
    RECORDINGS[sys.argv[1]].record()
