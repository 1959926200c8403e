"""`python -m gpu_rag` is the `gpu-rag` command."""

from gpu_rag.cli.main import program

program()
