"""The cross-encoder on random weights: its scores are the model's, bit-equal in any batch; what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_cross_encoder import WORDS, cross_encoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gpu_rag.models.rerank import CrossEncoder

QUESTION = "where was the designer of halden bridge born"
PAIRS = [(QUESTION, " ".join(WORDS[i : i + 1 + i % 7])) for i in range(len(WORDS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("encoder"))


def by_hand(folder: Path, pair: tuple[str, str]) -> list[float]:
    """The logits of one pair."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        given = AutoTokenizer.from_pretrained(folder)(*pair, truncation=True, return_tensors="pt")
        found: list[float] = model(**given).logits[0].tolist()
    return found


def test_scores_are_the_logits_of_the_model(folder: Path) -> None:
    scores = CrossEncoder(str(folder)).scores(PAIRS)
    assert scores.dtype == np.float32 and len(set(scores.tolist())) > len(PAIRS) // 2
    for pair, score in list(zip(PAIRS, scores))[::6]:
        assert score == pytest.approx(by_hand(folder, pair)[0], abs=1e-5)


def test_a_score_has_the_same_bits_in_any_batch(folder: Path) -> None:
    encoder = CrossEncoder(str(folder))
    whole = encoder.scores([*PAIRS, *PAIRS[:3]])
    alone = np.concatenate([encoder.scores([pair]) for pair in PAIRS])
    np.testing.assert_array_equal(whole, [*alone, *alone[:3]])
    np.testing.assert_array_equal(encoder.scores(PAIRS[::-1]), alone[::-1])
    assert encoder.scores([]).shape == (0,)


def test_of_two_classes_the_second_counts_against_the_first(tmp_path: Path) -> None:
    folder = cross_encoder(tmp_path, classes=2)
    first, second = by_hand(folder, PAIRS[3])
    assert CrossEncoder(str(folder)).scores([PAIRS[3]])[0] == pytest.approx(second - first, abs=1e-5)


def test_a_long_pair_is_cut_at_the_length_of_the_model(tmp_path: Path) -> None:
    encoder = CrossEncoder(str(cross_encoder(tmp_path, longest=24)))
    long, cut = " ".join(["tamsin"] * 500), " ".join(["tamsin"] * 13)  # 24 less 8 words and 3 signs
    np.testing.assert_array_equal(encoder.scores([(QUESTION, long)]), encoder.scores([(QUESTION, cut)]))


def test_code_of_the_folder_is_never_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trust_remote_code is off and nothing is downloaded, for the tokenizer and for the model."""
    given = []
    for kind in (AutoTokenizer, AutoModelForSequenceClassification):
        load = kind.from_pretrained
        monkeypatch.setattr(kind, "from_pretrained", lambda *a, load=load, **k: given.append(k) or load(*a, **k))
    CrossEncoder(str(folder))
    assert [(k["trust_remote_code"], k["local_files_only"]) for k in given] == [(False, True)] * 2


def test_the_identity_is_that_of_the_content(folder: Path, tmp_path: Path) -> None:
    same, other = (cross_encoder(tmp_path / name, seed=seed) for name, seed in (("same", 0), ("other", 1)))
    hashes = [CrossEncoder(str(path)).content_hash for path in (folder, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]
