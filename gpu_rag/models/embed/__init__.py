"""Embedders: texts to unit vectors. `load_embedder` picks by name; every embedder follows the `Embedder` protocol."""

from __future__ import annotations

from gpu_rag.models.embed.interface import Embedder
from gpu_rag.models.llm.interface import ApiKeys


def load_embedder(
    name: str,
    device: str = "cpu",
    threads: int = 1,
    *,
    workers: int = 1,
    api_key: ApiKeys = None,
    connections: int = 32,
    ca_file: str = "",
) -> Embedder:
    """Load the embedder `name`.

    "minilm": the packaged MiniLM; "e5": the packaged multilingual E5; "hash": hashed words and character trigrams, for
    tests and tiny runs; "http://HOST:PORT/v1#NAME": a server, which uses the last three arguments (see
    `ServerEmbedder`); anything else: a sentence-transformers model, as a folder or as a name that is already in the
    local Hugging Face cache.
    threads: CPU threads of torch, a setting of the whole process; the hashing embedder ignores device and threads.
    workers: texts that MiniLM and E5 compute at once on a CPU, so that they use more cores; bits do not depend on it.
    Raises MissingBackend, ModelError, BadInput.
    """
    if name.startswith(("http://", "https://")):
        from gpu_rag.models.embed.server import ServerEmbedder

        return ServerEmbedder(name, api_key=api_key, connections=connections, ca_file=ca_file)
    if name == "hash":
        from gpu_rag.models.embed.hashing import HashEmbedder

        return HashEmbedder()
    if name in ("minilm", "e5"):
        from gpu_rag.models.embed.mean_pooling import MeanPoolingEmbedder
        from gpu_rag.models.packaged import packaged_e5_folder, packaged_embedder_folder

        folder = packaged_e5_folder() if name == "e5" else packaged_embedder_folder()
        return MeanPoolingEmbedder(folder, name=name, device=device, threads=threads, workers=workers)
    from gpu_rag.models.embed.sentence_transformer import SentenceTransformerEmbedder

    return SentenceTransformerEmbedder(name, device=device, threads=threads)
