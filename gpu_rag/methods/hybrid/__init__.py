"""Dense and BM25 retrieval joined by reciprocal rank fusion, a baseline."""

from gpu_rag.methods.method import Method

METHODS = (Method("hybrid", ("passage_vectors", "bm25")),)
