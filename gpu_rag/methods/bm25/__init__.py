"""BM25 retrieval, a baseline."""

from gpu_rag.methods.method import Method

METHODS = (Method("bm25", ("bm25",), compared=True, shown=True, auto=20, order=20),)
