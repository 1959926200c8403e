"""Settings: types, choices, bounds and names, --set, profiles, which source wins; refusals say why and what to do."""

import copy
import dataclasses
import math
import re
import runpy
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import Meta

from gpu_rag.errors import BadInput, UsageError
from gpu_rag.index.folder import canonical_json
from gpu_rag.index.saved_settings import settings_to_save
from gpu_rag.methods.higra.settings import AlignmentSettings
from gpu_rag.methods.hoprag.settings import HopSettings
from gpu_rag.methods.registry import load_method, method_names
from gpu_rag.settings import (
    CORE,
    IndexSettings,
    ModelSettings,
    ReaderSettings,
    RuntimeSettings,
    make_settings,
    merge,
    nested,
    parse_assignment,
    read_profile,
)
from gpu_rag.settings.check import SECTIONS, checked, declared, fixed, section_class
from gpu_rag.settings.ranges import OutOfRange, Range, check_value, fits, in_words, shortened


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


def test_ops_take_a_thread_for_each_core_and_models_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.settings.sections.usable_cores", lambda: 6)
    chosen, given = ModelSettings(), ModelSettings(threads=3)
    assert (chosen.op_threads("cpu"), chosen.op_threads("cuda:0"), chosen.model_threads) == (6, 1, 1)
    assert {given.op_threads("cpu"), given.op_threads("cuda:0"), given.model_threads} == {3}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"indx": {}}, ("given indx", "did you mean index")),
        ({"index": {"chunk_word": 9}}, ("given chunk_word", "did you mean chunk_words")),
        ({"index": 3}, ("[index]",)), ({"method": 3}, ("[method]",)), ({"method": {"ppr": 3}}, ("[method.ppr]",)),
        ({"index": {"chunk_words": "200"}}, ("index.chunk_words", "given '200'", "whole")),
        ({"index": {"min_yield": float("nan")}}, ("index.min_yield",)),
        ({"index": {"extractor": "regex"}}, ("given 'regex'", "patterns | llm | import")),
        ({"index": {"synonym_k": 20}}, ("index.synonym_k", "given 20; expected 20", "leave it out")),
        ({"serve": {"hosts": [1]}}, ("serve.hosts", "given [1]", "list")),
    ],
)  # fmt: skip
def test_bad_values_are_named(values: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        make_settings(values)
    assert all(fact in str(refused.value) for fact in facts), refused.value


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


PLAIN = st.recursive(
    st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
)
PARTS = st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)


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


@given(st.lists(PARTS, max_size=3))
@examples(max_examples=50, deadline=None, derandomize=True)
def test_merging_is_later_wins_path_by_path(sections: list[Any]) -> None:
    merged = merge(*sections)
    assert paths(merged) == merged_by_path(*sections)
    assert canonical_json(merge(merged, merged)) == canonical_json(merged)


CLASSES = {
    **{name: section_class(name) for name in SECTIONS},
    **{f"method.{name}": load_method(name).Params for name in method_names()},
}
KEYS = [(where, f.name) for where, cls in CLASSES.items() for f in dataclasses.fields(cls)]
NO_TYPE = ({}, [[]], {"a": 1}, object())
NO_NUMBER = (*NO_TYPE, "", "many", [], True, False)
# what a field of a type refuses, whichever it is
REFUSED: dict[Any, tuple[Any, ...]] = {
    int: (*NO_NUMBER, None, 1.0, math.nan, math.inf, -1, -(10**30), 2**63, 10**5000),
    float: (*NO_NUMBER, None, math.nan, math.inf, -math.inf, 10**5000),
    bool: (*NO_TYPE, None, 0, 1, "", "yes", math.nan),
    str: (*NO_TYPE, None, 0, True, math.nan, [], 10**5000),
    bool | None: (*NO_TYPE, 0, 1, "", "yes", math.nan),
    str | None: (*NO_TYPE, 0, True, math.nan, []),
    tuple[str, ...]: (*NO_TYPE, None, 0, True, "", "name", [1], ["a", None]),
}


def annotation(where: str, name: str) -> Any:
    return declared(CLASSES[where])[name].type


def make(where: str, values: dict[str, Any]) -> Any:
    """Make settings as the command line does: a section by make_settings, a method by its own parameters."""
    if where in SECTIONS:
        made = make_settings({where: values})
        return getattr(made, where) if where in CORE else made.section(CLASSES[where])
    return checked(CLASSES[where], values, where)


def refusal(where: str, name: str, value: object) -> str:
    with pytest.raises(UsageError) as info:
        make(where, {name: value})
    return str(info.value)


def test_the_table_of_types_is_complete() -> None:
    assert {annotation(*key) for key in KEYS} == set(REFUSED)


@pytest.mark.parametrize(("where", "name"), KEYS, ids=".".join)
def test_the_default_is_accepted_and_what_cannot_be_is_refused_by_name(where: str, name: str) -> None:
    default = getattr(CLASSES[where](), name)
    assert getattr(make(where, {name: default}), name) == default
    for value in REFUSED[annotation(where, name)]:
        said = refusal(where, name, value)
        assert said.startswith(f"setting {where}.{name} "), said
        assert "; given " in said and "; expected " in said and said.count("leave it out") == 1, said
        assert "\n" not in said and len(said) < 400 and f"{CLASSES[where].__name__}(" not in said, said


@pytest.mark.parametrize("key", ["models.llm", "models.embedder", "method.hydrarag.web", "method.hydrarag-e.sources"])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_name_is_not_the_working_folder(key: str, empty: str) -> None:
    where, _, name = key.rpartition(".")
    assert all(fact in refusal(where, name, empty) for fact in (key, repr(empty), "a path"))


def test_settings_that_are_fixed_now_are_left_out_of_what_an_index_has_saved() -> None:
    for name, cls in ((name, section_class(name)) for name in SECTIONS):
        assert not set(fixed(cls)) & set(declared(cls))
        saved = {name: dict.fromkeys(fixed(cls), "anything")}
        assert make_settings({}, saved) == make_settings({})
    saved = {"hops": {"tokens": 512, "edge_budget": 2}, "index": {"bm25_b": 0.5, "chunk_words": 99}}
    made = make_settings({"index": {"chunk_words": 80}}, saved)
    hops = made.section(HopSettings)
    assert (hops.edge_budget, hops.tokens, made.index.chunk_words, made.index.bm25_b) == (2.0, 256, 80, 0.75)


def test_every_setting_of_a_section_has_its_help() -> None:
    for name, cls in ((name, section_class(name)) for name in SECTIONS):
        for setting in declared(cls).values():
            assert setting.help and setting.help[-1] != "." and setting.type is not None, f"{name}.{setting.name}"


def test_the_page_of_settings_is_what_the_declarations_say() -> None:
    folder = Path(__file__).resolve().parents[2]
    page = runpy.run_path(str(folder / "scripts" / "make_docs_settings.py"))["settings_page"]()
    assert page == (folder / "docs" / "settings.toml").read_text(encoding="utf-8"), "run scripts/make_docs_settings.py"
    assert "#edge_budget = 1.0  # number >= 0\n" in page and "#damping = 0.85  # number 0 <= x < 1\n" in page
    lines = re.findall(r"^(\[.*\]|#\w+ = [^ #].*)$", page, re.MULTILINE)
    copied = tomllib.loads("\n".join(line.lstrip("#") for line in lines))
    methods = {name: (load_method(name).Params, values) for name, values in copied.pop("method").items()}
    assert len(lines) > 150 and make_settings(copied) == make_settings({})  # a reader may copy any line
    assert all(checked(params, values, name) == params() for name, (params, values) in methods.items())


def test_a_section_of_a_method_is_read_and_changed_like_the_others() -> None:
    made = make_settings({"hops": {"simulate": "llm"}})
    assert made.section(HopSettings).simulate == "llm" and made.section(AlignmentSettings) == AlignmentSettings()
    changed = made.changed("hops", edge_budget=2.0).changed("models", threads=3)
    hops = changed.section(HopSettings)
    assert (hops.simulate, hops.edge_budget, changed.models.threads) == ("llm", 2.0, 3)
    assert copy.deepcopy(changed) == copy.copy(changed) == changed != made
    with pytest.raises(OutOfRange, match="edge_budget is out of range"):
        made.changed("hops", edge_budget=-1.0)


def test_saved_sections_of_methods_that_are_not_installed_are_kept_as_they_are() -> None:
    saved = {"index": {"chunk_words": 99}, "absent": {"depth": 3, "words": ["a"]}}
    made = make_settings({"index": {"overlap_words": 9}}, saved)
    assert made.kept == {"absent": {"depth": 3, "words": ["a"]}} and made.index.chunk_words == 99
    assert settings_to_save(made) == {
        "models": {"embedder": "minilm"}, "index": {"chunk_words": 99, "overlap_words": 9}, "absent": saved["absent"],
    }  # fmt: skip
    with pytest.raises(UsageError, match="unknown section; given absent"):
        make_settings({"absent": {"depth": 4}}, saved)


def test_a_method_without_settings_says_so() -> None:
    with pytest.raises(UsageError, match=r"unknown setting in \[method.dense\]; given k; expected no setting$"):
        make("method.dense", {"k": 3})


RANGES = st.builds(
    Range, st.sampled_from([None, -1, 0]), st.sampled_from([1, 2, None]), st.booleans(), st.booleans()
).filter(lambda r: r != Range())


@given(RANGES, st.sampled_from([-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3]))
@examples(max_examples=200, deadline=None, derandomize=True)
def test_the_words_of_a_range_are_what_it_holds(allowed: Meta, value: float) -> None:
    """Its words, read as Python reads them, agree with `fits` and with msgspec; NaN is in none."""
    words = in_words("x", allowed).split()
    words = words if "x" in words else ["x", *words]
    terms = [value if w == "x" else w if w[0] in "<>" else float(w) for w in words]
    compare = {"<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__}
    triples = [terms[i : i + 3] for i in range(0, len(terms) - 1, 2)]
    said = all(compare[str(sign)](float(left), float(right)) for left, sign, right in triples)
    assert fits(allowed, value) == said
    with nullcontext() if said else pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Annotated[float, allowed])
    assert not fits(allowed, math.nan)


def test_no_number_is_in_no_range() -> None:
    with pytest.raises(OutOfRange, match=r"^x is out of range; given nan; expected >= 0$"):
        check_value("x", math.nan, Range(0))


def test_long_values_are_shortened() -> None:
    assert shortened(5) == "5" and shortened("a b") == "'a b'" and shortened(10**5000).endswith("bits")
    assert len(shortened("y" * 10_000)) <= 80 and len(shortened(list(range(10_000)))) <= 80
