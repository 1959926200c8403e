"""Compare the speed of our MiniLM with padded batches of eight by transformers: processor time, in turns.

    python scripts/bench_embedding.py INDEX [--n 1000] [--seconds 20]

INDEX: an index with entities (any embedder); its first passages, names of entities and relations are the texts. Prints
the texts per processor second of both, their ratio, the share of computed tokens that are no padding, and the least
cosine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.index.stages.search import entity_texts, passage_texts, relation_texts
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.bert import TILE
from gpu_rag.models.embed.mean_pooling import MeanPoolingEmbedder, _runs
from gpu_rag.models.packaged import packaged_embedder_folder

ROWS, STEP, BLOCK = 8, 16, 512  # the peer: rows per batch, step of padded lengths, texts per call


class Padded:
    """The model of transformers over batches of eight texts padded to one length, at most 512 texts per call."""

    def __init__(self, tokens: Callable[[Sequence[str]], list[list[int]]], dtype: torch.dtype):
        from transformers import AutoModel

        self.tokens, self.n_computed = tokens, 0
        self.model: Any = AutoModel.from_pretrained(packaged_embedder_folder(), dtype=dtype).eval()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """f32[n, 384]."""
        out = np.zeros((len(texts), 384), np.float32)
        for start in range(0, len(texts), BLOCK):
            by_length: dict[int, list[tuple[int, list[int]]]] = {}
            for row, ids in enumerate(self.tokens(texts[start : start + BLOCK]), start):
                by_length.setdefault((len(ids) // STEP + 1) * STEP, []).append((row, ids))
            for length, rows in by_length.items():
                for first in range(0, len(rows), ROWS):
                    some = rows[first : first + ROWS]
                    out[[row for row, _ in some]] = self._batch([ids for _, ids in some], length)
        return out

    def _batch(self, ids: list[list[int]], length: int) -> np.ndarray:
        tokens = torch.zeros(ROWS, length, dtype=torch.int64)
        mask = torch.zeros(ROWS, length, dtype=torch.int64)
        for row, some in enumerate(ids + [[101, 102]] * (ROWS - len(ids))):
            tokens[row, : len(some)], mask[row, : len(some)] = torch.tensor(some), 1
        self.n_computed += tokens.numel()
        with torch.inference_mode():
            hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
            mean = (hidden * mask[:, :, None]).sum(1)
            return torch.nn.functional.normalize(mean, dim=1)[: len(ids)].numpy()


def seconds(run: Callable[[], Any]) -> float:
    """Processor seconds of a call, summed over all threads."""
    start = time.process_time()
    run()
    return time.process_time() - start


def compare(name: str, texts: list[str], ours: MeanPoolingEmbedder, peer: Padded, limit_s: float) -> dict[str, Any]:
    """Rates of both, which take turns until each has run for limit_s."""
    peer.n_computed = 0
    cosine = float((ours.embed(texts) * peer.embed(texts)).sum(1).min())
    before_computed = peer.n_computed
    lengths = sorted(map(len, ours.token_ids(texts)))
    useful = sum(lengths)
    runs = _runs([range(n) for n in lengths])
    computed = sum(-(-sum(lengths[row] for row in run) // TILE) * TILE for run in runs)
    spent, n = np.zeros(2), 0
    while spent.min() < limit_s:
        spent += seconds(lambda: peer.embed(texts)), seconds(lambda: ours.embed(texts))
        n += 1
    before, now = (len(texts) * n / spent).round(1).tolist()
    return {
        "texts": name, "n": len(texts), "tokens_a_text": round(useful / len(texts), 1), "before_per_s": before,
        "now_per_s": now, "ratio": round(now / before, 2), "useful_before": round(useful / before_computed, 2),
        "useful_now": round(useful / computed, 2), "least_cosine": round(cosine, 5),
    }  # fmt: skip


def main() -> None:
    """Compare both on each kind of text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--n", type=int, default=1000, help="texts of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="processor seconds of each side, at least")
    args = parser.parse_args()
    loading = seconds(lambda: load_embedder("minilm"))
    ours = load_embedder("minilm")
    assert isinstance(ours, MeanPoolingEmbedder)
    peer = Padded(ours.token_ids, ours.dtype)
    stages = args.index / "stages"
    print(json.dumps({"dtype": str(ours.dtype), "threads": torch.get_num_threads(), "loading_s": round(loading, 2)}))
    folders = {path.name.split("-")[0]: path for path in sorted(stages.iterdir())}
    kinds = {
        "passages": passage_texts(folders["passages"]),
        "names": entity_texts(folders["entities"]),
        "relations": relation_texts(folders["entities"]),
    }
    for name, texts in kinds.items():
        print(json.dumps(compare(name, texts[: args.n], ours, peer, args.seconds)), flush=True)


if __name__ == "__main__":
    main()
