"""Dense retrieval, a baseline."""

from gpu_rag.methods.method import Method

METHODS = (
    Method("dense", ("passage_vectors",), inexact=("neighbours",), standins=True, compared=True, shown=True, order=10),
)
