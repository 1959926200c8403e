"""Edge merging of HopRAG: seconds and memory against N (N out- and N in-questions), beside a quadratic table join.

usage: python scripts/bench_edge_merging.py [--sizes 1000,10000] [--modes exact,faiss,torch,table] [--threads 1]
           [--index DIR] [--svg PREFIX] [--rows FILE.jsonl]

Questions are drawn: words by Zipf's law, vectors that lean towards those of their words, four to a vertex; with --index
those of that index. Modes: exact (every pair), faiss and torch (candidates, rescored exactly), table (the cross join of
two tables, a row a pair, with the score computed row by row: pandas where it is installed, else plain Python). A mode
leaves out the sizes above its --most. Recall: of exact edges, of exact best matches, and of those with a SIM of .5 or
more. One JSON row a measurement goes to stdout and is appended to --rows; with --svg all rows of that file are drawn.
Each measurement is a process of its own, so that its peak of resident memory, less what it had before, is true.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_rag.graph.nearest.index import nearest_index
from gpu_rag.index.index import Index
from gpu_rag.index.memory import memory_bytes, peak_memory_bytes, reset_peak_memory
from gpu_rag.index.work import Silent, Sources, StageReport, Work
from gpu_rag.methods.hoprag.stages.edges import edges_of_matches, read_side
from gpu_rag.methods.hoprag.stages.matching import Side, match_exactly, match_nearly
from gpu_rag.methods.hoprag.stages.vertices import read_vertices
from gpu_rag.models.set import ModelSet
from gpu_rag.settings import make_settings
from gpu_rag.types import Ragged

sys.path.insert(0, str(Path(__file__).resolve().parent))
from curves import curves_svg

DIM, WORDS, PER_VERTEX = 384, 60_000, 4
STRONG = 0.5  # SIM of a match that is hardly by chance
MOST = {"exact": 10**6, "faiss": 10**6, "torch": 10**6, "table": 2_000}


def drawn_side(n: int, seed: int, centres: np.ndarray) -> Side:
    """n questions of two to four words each."""
    generator = np.random.default_rng(seed)
    words = [np.unique(generator.zipf(1.3, size) % WORDS) for size in generator.integers(2, 5, n)]
    vectors = generator.standard_normal((n, DIM)).astype(np.float32)
    for row, found in enumerate(words):
        vectors[row] += 1.5 * centres[found].sum(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    offsets = np.concatenate([[0], np.cumsum([len(w) for w in words])])
    lists = Ragged(torch.from_numpy(np.concatenate(words).astype(np.int32)), torch.from_numpy(offsets))
    keys = generator.integers(0, 2**63, (n, 2)).astype("<u8")
    return Side(torch.from_numpy(vectors.astype(np.float16)), lists, torch.arange(n) // PER_VERTEX, keys)


def drawn(n: int) -> tuple[Side, Side, int]:
    """(out-questions, in-questions, number of vertices)."""
    centres = np.random.default_rng(0).standard_normal((WORDS, DIM)).astype(np.float32)
    return drawn_side(n, 1, centres), drawn_side(n, 2, centres), n // PER_VERTEX + 1


def of_index(folder: Path) -> tuple[Side, Side, int]:
    """The same of a finished index."""
    index = Index.open(folder)
    folders = {name: index.folder(name) for name in index.stages}
    work = replace(work_in(Path("."), 1), stage_folders=folders)
    return read_side(work, "out"), read_side(work, "in"), read_vertices(work, "id").num_rows


def work_in(folder: Path, threads: int) -> Work:
    """What the matching asks of a stage."""
    settings = make_settings({"models": {"embedder": "hash", "llm": "none", "threads": threads, "device": "cpu"}})
    return Work(folder, folder / "blocks", {}, settings, Sources(), ModelSet(settings.models), Silent(), StageReport())


def by_table(outs: Side, ins: Side) -> tuple[np.ndarray, np.ndarray]:
    """Every pair is a row of one table; the score is a function of a row; then the best row of each out-question."""
    left, right = (_rows_of(side) for side in (outs, ins))
    if importlib.util.find_spec("pandas") is None:
        return _by_loops(left, right)
    pandas: Any = importlib.import_module("pandas")
    table = pandas.DataFrame(left).merge(pandas.DataFrame(right), how="cross", suffixes=("_out", "_in"))
    table = table[table["vertex_out"] != table["vertex_in"]]
    table["sim"] = table.apply(lambda r: _sim(r["words_out"], r["vector_out"], r["words_in"], r["vector_in"]), axis=1)
    best = table.loc[table.groupby("row_out")["sim"].idxmax()]
    return best["row_in"].to_numpy(), best["sim"].to_numpy()


def _by_loops(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for a in left:
        pairs = [
            (_sim(a["words"], a["vector"], b["words"], b["vector"]), -b["row"])
            for b in right
            if b["vertex"] != a["vertex"]
        ]
        found.append(max(pairs))
    return np.asarray([-row for _, row in found]), np.asarray([sim for sim, _ in found])


def _rows_of(side: Side) -> list[dict[str, Any]]:
    offsets = side.keywords.offsets.tolist()
    words = [set(side.keywords.values[a:b].tolist()) for a, b in zip(offsets, offsets[1:])]
    vectors = side.vectors.double().numpy()
    return [
        {"row": row, "vertex": vertex, "words": words[row], "vector": vectors[row]}
        for row, vertex in enumerate(side.vertex.tolist())
    ]


def _sim(a: set[int], x: np.ndarray, b: set[int], y: np.ndarray) -> float:
    return (len(a & b) / max(len(a | b), 1) + float(x @ y)) / 2


def measure(mode: str, outs: Side, ins: Side, threads: int) -> tuple[dict[str, float], tuple[np.ndarray, np.ndarray]]:
    """Clock and processor seconds and bytes of peak memory beside the questions; (question, sim) of each question."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        work = work_in(Path(folder), threads)
        few = [replace(side.part(torch.arange(8)), keys=side.keys[:8]) for side in (outs, ins)]
        match_exactly(replace(work, partial=Path(folder) / "warm"), *few, None)  # compiles before the clock starts
        before = memory_bytes()
        reset_peak_memory()
        started, busy = time.perf_counter(), time.process_time()
        if mode == "table":
            found = by_table(outs, ins)
        elif mode == "exact":
            found = match_exactly(work, outs, ins, None)
        else:
            kind = "ivf" if mode == "faiss" else "exact"
            index = nearest_index(ins.vectors, mode=kind, implementation=mode, threads=threads)
            found = match_nearly(work, outs, ins, index.proposer)
        cost = {"s": time.perf_counter() - started, "cpu_s": time.process_time() - busy}
        return {**cost, "peak_bytes": max(0, peak_memory_bytes() - before)}, found


def one(options: argparse.Namespace) -> None:
    """One measurement: prints its row, and keeps the matches beside the others of its size."""
    outs, ins, n = of_index(options.index) if options.index else drawn(options.n)
    cost, (question, sim) = measure(options.mode, outs, ins, options.threads)
    np.savez(options.keep / f"{options.mode}.npz", question=question, sim=sim)
    row = {"mode": options.mode, "n_out": len(outs.vertex), "n_in": len(ins.vertex), **cost}
    exact = options.keep / "exact.npz"
    if exact.is_file() and options.mode != "exact":
        held = np.load(exact)
        vertices = outs.vertex.numpy(), ins.vertex.numpy()
        edges = [
            edges_of_matches(q, s, *vertices, n, 1.0)[0] for q, s in ((held["question"], held["sim"]), (question, sim))
        ]
        pairs = [set(zip(e["source"].tolist(), e["target"].tolist())) for e in edges]
        row["recall_edges"] = len(pairs[0] & pairs[1]) / max(len(pairs[0]), 1)
        same = np.isclose(held["sim"], sim, atol=1e-9)
        row["recall_matches"], strong = float(same.mean()), held["sim"] >= STRONG
        row["recall_strong"] = float(same[strong].mean()) if strong.any() else None
    print(
        json.dumps({**row, "threads": options.threads, "data": str(options.index.name if options.index else "drawn")})
    )


def draw(rows: list[dict[str, Any]], prefix: str) -> None:
    """Seconds and memory against N, a line a mode, of the drawn questions."""
    names = {"exact": "exact", "faiss": "candidates (faiss)", "torch": "candidates (torch)", "table": "table join"}
    for key, scale, label in (("cpu_s", 1.0, "processor seconds"), ("peak_bytes", 2.0**20, "MiB beside the questions")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if row["data"] == "drawn":
                lines.setdefault(names[row["mode"]], []).append((row["n_in"], max(row[key] / scale, 1e-3)))
        title = f"Edge merging, {rows[0]['threads']} thread(s)"
        drawn_svg = curves_svg(title, "N out-questions against N in-questions", label, lines)
        Path(f"{prefix}-{'seconds' if key == 'cpu_s' else 'memory'}.svg").write_text(drawn_svg, encoding="utf-8")


def main() -> None:
    """Runs every measurement in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,3000,10000")
    parser.add_argument("--modes", default="exact,faiss,torch,table")
    parser.add_argument("--most", default="", help="mode=N,...: the largest size of a mode")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--svg")
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        one(options)
        return
    most = {**MOST, **{name: int(n) for name, n in (part.split("=") for part in options.most.split(",") if part)}}
    for size in [0] if options.index else [int(n) for n in options.sizes.split(",") if n]:
        with tempfile.TemporaryDirectory() as keep:
            for mode in options.modes.split(","):
                if size > most[mode]:
                    continue
                place = ["--index", str(options.index)] if options.index else ["--n", str(size)]
                words = [*place, "--mode", mode, "--threads", str(options.threads), "--keep", keep]
                line = subprocess.run(
                    [sys.executable, __file__, *words], check=True, capture_output=True, text=True
                ).stdout
                print(line, end="", flush=True)
                if options.rows:
                    with options.rows.open("a", encoding="utf-8") as file:
                        file.write(line)
    if options.svg and options.rows:
        draw([json.loads(line) for line in options.rows.read_text("utf-8").splitlines()], options.svg)


if __name__ == "__main__":
    main()
