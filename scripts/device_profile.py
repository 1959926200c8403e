"""Profiles of whole methods on an index that is made in memory from seeds: no text, no model, no file.

A step's profile has its time on the clock, and from the trace of torch.profiler the share of that time in which the
GPU works, how often the host waits for it, its kernels, and the bytes copied either way.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_graphs as made
import numpy as np
import pyarrow as pa
import torch
from device_case import Keep, Plan, Result

from gpu_rag.graph.csr import csr_from_edges
from gpu_rag.types import CSR, Ragged

DIMS, BATCH, TOKENS = 384, 64, 110
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
ENTITIES, FEW = 500_000, 600  # of the index, and of that of a dry run
PASSAGES, FEW_PASSAGES = 20_000, 12  # embedded
Step = Callable[[], Any]


# --- the index -------------------------------------------------------------------------------------


class Words:
    """The face of a BM25 index that finds passages at random, the same for the same text."""

    def __init__(self, n: int):
        self.n = n

    def search(self, texts: list[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, scores) of k passages a text."""
        draws = [np.random.default_rng(list(text.encode())) for text in texts]
        ids = np.stack([draw.choice(self.n, k, replace=False) for draw in draws])
        return ids, np.tile(np.linspace(20, 1, k, dtype=np.float32), (len(texts), 1))


def made_index(n_entities: int, device: torch.device) -> Any:
    """An index of entities, twice as many relations and a fifth as many passages, and what four methods read of it."""
    from gpu_rag.graph.pagerank import prepare
    from gpu_rag.graph.paths import PathGraph
    from gpu_rag.index.index import Index
    from gpu_rag.methods.hoprag.batched import HopGraph
    from gpu_rag.methods.hydrarag.batched.facts import FactChoice, FactGraph
    from gpu_rag.program.seeds import NameTable

    n_relations, n_passages, r = 2 * n_entities, n_entities // 5, np.random.default_rng(5)
    ends = (n_entities * r.random((2, n_relations)) ** 2).astype(np.int64)  # some are named far more often
    stated = r.integers(n_passages, size=n_relations)
    index: Any = Index(Path("made"), None, device.type)  # type: ignore[arg-type]
    keys = np.unique(np.concatenate([ends[0], ends[1]]) * n_passages + np.tile(stated, 2))
    entity, passage = keys // n_passages, keys % n_passages
    names = [f"entity {row}" for row in range(n_entities)]
    offsets = pa.array(np.arange(n_relations + 1, dtype=np.int32))
    index.__dict__ |= {
        "entities": pa.table({"id": names, "name": names, "n_passages": np.bincount(entity, minlength=n_entities)}),
        "relations": pa.table(
            {"subject": ends[0], "object": ends[1], "passages": pa.ListArray.from_arrays(offsets, pa.array(stated))}
        ),
        "mentions": pa.table({"entity": entity, "passage": passage}),
        "passages": pa.table({"title": [""] * n_passages}),
        "bm25": Words(n_passages),
    }
    of = {"entity_vectors": n_entities, "relation_vectors": n_relations, "passage_vectors": n_passages}
    kind = torch.float32 if device.type == "cpu" else torch.float16
    index._vectors = {name: made.unit_rows(n, DIMS, seed, device).to(kind) for seed, (name, n) in enumerate(of.items())}
    subject, other = (torch.from_numpy(side).to(device) for side in ends)
    src = torch.cat([subject, torch.from_numpy(entity).to(device)])
    dst = torch.cat([other, torch.from_numpy(passage).to(device) + n_entities])
    index.__dict__["graph"] = prepare(csr_from_edges(src, dst, n_entities + n_passages))
    facts = csr_from_edges(subject, other, n_entities)
    choice = FactChoice((0,))
    index._parts |= {"kb": made_kb(index, facts.m), f"facts {choice}": facts_on(facts, FactGraph, PathGraph)}
    index._parts["names of entities"] = NameTable(pa.array(names), np.arange(n_entities))
    index._parts["hops"] = hops_on(index, n_passages, HopGraph, device)
    return index


def made_kb(index: Any, n_facts: int) -> Any:
    """What HydraRAG reads of a knowledge base: relations of facts, and vectors of names and relations."""
    few, device = 200, torch.device(index.device)
    of = {
        "kb_name_vectors": index.vectors("entity_vectors"),
        "kb_relation_vectors": made.unit_rows(few, DIMS, 13, device),
    }
    relation = np.random.default_rng(14).integers(few, size=n_facts, dtype=np.int32)
    return SimpleNamespace(relation=relation, n_relations=few, device=device, vectors=of.__getitem__)


def facts_on(csr: CSR, make: Any, paths: Any) -> Any:
    """The facts of HydraRAG: one of each edge, no two nodes alike."""
    from gpu_rag.methods.hydrarag.batched.facts import ExactVectors

    rows = torch.repeat_interleave(torch.arange(csr.n, device=csr.indices.device), csr.indptr.diff())
    low, high = torch.minimum(rows, csr.indices), torch.maximum(rows, csr.indices)
    keys, number = torch.unique(low * csr.n + high, return_inverse=True)
    each = torch.arange(len(keys) + 1, device=keys.device)
    draws = torch.randint(2**62, (csr.m, 2), generator=made.generator(6, keys.device), device=keys.device)
    ones, vectors = torch.ones_like(keys), made.unit_rows(len(keys), DIMS, 7, keys.device)
    return make(paths(csr, number.int()), keys, Ragged(each[:-1], each), ones, ExactVectors(vectors), draws)


def hops_on(index: Any, n: int, make: Any, device: torch.device) -> Any:
    """A hop graph with a vertex for each passage, ten out-edges of each, and eight keywords of a thing."""
    source = torch.arange(n, device=device).repeat_interleave(10)
    target = torch.randint(n, (10 * n,), generator=made.generator(8, device), device=device)
    keys = torch.unique((source * n + target)[source != target])
    source, target = keys // n, (keys % n).int()
    words = max(50, n // 10)
    return make(
        index,
        indptr=torch.searchsorted(source, torch.arange(n + 1, device=device)), target=target,
        question=torch.arange(len(target), device=device).int(),
        edge_keywords=made.random_lists(len(target), 8, words, 9, device),
        vertex_keywords=made.random_lists(n, 8, words, 10, device),
        keyword_ids={f"word{k}": k for k in range(words)}, question_texts=[],
        question_vectors=made.unit_rows(len(target), DIMS, 11, device).to(index.vectors("passage_vectors").dtype),
        vertex_vectors=index.vectors("passage_vectors"), vertex_passage=torch.arange(n, device=device).int(),
    )  # fmt: skip


# --- the steps of each method ----------------------------------------------------------------------


class Asked:
    """BATCH questions over a made index: texts with two names of entities, and unit vectors."""

    def __init__(self, index: Any, batch: int):
        r = np.random.default_rng(12)
        self.index, self.batch = index, batch
        self.named = r.integers(index.n_entities, size=(batch, 2))
        self.texts = [f"What joins entity {a} and entity {b}?" for a, b in self.named]
        near = index.vectors("relation_vectors")[:batch].float()  # so each question has a fact that says it
        self.vectors = list(torch.nn.functional.normalize(near, dim=1).cpu().numpy())


def ppr(asked: Asked) -> Iterable[tuple[str, Step]]:
    steps = import_module("gpu_rag.methods.ppr.batched")
    queries = list(zip(asked.texts, asked.vectors))
    yield "rank_by_graph", lambda: steps.rank_by_graph.run(asked.index, queries, (steps.Params(), 20))


def bubblerag(asked: Asked) -> Iterable[tuple[str, Step]]:
    steps = import_module("gpu_rag.methods.bubblerag.batched")
    index, params, found = asked.index, steps.Params(), {}
    keywords = [np.stack([vector, np.roll(vector, 1), np.roll(vector, 2)]) for vector in asked.vectors]

    def anchors() -> None:
        found["groups"] = [
            tuple(tuple(r.rows[:10]) for r in rankings) for rankings in steps.bubble_anchors.run(index, keywords, (10,))
        ]

    def trees() -> None:
        found["trees"] = steps.bubble_trees.run(index, list(zip(asked.vectors, found["groups"])), (params,))

    def nodes(b: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(node for tree in found["trees"][b][:3] for node in tree.nodes))

    def neighbours() -> None:
        entities = [tuple(v for v in nodes(b) if v < index.n_entities) for b in range(asked.batch)]
        steps.bubble_neighbours.run(index, [(v, e, ()) for v, e in zip(asked.vectors, entities)], (40,))

    def passages() -> None:
        of = [(v, dict.fromkeys(nodes(b), 0)) for b, v in enumerate(asked.vectors)]
        steps.bubble_passages.run(index, of, ("fused", 15))

    def walk() -> None:
        anchors = [tuple(dict.fromkeys(node for group in groups for node in group)) for groups in found["groups"]]
        of = [(t, v, nodes(b), anchors[b]) for b, (t, v) in enumerate(zip(asked.texts, asked.vectors))]
        steps.bubble_walk.run(index, of, (15,))

    yield from zip(
        ("bubble_anchors", "bubble_trees", "bubble_neighbours", "bubble_passages", "bubble_walk"),
        (anchors, trees, neighbours, passages, walk),
    )


def hoprag(asked: Asked) -> Iterable[tuple[str, Step]]:
    steps = import_module("gpu_rag.methods.hoprag.batched")
    index, words = asked.index, [frozenset({"word1", f"word{b}"}) for b in range(asked.batch)]
    questions = [steps.HopQuestion(vector, own) for vector, own in zip(asked.vectors, words)]
    at = [(question, tuple(range(b, b + 20))) for b, question in enumerate(questions)]
    yield "walk_hops", lambda: steps.walk_hops.run(index, list(zip(asked.texts, questions)), ("text", 20))
    yield "enter_hops", lambda: steps.enter_hops.run(index, questions, ("edges", "text", 20))
    yield "out_edges", lambda: steps.out_edges.run(index, at, (20,))
    yield "near_vertices", lambda: steps.near_vertices.run(index, at, ("text",))


def hydrarag(asked: Asked) -> Iterable[tuple[str, Step]]:
    of = "gpu_rag.methods.hydrarag.batched"
    graphs, search, facts = (import_module(f"{of}.{name}") for name in ("subgraphs", "search", "facts"))
    index, choice = asked.index, facts.FactChoice((0,))
    wanted = []
    for a, b in asked.named.tolist():
        topics = (a, b) if a != b else (a,)
        wanted.append((topics, (graphs.Order(topics),)))
    held: dict[str, Any] = {}

    def keep(name: str, found: list[Any]) -> None:
        failed = [one for one in found if isinstance(one, Exception)]
        if failed:
            raise failed[0]
        held[name] = found

    def scored(walks: str, kind: str) -> list[Any]:
        queries = list(zip(held["graph"], held[walks], asked.vectors))
        return list(search.score_paths.run(index, queries, (choice, kind, 20)))

    steps: list[tuple[str, Callable[[], list[Any]]]] = [
        ("graph", lambda: graphs.question_graph.run(index, list(zip(wanted, asked.vectors)), (choice, 2))),
        ("start", lambda: search.start_paths.run(index, held["graph"])),
        ("expand", lambda: search.expand_paths.run(index, list(zip(held["graph"], held["start"])), (0,))),
        ("score", lambda: scored("expand", search.HOP)),
        ("join", lambda: search.join_paths.run(
            index, [(g, (a, b)) for g, a, b in zip(held["graph"], held["start"], held["score"])], (2,))),
        ("chain", lambda: search.chain_paths.run(
            index, [(g, None, w, ((0, 4),)) for g, w in zip(held["graph"], held["join"])], (0,))),
    ]  # fmt: skip
    for name, run in steps:
        yield f"hydrarag {name}", lambda name=name, run=run: keep(name, run())  # type: ignore[misc]


METHODS: dict[str, Callable[[Asked], Iterable[tuple[str, Step]]]] = {
    "ppr": ppr, "bubblerag": bubblerag, "hoprag": hoprag, "hydrarag": hydrarag,
}  # fmt: skip


def profile_method(method: str, plan: Plan, until: float, keep: Keep) -> Result:
    """Every step of a method over the made index."""
    index = made_index(FEW if plan.small else ENTITIES, plan.device)
    asked = Asked(index, 6 if plan.small else BATCH)
    steps: Result = {}
    for name, run in METHODS[method](asked):
        if time.time() > until:
            return {"ok": False, "error": "no time left", "steps": steps}
        steps[name] = profiled(run, plan)
        keep({"steps": steps})
    return {"ok": True, "entities": index.n_entities, "questions": asked.batch, "steps": steps}


# --- one step --------------------------------------------------------------------------------------


def profiled(run: Step, plan: Plan) -> Result:
    """A call that is not the first one: its milliseconds without the profiler, then what its trace says."""
    run()
    began = time.perf_counter()
    run()
    plan.synchronise()
    found: Result = {"ms": (time.perf_counter() - began) * 1e3}
    if plan.device.type != "cuda" or plan.small:
        return found
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as taken:
        run()
        plan.synchronise()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        taken.export_chrome_trace(str(path))
        return found | traced(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def traced(events: list[dict[str, Any]]) -> Result:
    """Share of the time in which the GPU works, waits of the host, kernels, and bytes copied, of a trace's events."""
    whole = [e for e in events if e.get("ph") == "X"]
    work = sorted((e["ts"], e["ts"] + e["dur"]) for e in whole if str(e.get("cat")).startswith(("kernel", "gpu_mem")))
    busy, end = 0.0, float("-inf")
    for first, last in work:
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in whole if e.get("cat") in ("cpu_op", "cuda_runtime", "kernel")]
    took = max((b for _, b in spans), default=0.0) - min((a for a, _ in spans), default=0.0)
    copies = [(e["name"], e.get("args", {}).get("bytes", 0)) for e in whole if e.get("cat") == "gpu_memcpy"]
    return {
        "gpu_busy": busy / took if took else 0.0, "kernels": sum(e.get("cat") == "kernel" for e in whole),
        "waits": sum(e["name"] in WAITS for e in whole) - 1,  # the last is that of the profile itself
        "bytes_to_gpu": sum(n for name, n in copies if "HtoD" in name),
        "bytes_to_host": sum(n for name, n in copies if "DtoH" in name),
    }  # fmt: skip


# --- embedding -------------------------------------------------------------------------------------


def minilm_of_noise(folder: Path, small: bool) -> None:
    """A model of MiniLM's shape with random weights, and a tokenizer whose words are w0, w1, ..."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = 300 if small else 30_522
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(words - 5))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    full = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=words, max_position_embeddings=512, **(shape if small else full))
    BertModel(config).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256}', encoding="utf-8")


def profile_embedding(plan: Plan, until: float, keep: Keep) -> Result:
    """Passages a second, from text and from token ids, and the profile of a call; passages have 60 to 160 tokens."""
    from gpu_rag.models.embed.mean_pooling import MeanPoolingEmbedder

    with tempfile.TemporaryDirectory() as name:
        minilm_of_noise(Path(name), plan.small)
        embedder = MeanPoolingEmbedder(Path(name), name="noise", device=plan.device.type)
        n, r = FEW_PASSAGES if plan.small else PASSAGES, np.random.default_rng(1)
        sizes = r.integers(TOKENS - 50, TOKENS + 51, n)
        texts = [" ".join(f"w{k}" for k in r.integers(200, size=size)) for size in sizes]
        ids = embedder.token_ids(texts)
        result: Result = {"ok": True, "passages": n, "tokens": sum(map(len, ids))}
        for form, run in (("ids", lambda: embedder.embed_ids(ids)), ("texts", lambda: embedder.embed(texts))):
            if time.time() > until:
                return {**result, "ok": False, "error": "no time left"}
            found = result["steps"] = result.get("steps", {}) | {form: profiled(run, plan)}
            result[f"passages_per_s_{form}"] = n / found[form]["ms"] * 1e3
            keep(result)
        alone = embedder.embed(texts[:3])
        together = embedder.embed(texts)[:3]
        result["alone_equal"] = bool(np.array_equal(alone, together))
        return {**result, "ok": result["alone_equal"]}
