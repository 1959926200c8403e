"""Settings: types, choices and bounds, names that do not exist, --set, profiles, which source wins."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.folder import canonical_json
from gpu_rag.settings import (
    IndexSettings,
    ModelSettings,
    ReaderSettings,
    RuntimeSettings,
    Settings,
    as_plain,
    checked,
    make_settings,
    merge,
    nested,
    parse_assignment,
    read_profile,
)


def test_no_values_give_the_defaults() -> None:
    assert make_settings({}) == Settings()
    assert make_settings({"index": {}, "method": {}}) == Settings()


def test_values_reach_their_sections_and_others_keep_their_defaults() -> None:
    made = make_settings(
        {
            "models": {"capable": True, "threads": 3},
            "index": {"min_yield": 1, "extractor": "llm"},
            "runtime": {"max_seconds": 2},
            "reader": {"passages": 7},
            "method": {"ppr": {"damping": 0.5}},
        }
    )
    assert made.models == ModelSettings(capable=True, threads=3)
    assert made.index == IndexSettings(min_yield=1.0, extractor="llm")
    assert isinstance(made.index.min_yield, float)  # a whole number where a float belongs: one hash, not two
    assert made.runtime == RuntimeSettings(max_seconds=2.0) and made.reader == ReaderSettings(passages=7)
    assert made.method == {"ppr": {"damping": 0.5}}
    assert make_settings(as_plain(made)) == made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"indx": {}},
            "unknown section; given indx; expected models | index | runtime | reader | .*method; did you mean",
        ),
        ({"index": {"chunk_word": 9}}, "given chunk_word; expected .*chunk_words.*; did you mean chunk_words"),
        ({"index": 3}, r"\[index\] is a section"),
        ({"method": 3}, r"\[method\] is a section"),
        ({"method": {"ppr": 3}}, r"\[method.ppr\] is a section"),
        (
            {"index": {"chunk_words": "200"}},
            "index.chunk_words has the wrong type; given '200'; expected a whole",
        ),
        ({"index": {"chunk_words": 200.0}}, "wrong type"),
        ({"index": {"chunk_words": True}}, "wrong type"),
        ({"index": {"min_yield": True}}, "wrong type"),
        ({"index": {"min_yield": "half"}}, "wrong type"),
        ({"index": {"min_yield": float("nan")}}, "index.min_yield is not a finite number"),
        ({"runtime": {"max_seconds": float("inf")}}, "runtime.max_seconds is not a finite number"),
        ({"models": {"embedder": 3}}, "wrong type"),
        ({"models": {"capable": "yes"}}, "wrong type"),
        ({"models": {"capable": 1}}, "wrong type"),
        ({"index": {"extractor": "regex"}}, "given 'regex'; expected patterns | llm | import"),
        ({"models": {"decider": "coin"}}, "expected auto | llm | similarity"),
        ({"index": {"chunk_words": 7}}, "out of range; given 7; expected >= 8"),
        ({"models": {"threads": 0}}, "expected 1 <= threads <= 1024"),
        ({"models": {"max_batch": 0}}, ">= 1"),
        ({"index": {"block": 7}}, ">= 8"),
        ({"runtime": {"max_live": 0}}, ">= 1"),
        ({"reader": {"passages": 0}}, "reader.passages is out of range; given 0; expected >= 1"),
        ({"reader": {"max_tokens": 0}}, "reader.max_tokens is out of range; given 0; expected >= 1"),
        ({"runtime": {"max_tokens": -1}}, "runtime.max_tokens is out of range; given -1; expected >= 0"),
        ({"runtime": {"max_calls": -1}}, ">= 0"),
        ({"index": {"extract_tokens": 0}}, ">= 1"),
        ({"index": {"overlap_words": -1}}, ">= 0"),
        ({"index": {"synonym_k": 20}}, "index.synonym_k is fixed now; given 20; expected 20; leave it out"),
    ],
)
def test_bad_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace(" | ", r" \| ")):
        make_settings(values)


@pytest.mark.parametrize("section", ["models", "index", "runtime", "reader"])
def test_every_default_is_accepted_and_every_other_type_refused(section: str) -> None:
    default = getattr(Settings(), section)
    for field in fields(default):
        value = getattr(default, field.name)
        assert getattr(getattr(make_settings({section: {field.name: value}}), section), field.name) == value
        with pytest.raises(UsageError, match=f"{section}.{field.name} has the wrong type"):
            make_settings({section: {field.name: {"a": 1}}})


@dataclass(frozen=True)
class Shape:
    """Parameters as a method has them."""

    hops: tuple[int, ...] = (1, 2)
    scale: float = 1.0
    name: str | None = None


def test_lists_for_tuples_and_none_where_it_is_allowed() -> None:
    assert checked(Shape, {"hops": [3], "scale": 2, "name": None}, "method.shape") == Shape((3,), 2.0, None)
    with pytest.raises(UsageError, match="method.shape.hops has the wrong type"):
        checked(Shape, {"hops": 3}, "method.shape")
    with pytest.raises(UsageError, match=r"unknown setting in \[method.shape\]; given hop"):
        checked(Shape, {"hop": 3}, "method.shape")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("index.chunk_words=200", 200),
        ("index.min_yield=0.25", 0.25),
        ("models.capable=true", True),
        ("models.llm=smollm2", "smollm2"),
        ('models.llm="smollm2"', "smollm2"),
        ("models.llm=http://host:80/v1#a=b", "http://host:80/v1#a=b"),
        ("method.x.hops=[1, 2]", [1, 2]),
        ("models.llm=", ""),
        ("models.llm=1\nw = 2", "1\nw = 2"),  # one value, not a document
    ],
)
def test_assignments_are_toml_or_else_text(text: str, value: Any) -> None:
    key, found = parse_assignment(text)
    assert key == text.split("=")[0]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("text", ["index.chunk_words", "chunk_words=200", "=3", ""])
def test_assignments_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read --set"):
        parse_assignment(text)


def test_assignments_nest_and_later_ones_win() -> None:
    given = [("index.block", 16), ("method.ppr.damping", 0.5), ("method.ppr.tol", 0.1), ("index.block", 32)]
    assert nested(given) == {"index": {"block": 32}, "method": {"ppr": {"damping": 0.5, "tol": 0.1}}}
    table = [("method.ppr.tol", 0.1), ("method.ppr", {"damping": 0.5}), ("method.ppr.tol", 0.2)]  # an inline table
    assert nested(table) == {"method": {"ppr": {"tol": 0.2, "damping": 0.5}}}
    assert nested([]) == {}


@pytest.mark.parametrize("given", [["a.b", "a.b.c"], ["a.b.c", "a.b"]])
def test_a_value_and_a_section_of_one_name_contradict(given: list[str]) -> None:
    with pytest.raises(UsageError, match="both a value and a section; given a.b"):
        nested([(key, 1) for key in given])


def test_profiles(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[index]\nchunk_words = 100\n[method.ppr]\ndamping = 0.5\n[models]\nllm = "none"\n')
    assert make_settings(read_profile(path)).method == {"ppr": {"damping": 0.5}}
    with pytest.raises(BadInput, match="no such profile"):
        read_profile(tmp_path / "missing.toml")
    path.write_text("index = [")
    with pytest.raises(BadInput, match="not TOML"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="not TOML"):
        read_profile(path)


@pytest.mark.parametrize("name", ["cpu", "gpu", "multi-gpu"])
def test_the_profiles_of_the_project_are_settings(name: str) -> None:
    path = Path(__file__).resolve().parents[2] / "configs" / f"{name}.toml"
    assert make_settings(read_profile(path)) != Settings()


PLAIN = st.recursive(
    st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
)
SECTIONS = st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)


def paths(mapping: Any, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(mapping, dict):
        return {at: mapping}
    return {key: value for name, inner in mapping.items() for key, value in paths(inner, (*at, name)).items()}


def merged_by_path(*mappings: Any) -> dict[tuple[str, ...], Any]:
    out: dict[tuple[str, ...], Any] = {}
    for mapping in mappings:
        for path, value in paths(mapping).items():
            # a value hides the section of its name, and the other way round
            out = {p: v for p, v in out.items() if p[: len(path)] != path and path[: len(p)] != p}
            out[path] = value
    return out


@given(st.lists(SECTIONS, max_size=3))
@examples(max_examples=50, deadline=None, derandomize=True)
def test_merging_is_later_wins_path_by_path(sections: list[Any]) -> None:
    merged = merge(*sections)
    assert paths(merged) == merged_by_path(*sections)
    assert canonical_json(merge(merged, merged)) == canonical_json(merged)


def test_later_sections_win_by_hand() -> None:
    manifest: dict[str, Any] = {"models": {"embedder": "hash", "llm": "a"}, "index": {"block": 8}}
    profile = {"models": {"llm": "b", "threads": 2}}
    flags = {"models": {"threads": 3}}
    assert merge(manifest, profile, flags) == {
        "models": {"embedder": "hash", "llm": "b", "threads": 3},
        "index": {"block": 8},
    }
    assert manifest["models"]["llm"] == "a"  # nothing given is altered
    assert merge(flags, profile)["models"]["threads"] == 2  # order matters
