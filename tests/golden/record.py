"""Makes the golden rankings again: python tests/golden/record.py [--beside]

rankings.json: for each embedder, method and sample question the ten best passages with their scores. Every ranking is
made several times more with noise on all vectors, as another CPU's rounding might cause: places whose passage then
changes are listed as `unsure` (there only the score is compared), and `tolerance` bounds how far scores moved. The
hashing embedder gives nearly equal vectors everywhere, so its rankings are held tightly. MiniLM in bf16 does not:
between a CPU with AMX and one with AVX-512 BF16 alone, cosines of the sample moved by up to .0015. `--beside` keeps a
record of MiniLM that was made on another kind of processor, and marks what differs here.

Make them again when a change is meant to alter rankings: another extraction, another seeding.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpu_rag
from gpu_rag.engine import Engine
from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.set import ModelSet
from gpu_rag.sample import corpus_path, questions_path
from gpu_rag.settings import make_settings
from gpu_rag.types import Question

HERE = Path(__file__).resolve().parent
RANKINGS = HERE / "rankings.json"
METHODS = ("dense", "bm25", "hybrid", "ppr")
SETTINGS: dict[str, Any] = {"models": {"embedder": "hash", "llm": "none", "device": "cpu", "vector_cache_gib": 0}}
MINILM: dict[str, Any] = {"models": {**SETTINGS["models"], "embedder": "minilm"}}
K = 10
NOISE, N_NOISY = 1e-5, 6  # of one vector element
MINILM_NOISE = 5e-4
LEAST_TOLERANCE = 1e-5

Rankings = dict[str, dict[str, dict[str, Any]]]  # method -> question id -> {"ids", "scores", ...}


def build(folder: Path, settings: Any = None) -> gpu_rag.Index:
    """The index of the sample corpus for all methods."""
    gpu_rag.build(corpus_path(), folder, methods=METHODS, settings=settings or SETTINGS)
    return gpu_rag.Index.open(folder)


def questions() -> list[Question]:
    rows = [json.loads(line) for line in questions_path().read_text(encoding="utf-8").splitlines()]
    return [Question(row["id"], row["question"]) for row in rows]


def rank(engine: Engine) -> Rankings:
    """The K best passages of each method and question."""
    found: Rankings = {}
    for method in METHODS:
        answers = engine.run(method, questions(), limit=K, retrieval_only=True).answers
        found[method] = {
            a.question_id: {"ids": [e.passage_id for e in a.evidence], "scores": [e.score for e in a.evidence]}
            for a in answers
        }
    return found


def differences(found: Rankings, expected: Rankings) -> list[str]:
    """Where rankings are not the recorded ones, one line each."""
    lines = []
    for method, rows in expected.items():
        for name, row in rows.items():
            now = found[method][name]
            if len(now["ids"]) != len(row["ids"]):
                lines.append(f"{method} {name}: {len(now['ids'])} passages, not {len(row['ids'])}")
                continue
            for place, (id_now, id_then) in enumerate(zip(now["ids"], row["ids"])):
                if place not in row["unsure"] and id_now != id_then:
                    lines.append(f"{method} {name}: {id_now} at place {place}, not {id_then}")
            moved = np.abs(np.subtract(now["scores"], row["scores"])).max(initial=0)
            if moved > row["tolerance"]:
                lines.append(f"{method} {name}: a score moved by {moved:.2g}, more than {row['tolerance']:.2g}")
    return lines


class NoisyEmbedder:
    """Another embedder's vectors with noise of a fixed seed."""

    def __init__(self, inner: Embedder, generator: np.random.Generator, noise: float):
        self._inner, self._generator, self._noise = inner, generator, noise
        self.name, self.content_hash = inner.name, inner.content_hash
        self.dim, self.device = inner.dim, inner.device

    def embed(self, texts: Sequence[str], on_batch: Any = None) -> np.ndarray:
        vectors = self._inner.embed(texts, on_batch)
        return vectors + self._generator.normal(0, self._noise, vectors.shape).astype(np.float32)


class NoisyModels(ModelSet):
    """A model set whose embedder is noisy."""

    def __init__(self, inner: ModelSet, generator: np.random.Generator, noise: float = NOISE):
        super().__init__(inner.settings)
        self._noisy: Any = NoisyEmbedder(inner.embedder(), generator, noise)

    def embedder(self) -> Embedder:
        noisy: Embedder = self._noisy
        return noisy


def noisy_rankings(folder: Path, models: ModelSet, settings: Any, noise: float) -> Iterable[Rankings]:
    for seed in range(N_NOISY):
        generator = np.random.default_rng(seed)
        index = gpu_rag.Index.open(folder)
        for layer in ("passage_vectors", "relation_vectors", "entity_vectors"):
            held = index.vectors(layer)
            held += torch.from_numpy(generator.normal(0, noise, held.shape).astype(np.float32))
        yield rank(Engine(index, make_settings(settings), NoisyModels(models, generator, noise)))


def record_rankings(folder: Path, index: gpu_rag.Index, settings: Any, noise: float) -> Rankings:
    engine = index.engine(settings)
    expected = rank(engine)
    noisy = list(noisy_rankings(folder, engine.models, settings, noise))
    for method, rows in expected.items():
        for name, row in rows.items():
            others = [one[method][name] for one in noisy]
            row["unsure"] = [i for i, id in enumerate(row["ids"]) if any(o["ids"][i : i + 1] != [id] for o in others)]
            moved = [np.abs(np.subtract(o["scores"], row["scores"])).max(initial=0) for o in others]
            row["tolerance"] = float(f"{max(LEAST_TOLERANCE, 2 * max(moved)):.2g}")
            row["scores"] = [round(score, 6) for score in row["scores"]]
    unsure = sum(len(row["unsure"]) for rows in expected.values() for row in rows.values())
    print(f"{RANKINGS.name}: {sum(map(len, expected.values()))} rankings, {unsure} unsure places")
    return expected


def joined(found: Rankings, earlier: Rankings) -> Rankings:
    """The earlier record, with the places that differ here as not sure: it then holds on both processors."""
    for method, rows in earlier.items():
        for name, row in rows.items():
            here = found[method][name]
            differ = {place for place, ids in enumerate(zip(row["ids"], here["ids"])) if ids[0] != ids[1]}
            row["unsure"] = sorted({*row["unsure"], *differ})
            moved = 1.2 * np.abs(np.subtract(row["scores"], here["scores"])).max(initial=0)
            row["tolerance"] = max(row["tolerance"], float(f"{moved:.2g}"))
    return earlier


def write_rankings(found: dict[str, Rankings]) -> None:
    """A line a question."""
    parts = [
        f"{json.dumps(embedder)}: {{\n"
        + ",\n".join(
            f"{json.dumps(method)}: {{\n"
            + ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
            + "\n}"
            for method, rows in expected.items()
        )
        + "\n}"
        for embedder, expected in found.items()
    ]
    RANKINGS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main() -> None:
    earlier = json.loads(RANKINGS.read_text(encoding="utf-8")) if "--beside" in sys.argv[1:] else None
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        hashed, minilm = Path(name) / "hash", Path(name) / "minilm"
        found = {
            "hash": record_rankings(hashed, build(hashed), SETTINGS, NOISE),
            "minilm": record_rankings(minilm, build(minilm, MINILM), MINILM, MINILM_NOISE),
        }
        if earlier is not None:
            found["minilm"] = joined(found["minilm"], earlier["minilm"])
        write_rankings(found)


if __name__ == "__main__":
    main()
