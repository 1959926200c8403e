"""The settings of `hydrarag` and `hydrarag-e`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.methods.hydrarag.scores import Pruning
from gpu_rag.settings.ranges import COSINE, COUNT, NATURAL, SEED, SHARE, Range, check_fields, check_filled
from gpu_rag.sources.web import is_server

PRUNINGS = ("verified", "relevance")
PHASES = 3
MOST_DEPTH = 4
MOST_TOPICS = 5  # of one order: with d_max = 4 a path has at most 20 hops


@dataclass(frozen=True)
class Params:
    """d_max: hops around a topic. phases: 1 initial, 2 and refined, 3 and predicted. selector: whether the model takes
    sources for the first phase. refinement: whether paths are summed up for the answer. pruning: verified | relevance.
    w1, w2, w_max: paths kept by relevance, by cross-score, by the decider; w_max sentences a document, web results.
    threshold: least cosine of a mention and a name; matches: nodes a mention in each source. gamma: least cosine of
    paths that support each other. rho_kg, rho_document, rho_web: reliability. documents: passages read a topic.
    enough: by rule, least relevance of a path that settles a question. sources: all, or names with commas between.
    web: index (snapshots in it) | none | the address of a SearXNG server. temperature: of exploration. max_tokens: of a
    reply. seed: of the relations that `hydrarag-e` draws."""

    d_max: int = 3
    phases: int = 3
    selector: bool = True
    refinement: bool = True
    pruning: str = "verified"
    w1: int = 100
    w2: int = 20
    w_max: int = 3
    threshold: float = 0.75
    matches: int = 3
    gamma: float = 0.8
    rho_kg: float = 1.0
    rho_document: float = 0.8
    rho_web: float = 0.7
    documents: int = 3
    enough: float = 0.45
    sources: str = "all"
    web: str = "index"
    temperature: float = 0.4
    max_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(
            self, d_max=Range(1, MOST_DEPTH), phases=Range(1, PHASES), pruning=PRUNINGS, w1=COUNT, w2=COUNT,
            w_max=COUNT, threshold=COSINE, matches=COUNT, gamma=COSINE, rho_kg=SHARE, rho_document=SHARE,
            rho_web=SHARE, documents=NATURAL, temperature=NATURAL, max_tokens=COUNT, seed=SEED,
        )  # fmt: skip
        check_filled(self, "sources", "web")

    @property
    def one_relation(self) -> bool:
        """Whether one of parallel relations alone is kept (HydraRAG-E)."""
        return False

    @property
    def files(self) -> tuple[str, ...]:
        """The snapshot whose pages the answers depend on, where it is not in the index."""
        return () if self.web in ("index", "none") or is_server(self.web) else (self.web,)

    def prune(self) -> Pruning:
        """The pruning part."""
        rho = (self.rho_kg, self.rho_document, self.rho_web)
        return Pruning(self.w1, self.w2, self.w_max, self.gamma, rho, self.pruning == "verified")
