"""The profiles of the papers: each holds the constants of its paper's tables, and runs to its end with a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_rag
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.registry import load_method, profiles
from gpu_rag.settings import read_profile
from gpu_rag.settings.check import Declared, checked, section_class
from gpu_rag.settings.sections import ReaderSettings

QUESTION = "Where was the designer of the Halden Bridge born?"
TEXTS = {
    "Halden Bridge": "The Halden Bridge was designed by Marta Orlo. It crosses the river Ves at Kerling.",
    "Marta Orlo": "Marta Orlo was an engineer born in Tamsin. She studied under Piet Ruyven.",
    "Piet Ruyven": "Piet Ruyven taught at the University of Loss. He was born in Ostrand in 1871.",
}
HIGRA: dict[str, Any] = {
    "walk": "subgraph", "radius": 1, "damping": 0.85, "n_entities": 20, "max_seeds": 20, "fallback_seeds": 3,
    "structure_constant": 10.0, "similarity_constant": 10.0, "n_relations": 10, "n_passages": 10, "n_similar": 5,
    "similarity": "hybrid",
}  # fmt: skip
# {profile: {method: constants}}, from the tables and settings sections of the papers; see each method's README
PAPERS: dict[str, dict[str, dict[str, Any]]] = {
    "hoprag-paper": {
        "hoprag": {"top_k": 20, "n_hop": 4, "entry": "edges", "keywords": "all", "hops": "single"}
    },
    "bubblerag-paper": {
        "bubblerag": {
            "budget": 10, "alpha": 1.0, "depth": 6, "n_trees": 3, "n_passages": 15, "n_before": 5, "n_anchors": 10,
            "hops": 6, "max_local": 20_000, "n_neighbours": 40, "max_picks": 5, "intra_penalty": 0.9, "rank": "score",
            "passages": "trees", "cover_first": False, "specialise": True, "relax": True,
        }
    },
    "higra-paper": {
        "higra-retriever": HIGRA, "higra-agent": HIGRA,
        "dual-agent": {"n_passages": 20, "max_turns": 8},
    },
    "hybgrag-paper": {
        "hybgrag": {"iterations": 4, "n_nodes": 20, "radius": 2, "order": "cosine", "paths": True, "n_examples": 30,
                    "examples": "random", "feedback": "corrective", "validator": "yes_no", "chains": False},
        "hybgrag-crag": {"iterations": 4, "batch": 5, "context": True},
    },
    "hydrarag-paper": {
        "hydrarag": {"d_max": 3, "w1": 100, "w2": 20, "w_max": 3, "gamma": 0.8,
                     "shares": {"kg": 1.0, "document": 0.8, "web": 0.7}, "threshold": 0.75, "matches": 3,
                     "phases": 3, "temperature": 0.4,
                     "pruning": "verified", "selector": True, "refinement": True, "chains": False,
                     "sentences": "cosine"}
    },
}  # fmt: skip
SECTIONS: dict[str, dict[type[Declared], dict[str, Any]]] = {  # how the index is made, and read
    "hoprag-paper": {HopSettings: {"simulate": "llm", "edge_budget": 1.0}, ReaderSettings: {"passages": 20}},
    "higra-paper": {
        AlignmentSettings: {"tau": 0.15, "windows": "clusters", "min_samples": 2, "max_cluster": 20, "aliases": "all",
                            "link_radius": 0.3, "confidence": 0.8, "theta": 100, "top_words": 1000, "refine": True,
                            "decider": "llm"}
    },
}  # fmt: skip


def test_each_method_of_a_paper_has_a_profile() -> None:
    assert {name for name in profiles() if name.endswith("-paper")} == set(PAPERS)


@pytest.mark.parametrize("profile", PAPERS)
def test_a_profile_holds_the_constants_of_its_paper(profile: str) -> None:
    chosen = read_profile(profiles()[profile])
    for name, given in chosen["method"].items():
        params: Any = checked(load_method(name).Params, given, f"method.{name}")
        expected = PAPERS[profile].get(name, {})
        assert {key: getattr(params, key) for key in expected} == expected
    for cls, expected in SECTIONS.get(profile, {}).items():
        section = next(checked(cls, given, "") for name, given in chosen.items() if section_class(name) is cls)
        assert {key: getattr(section, key) for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("profile", PAPERS)
def test_a_profile_runs_to_its_end(profile: str, tmp_path: Path, misbehaving: Callable[..., Any]) -> None:
    """Index and answers by a model, which decides: no step falls back to its rule."""
    server = misbehaving(share=0.0)
    rows = ({"id": title, "title": title, "text": text} for title, text in TEXTS.items())
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = read_profile(profiles()[profile])
    settings = {**chosen, "models": {**chosen["models"], "embedder": "hash", "llm": server.url, "device": "cpu"}}
    methods = list(PAPERS[profile])
    with gpu_rag.build(tmp_path / "c.jsonl", tmp_path / "ix", methods=methods, settings=settings) as index:
        for method in methods:
            [answer] = index.answer([QUESTION], method=method, settings=settings)
            assert answer.error is None and answer.usage.llm_calls > 1
            assert not answer.usage.malformed, answer.usage.fallbacks
