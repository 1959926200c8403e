"""Embedders: unit rows, a row equal in any company, the model's own pooling and limit, honest identity."""

import hashlib
import json
import math
import random
import sys
import types
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import ModelError
from gpu_rag.models import packaged
from gpu_rag.models.embed import load_embedder, mean_pooling
from gpu_rag.models.embed.bert import TILE
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.embed.mean_pooling import MeanPoolingEmbedder
from gpu_rag.models.embed.sentence_transformer import SentenceTransformerEmbedder
from gpu_rag.models.fingerprint import folder_hash

WORDS = [
    "the",
    "river",
    "city",
    "Curie",
    "was",
    "born",
    "1867",
    "film",
    "director",
    "Γεια",
    "東京",
    "🙂",
    "naïve",
    "polonium",
]


@pytest.fixture(scope="module")
def minilm():
    return load_embedder("minilm")


def varied_texts(n: int, seed: int = 0) -> list[str]:
    """Texts of many token lengths, around the multiples of 16 too, without two alike."""
    rng = random.Random(seed)
    counts = [0, 1, 3, 8, 12, 13, 14, 15, 16, 29, 40, 90]
    return [f"{' '.join(rng.choice(WORDS) for _ in range(rng.choice(counts)))} {i}" for i in range(n)]


def rows_that_differ(embed, texts: list[str]) -> int:
    """Rows that are not bit-equal between all at once, alone, and shuffled in odd batches."""
    whole = embed(texts)
    alone = np.concatenate([embed([text]) for text in texts])
    order = random.Random(1).sample(range(len(texts)), len(texts))
    mixed = np.empty_like(whole)
    for start in range(0, len(order), 23):
        some = order[start : start + 23]
        mixed[some] = embed([texts[i] for i in some])
    return int(((whole != alone) | (whole != mixed)).any(axis=1).sum())


def hashed_by_hand(counts: dict[str, int]) -> np.ndarray:
    """The formula of HashEmbedder, feature by feature."""
    v = np.zeros(256)
    for word, tf in counts.items():
        marked = f"^{word}$"
        trigrams = [marked[i : i + 3] for i in range(len(marked) - 2)]
        for feature, weight in [("w" + word, 1.0)] + [("t" + t, 0.5 / math.sqrt(len(trigrams))) for t in trigrams]:
            number = int.from_bytes(hashlib.blake2b(feature.encode(), digest_size=8).digest(), "big")
            v[(number >> 1) % 256] += (1 + math.log(tf)) * weight * (1 if number % 2 else -1)
    return v / np.linalg.norm(v)


def test_hash_embedder_is_its_formula():
    got = HashEmbedder().embed(["Lyon, lyon & Paris!", ""])
    np.testing.assert_allclose(got[0], hashed_by_hand({"lyon": 2, "paris": 1}), atol=1e-6)
    np.testing.assert_allclose(got[1], hashed_by_hand({"": 1}), atol=1e-6)
    assert np.abs(got[0] - hashed_by_hand({"lyon": 1, "paris": 1})).max() > 0.01  # a version that ignores counts


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_hash_embedder_rows_are_units_and_independent(texts):
    embedder = HashEmbedder()
    whole = embedder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, atol=1e-5)
    assert all((embedder.embed([text])[0] == row).all() for text, row in zip(texts, whole))


def test_minilm_row_is_bit_equal_alone_and_in_any_batch(minilm):
    texts = varied_texts(96)
    assert minilm.row_identical
    assert rows_that_differ(minilm.embed, texts) == 0


def reference(folder, text: str, pooling: str) -> np.ndarray:
    """One text through plain transformers in float32, unpadded."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    with torch.inference_mode():
        hidden = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=256)).last_hidden_state[0]
    v = (hidden.mean(0) if pooling == "mean" else hidden[0]).numpy()
    return v / np.linalg.norm(v)


def test_minilm_agrees_with_plain_float32_mean_pooling(minilm):
    folder = packaged.packaged_embedder_folder()
    texts = ["Marie Curie was born in Warsaw.", "curie " * 400]
    got = minilm.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    for text, row in zip(texts, got):
        assert row @ reference(folder, text, "mean") > 0.999
        assert row @ reference(folder, text, "cls") < 0.99  # the other pooling would not pass


def test_minilm_float32_is_exact_to_rounding():
    """Against transformers' own model, texts of many lengths in one call."""
    folder = packaged.packaged_embedder_folder()
    embedder = MeanPoolingEmbedder(folder, name="minilm", dtype="float32")
    texts = ["a red door", "", *varied_texts(30), "polonium " * 300]
    for text, row in zip(texts, embedder.embed(texts)):
        np.testing.assert_allclose(row, reference(folder, text, "mean"), atol=1e-5)
    assert rows_that_differ(embedder.embed, texts) == 0
    assert embedder.content_hash == load_embedder("minilm").content_hash


def test_minilm_bfloat16_is_near_and_bit_equal_in_any_batch():
    """In the arithmetic that processors with bfloat16 take; here it may be emulated."""
    folder = packaged.packaged_embedder_folder()
    exact, rounded = (MeanPoolingEmbedder(folder, name="minilm", dtype=d) for d in ("float32", "bfloat16"))
    texts = varied_texts(12)
    assert (exact.embed(texts) * rounded.embed(texts)).sum(1).min() > 0.999
    assert rows_that_differ(rounded.embed, texts[:6]) == 0


def test_minilm_matrix_products_have_one_shape_and_few_pads(monkeypatch, minilm):
    """Whoever is in them: rounding depends on the shape. And what is computed is nearly all of use."""
    shapes: list[tuple[int, ...]] = []
    plain = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda one, x: shapes.append(tuple(x.shape)) or plain(one, x))
    if minilm.dtype != torch.float32:
        pytest.skip("packed layers are no Linear")
    ids = minilm.token_ids(varied_texts(300))
    minilm.embed_ids(ids)
    assert {rows for rows, _ in shapes} == {TILE}
    useful = sum(map(len, ids))
    assert useful <= (n_computed := len(shapes) // 24 * TILE) and useful > 0.9 * n_computed  # 4 products a layer


def test_minilm_gives_the_same_bits_with_any_number_of_workers(minilm, monkeypatch):
    """Several pieces at once, in their order; a reader that stops early waits for no piece that has not begun."""
    monkeypatch.setattr(mean_pooling, "CPU_PIECE_CHARS", 500)
    texts = varied_texts(60)
    one, seen = minilm.embed(texts), list[int]()
    monkeypatch.setattr(minilm, "workers", 3)
    assert (minilm.embed(texts, seen.append) == one).all() and seen == sorted(set(seen)) and len(seen) > 10
    asked = []
    monkeypatch.setattr(minilm, "token_ids", lambda texts: asked.append(texts) or type(minilm).token_ids(minilm, texts))
    with closing(minilm.parts(texts)) as parts:
        next(parts)
    assert len(asked) <= 7 < len(seen)


def test_minilm_cuts_at_its_own_limit_and_counts(minilm):
    before = minilm.n_truncated
    long, longer, short = minilm.embed(["word " * 300, "word " * 500, "word " * 254])
    assert minilm.n_truncated == before + 2
    assert (long == longer).all() and (long == short).all()  # [CLS] + 254 tokens + [SEP]


def test_minilm_empty_call_duplicates_surrogates_and_progress(minilm):
    assert minilm.embed([]).shape == (0, 384)
    seen: list[int] = []
    rows = minilm.embed(["x", "y z", "x", "broken \ud800 text"], seen.append)
    assert rows.dtype == np.float32 and (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
    assert seen[-1] == 3


def test_folder_hash_sees_weights_settings_and_version_but_not_who_saved(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"layers": 2, "transformers_version": "5.18.0"}))
    first = folder_hash(tmp_path, 1, {"pooling": "mean"})
    config.write_text(json.dumps({"transformers_version": "5.19.0", "layers": 2}))
    assert folder_hash(tmp_path, 1, {"pooling": "mean"}) == first
    assert folder_hash(tmp_path, 2, {"pooling": "mean"}) != first
    assert folder_hash(tmp_path, 1, {"pooling": "cls"}) != first
    config.write_text(json.dumps({"layers": 3}))
    assert folder_hash(tmp_path, 1, {"pooling": "mean"}) != first
    config.write_text(json.dumps({"layers": 2}))
    (tmp_path / "model.safetensors").write_bytes(b"weightS!")
    assert folder_hash(tmp_path, 1, {"pooling": "mean"}) != first


class FakeSentenceTransformer:
    """Rows that depend on the shape of their batch, as those of a real model do."""

    max_seq_length = 8

    def __init__(self, folder, device, local_files_only):
        assert local_files_only
        self.sizes: list[tuple[int, int]] = []  # texts and tokens of each batch
        self.dtype = torch.float32

    def to(self, dtype):
        self.dtype = dtype

    def tokenizer(self, texts, truncation, padding, verbose):
        return {"input_ids": [[1, *[len(w) for w in t.split()], 2] for t in texts]}

    def encode(self, texts, batch_size, show_progress_bar, convert_to_numpy, normalize_embeddings):
        assert not normalize_embeddings and len(texts) == batch_size
        longest = max(min(len(t.split()), self.max_seq_length - 2) for t in texts)
        self.sizes.append((len(texts), longest + 2))
        return torch.tensor([[1.0, len(t), len(texts) + longest] for t in texts], dtype=self.dtype).float().numpy()


@pytest.fixture
def fake(monkeypatch):
    """The module sentence_transformers, imitated."""
    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = FakeSentenceTransformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return module


def test_sentence_transformer_rows_are_identical_in_any_batch(fake, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    embedder = load_embedder(str(tmp_path))
    texts = varied_texts(40)
    assert embedder.row_identical and embedder.dim == 3
    assert rows_that_differ(embedder.embed, texts) == 0
    assert embedder.n_truncated > 0
    whole = FakeSentenceTransformer("", "cpu", True)
    assert rows_that_differ(lambda t: whole.encode(t, len(t), False, True, False), texts) > 0
    np.testing.assert_allclose(np.linalg.norm(embedder.embed(texts), axis=1), 1, atol=1e-6)


def test_sentence_transformer_batches_have_a_budget_of_tokens(fake, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    embedder = SentenceTransformerEmbedder(str(tmp_path))
    embedder._model.sizes.clear()
    embedder.embed(varied_texts(300))
    assert {size * length for size, length in embedder._model.sizes} == {256 // n * n for n in range(3, 9)}


def test_sentence_transformer_in_bfloat16_gives_unit_rows_in_float32(fake, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    plain = SentenceTransformerEmbedder(str(tmp_path))
    rounded = SentenceTransformerEmbedder(str(tmp_path), dtype="bfloat16")
    texts = varied_texts(40)
    assert plain._model.dtype == torch.float32 and rounded._model.dtype == torch.bfloat16
    vectors = rounded.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)  # scaled after, not before
    assert (vectors * plain.embed(texts)).sum(1).min() > 0.999 and rows_that_differ(rounded.embed, texts) == 0


def out_of_memory(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_device_without_room_for_a_batch_is_a_model_error(monkeypatch, minilm, fake, tmp_path):
    """torch raises a RuntimeError, which nothing above would take for a failure of the model."""
    monkeypatch.setattr(minilm, "_model", out_of_memory)
    with pytest.raises(ModelError, match=r"out of memory; given 1 texts of up to 4 tokens; leave the GPU more room"):
        minilm.embed(["a river"])
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    embedder = load_embedder(str(tmp_path))
    monkeypatch.setattr(FakeSentenceTransformer, "encode", out_of_memory)
    with pytest.raises(ModelError, match=r"out of memory; given 64 texts of 4 tokens"):
        embedder.embed(["a river"])
    monkeypatch.setattr(fake, "SentenceTransformer", out_of_memory)
    with pytest.raises(ModelError, match=f"out of memory; given {tmp_path}"):
        load_embedder(str(tmp_path))


def test_sentence_transformer_is_never_downloaded(fake):
    with pytest.raises(ModelError, match="no such embedding model"):
        load_embedder("nobody/no-such-model")
