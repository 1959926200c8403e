"""The kinds of steps: the service that answers each kind, when it runs, and the resource that a driver passes to it."""

from __future__ import annotations

from gpu_rag.index.index import Index
from gpu_rag.program.models import Models
from gpu_rag.runtime.step import RANK_EMBED, RANK_GRAPH, RANK_LLM, RANK_TEXT, RANK_WALK, Kind

TEXT: Kind[Index] = Kind("index", "text", RANK_TEXT)
GRAPH: Kind[Index] = Kind("index", "graph", RANK_GRAPH)
WALK: Kind[Index] = Kind("index", "graph", RANK_WALK)  # over the whole graph: expensive, and last in most programs
EMBED: Kind[Models] = Kind("models", "embed", RANK_EMBED)
LLM: Kind[Models] = Kind("models", "llm", RANK_LLM, max_batch=8192)
