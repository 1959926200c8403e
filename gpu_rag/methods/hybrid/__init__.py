"""Dense and BM25 retrieval joined by reciprocal rank fusion, a baseline."""

from gpu_rag.methods.method import Method

NEEDS = ("passage_vectors", "bm25")
METHODS = (Method("hybrid", NEEDS, inexact=("neighbours",), compared=True, shown=True, auto=40, order=30),)
