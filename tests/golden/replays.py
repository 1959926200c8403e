"""What the golden scripts of HopRAG, BubbleRAG, HybGRAG and HydraRAG share: runs of a method, recorded and replayed."""

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

Found = dict[str, dict[str, Any]]  # {run: {question id: brief answer}}


@dataclass(frozen=True)
class Recording:
    """Golden runs of one method. layers: whose vectors get noise. runs: settings by name, beside `record.SETTINGS`, and
    under "constants" what of the method's parameters is fixed, to be something else.
    candidates: questions that are asked; of those that noise does not change the first `n_answered` are kept, by
    `order` of what was found and the question where it is given. brief: what is kept of an answer."""

    method: str
    layers: tuple[str, ...]
    runs: Mapping[str, Mapping[str, Any]]
    candidates: tuple[str, ...]
    n_answered: int
    brief: Callable[[Answer], dict[str, Any]]
    order: Callable[[Found, str], Any] | None = None

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
        gpu_rag.build(corpus_path(), folder, methods=[self.method], settings=record.SETTINGS)
        return gpu_rag.Index.open(folder)

    def answered(self, index: gpu_rag.Index, names: Sequence[str], llm: LLM) -> Found:
        """Every run over the questions named."""
        return {run: self._briefs(index.engine(self.settings(run), llm=llm), names, run) for run in self.runs}

    def _briefs(self, engine: Engine, names: Sequence[str], run: str) -> dict[str, Any]:
        asked = [question for question in record.questions() if question.id in names]
        with self._with_constants(run):
            return {answer.question_id: self.brief(answer) for answer in engine.run(self.method, asked).answers}

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
            found = self._recorded(index, sure[: self.n_answered])  # again, without the questions that are not kept
        self.answers.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{self.replies.name}, {self.answers.name}: {', '.join(sure[: self.n_answered])}")
