"""The settings of `hydrarag` and `hydrarag-e`."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_rag.errors import UsageError
from gpu_rag.sources.web import is_server
from gpu_rag.verbs.hydra_prune import Pruning

NEEDS = ("passage_vectors", "kb", "kb_name_vectors", "kb_edge_vectors", "kb_web")
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
        if not (1 <= self.d_max <= MOST_DEPTH and 1 <= self.phases <= PHASES):
            given = f"d_max={self.d_max}, phases={self.phases}"
            raise UsageError("a depth is out of range", given=given, expected=f"d_max 1..{MOST_DEPTH}, phases 1..3")
        if min(self.w1, self.w2, self.w_max, self.matches, self.max_tokens) < 1 or self.documents < 0:
            expected = "w1, w2, w_max, matches, max_tokens >= 1, documents >= 0"
            raise UsageError("a number of hydrarag is out of range", given=self, expected=expected)
        if self.pruning not in PRUNINGS:
            raise UsageError("unknown pruning of hydrarag", given=self.pruning, expected=" | ".join(PRUNINGS))
        if not -1 <= self.threshold <= 1 or self.temperature < 0:
            expected = "threshold a cosine, temperature >= 0"
            raise UsageError("a number of hydrarag is out of range", given=self, expected=expected)
        self.prune()  # refuse bad values before the run

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
