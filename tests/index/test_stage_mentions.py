"""The mention layer: exact offsets, where a mention comes from, the cap on searched names, a brute-force twin."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag.index.stages.mentions import MAX_PASSAGES_OF_A_SEARCHED_NAME, mentions_stage

Mention = tuple[int, int, str, int, str]  # passage, start, entity id, end, origin
Found = Sequence[tuple[Sequence[str], Sequence[tuple[str, str, str]]]]


def run_layer(
    bench: Any, texts: Sequence[str], found: Found, names: Sequence[str], aliases: dict[str, list[str]] | None = None
) -> list[Mention]:
    """The mentions in the order of the table, after checks of that order and of the counts."""
    bench.put_passages(texts)
    bench.put_entities(names, aliases)
    bench.put_extracted(found)
    counts = bench.run(mentions_stage)
    ids = [row["id"] for row in bench.rows("entities")]
    rows = bench.rows("mentions")
    places = [(row["passage"], row["start"], row["entity"]) for row in rows]
    assert places == sorted(places)
    assert counts == {"mentions": len(rows), "mentions_not_verbatim": sum(row["start"] < 0 for row in rows)}
    return [(r["passage"], r["start"], ids[r["entity"]], r["end"], r["origin"]) for r in rows]


def test_offsets_are_exact_and_origins_told_apart(bench: Any) -> None:
    texts = ["Die STRASSE, dann die Straße.", "Ann met ann; Anna did not.", "Nobody."]
    found = [(["Straße"], []), ([], []), (["Straße"], [("Ann", "is", "Ann")])]
    mentions = run_layer(bench, texts, found, ["strasse", "ann"], {"strasse": ["Straße", "STRASSE"], "ann": ["Ann"]})
    assert mentions == [
        (0, 4, "strasse", 11, "extraction"),
        (0, 22, "strasse", 28, "extraction"),  # ß folds to ss: the offsets are those of the original
        (1, 0, "ann", 3, "search"),
        (1, 8, "ann", 11, "search"),  # and Anna is another word
        (2, -1, "ann", -1, "extraction"),  # extracted there, not written there
        (2, -1, "strasse", -1, "extraction"),
    ]
    assert [texts[p][s:e] for p, s, _, e, _ in mentions if s >= 0] == ["STRASSE", "Straße", "Ann", "ann"]


def test_aliases_that_fold_alike_give_one_mention(bench: Any) -> None:
    aliases = {"new york": ["New York", "NEW YORK", "new york"]}
    mentions = run_layer(bench, ["In New York."], [([], [])], ["new york", "york"], aliases)
    assert mentions == [(0, 3, "new york", 11, "search"), (0, 7, "york", 11, "search")]


@pytest.mark.parametrize("n_passages", [99, 100, 101])
def test_a_searched_name_in_100_passages_is_kept_only_where_it_was_extracted(bench: Any, n_passages: int) -> None:
    """Passages count, not occurrences: Ann stands twice in each."""
    assert MAX_PASSAGES_OF_A_SEARCHED_NAME == 100
    texts = ["Ann and Ann."] * n_passages + ["Bo."] * 3
    found: list[Any] = [([], [])] * len(texts)
    found[5], found[7] = (["ANN"], []), ([], [("Bo", "met", "ann")])
    mentions = run_layer(bench, texts, found, ["ann", "bo"])
    ann = [m for m in mentions if m[2] == "ann"]
    extracted = [(p, s, "ann", s + 3, "extraction") for p in (5, 7) for s in (0, 8)]
    if n_passages < 100:
        assert [m for m in ann if m[4] == "extraction"] == extracted
        assert len(ann) == 2 * n_passages
    else:
        assert ann == extracted
    bo = [m for m in mentions if m[2] == "bo"]
    assert bo == [(7, -1, "bo", -1, "extraction"), *((n_passages + i, 0, "bo", 2, "search") for i in range(3))]


def brute_force(texts: Sequence[str], found: Found, names: Sequence[str], cap: int = 100) -> list[Mention]:
    extracted = {
        (name.lower(), p)
        for p, (listed, triples) in enumerate(found)
        for name in [*listed, *(end for s, _, o in triples for end in (s, o))]
    }
    out = []
    for name in names:
        hits = [(p, m.start(), m.end()) for p, t in enumerate(texts) for m in re.finditer(rf"\b{name}\b", t.lower())]
        often = len({p for p, _, _ in hits}) >= cap
        for p, start, end in hits:
            if (name, p) in extracted or not often:
                out.append((p, start, name, end, "extraction" if (name, p) in extracted else "search"))
        known = {p for p, _, _ in hits}
        out += [(p, -1, name, -1, "extraction") for n, p in extracted if n == name and p not in known]
    return sorted(out)


WORDS = st.sampled_from(["Ann", "ann", "Bo", "bo", "Cy", "Annex", "the", ",", "bo-cy"])
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=6)
NAMES = ["ann", "bo", "cy", "ann bo"]


@st.composite
def corpora(draw: Any) -> tuple[list[str], list[Any]]:
    texts = draw(TEXTS)
    one = st.sampled_from(["Ann", "BO", "cy", "Ann Bo"])
    found = draw(
        st.lists(
            st.tuples(st.lists(one, max_size=2), st.lists(st.tuples(one, st.just("r"), one), max_size=1)),
            min_size=len(texts),
            max_size=len(texts),
        )
    )
    return texts, found


@given(corpora())
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_against_brute_force(benches: Iterator[Any], corpus: tuple[list[str], list[Any]]) -> None:
    texts, found = corpus
    assert run_layer(next(benches), texts, found, NAMES) == brute_force(texts, found, NAMES)
