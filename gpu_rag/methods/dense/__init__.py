"""Dense retrieval, a baseline."""

from gpu_rag.methods.method import Method

METHODS = (
    Method(
        "dense",
        ("passage_vectors",),
        inexact=("neighbours",),
        standins=True,
        compared=True,
        shown=True,
        auto=30,
        order=10,
    ),
)
