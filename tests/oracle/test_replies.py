"""parse_json against json and jsonschema: what is read, what is malformed, and wrong versions."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from refusals import caught, passes

from gpu_rag.text.replies import canonical_schema, parse_json
from gpu_rag.types import Malformed

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
Parse = Callable[[str, str], Any]

SCHEMAS: list[dict] = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"enum": [1, "x", None]}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 1}, "b": {"type": "object"}},
        "required": ["b"],
    },
]
ANY = json.dumps({"type": "object"})
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(-9, 9), st.sampled_from(["", "x", "ß", "a\n{"])
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from("abc"), v), max_leaves=6
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def valid(value: Any, schema: dict) -> bool:
    return isinstance(value, dict) and jsonschema.Draft202012Validator(schema).is_valid(value)


def check_schemas(parse: Parse) -> None:
    """A dict exactly where the value is one and the schema holds, with or without a fence or a thinking block."""
    dress = st.sampled_from(
        [
            "{}",
            " {}\n",
            "```json\n{}\n```",
            "```\n{}\n```",
            "<think>a {{b}} or c</think>\n{}",
            "<think>\n</think>```json\n{}\n```",
        ]
    )

    @QUICK
    @given(st.one_of(OBJECTS, OBJECTS, VALUES), st.sampled_from(SCHEMAS), dress, st.booleans())
    def holds(value: Any, schema: dict, form: str, ascii_only: bool) -> None:
        raw = form.format(json.dumps(value, ensure_ascii=ascii_only))
        got = parse(raw, json.dumps(schema))
        if valid(value, schema):
            assert got == value and type(got) is dict, f"{raw!r}: {got}"
        else:
            assert isinstance(got, Malformed) and got.raw == raw and got.reason, f"{raw!r}: {got}"

    holds()


MALFORMED = [
    "",
    "   ",
    "Sure! Here you are.",
    'Sure: {"a": 1}',
    '{"a": 1} I hope this helps',
    '```json\n{"a": 1}\n``` Done.',
    'Here:\n```json\n{"a": 1}\n```',
    "{'a': 1}",
    '{"a": 1,}',
    '{"a": 1',
    '{"a": True}',
    '{"a": None}',
    "{a: 1}",
    '{"a": 1} {"a": 1}',
    '{"a": 1}{',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    '{"a": 1} // one',
    '{"a": "line\nbreak"}',
    "[1, 2]",
    '[{"a": 1}]',
    "null",
    "1",
    '"{}"',
    '<think>so {"a": 1}',
    '<think>so {"a": 1}</think>',
    "```json\n```",
    '{"a": 01}',
    '{"a": .5}',
    '{"a": 1, "a": 2}',
    "{" + '"a":{' * 3,
]


def check_malformed(parse: Parse) -> None:
    for raw in MALFORMED:
        got = parse(raw, ANY)
        assert isinstance(got, Malformed), f"{raw!r} was read as {got}"
        assert got.raw == raw and got.reason, f"{raw!r}: {got}"


READ = [
    ('{"a": "```json\\n{}\\n```"}', {"a": "```json\n{}\n```"}),
    ('{"a": "<think>kept</think>"}', {"a": "<think>kept</think>"}),
    ('```json\n{"a": "``` inside"}\n```', {"a": "``` inside"}),
    ('<think>\n```json\n{"a": 2}\n```\n</think>\n\n{"a": 1}', {"a": 1}),
    ('<think>first { then } and "</think> {"a": {"b": []}}', {"a": {"b": []}}),
    ('\n\n```json\n{"a": 1}\n```\n', {"a": 1}),
    ('{"a": "\\u00df \\" \\\\ {"}', {"a": 'ß " \\ {'}),
    ("{}", {}),
]


def check_kept_as_given(parse: Parse) -> None:
    """Fences and thinking INSIDE a string are data; a thinking block may hold anything."""
    for raw, want in READ:
        assert parse(raw, ANY) == want, raw


def check_monsters(parse: Parse) -> None:
    """Replies that break a parser from inside are malformed, never a crash."""
    for raw in ("[" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, '{"a": ' + "9" * 5000 + "}"):
        try:
            got = parse(raw, json.dumps(SCHEMAS[1]))
        except (RecursionError, ValueError) as error:
            raise AssertionError(f"{raw[:20]}... crashed the parser: {type(error).__name__}") from error
        assert isinstance(got, Malformed) or got["a"] == 10**5000 - 1


CHECKS = [check_schemas, check_malformed, check_kept_as_given, check_monsters]


def refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def once(pairs: list[tuple[str, Any]]) -> dict:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def strictly(text: str) -> Any:
    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def strip_once(raw: str) -> str:
    body = re.sub(r"\A\s*<think>.*?</think>", "", raw, count=1, flags=re.DOTALL).strip()
    fence = re.fullmatch(r"```(?:json)?\s*\n(.*?)\n?```", body, re.DOTALL)
    return fence.group(1) if fence else body


def parse_by(
    strip: Any = strip_once, load: Any = strictly, checked: bool = True, errors: Any = (ValueError, RecursionError)
):
    def parse(raw: str, schema: str) -> Any:
        try:
            value = load(strip(raw))
        except errors as error:
            return Malformed(type(error).__name__, raw)
        if not isinstance(value, dict) or (checked and not valid(value, json.loads(schema))):
            return Malformed("not valid under the schema", raw)
        return value

    return parse


def first_object(raw: str) -> str:
    found = re.search(r"\{.*\}", raw, re.DOTALL)
    return found.group() if found else raw


def strip_everywhere(raw: str) -> str:
    return re.sub(r"```(json)?|<think>.*?</think>", "", raw, flags=re.DOTALL).strip()


def first_value(text: str) -> Any:
    return json.JSONDecoder().raw_decode(text)[0]


def lists_too(raw: str, schema: str) -> Any:
    try:
        return json.loads(strip_once(raw))
    except (ValueError, RecursionError):
        return Malformed("no JSON", raw)


def only_reason(raw: str, schema: str) -> Any:
    got = parse_by()(raw, schema)
    return Malformed(got.reason, raw.strip()[:5]) if isinstance(got, Malformed) else got


WRONG = {
    "digs out the first object": (parse_by(first_object), check_malformed),
    "strips marks everywhere": (parse_by(strip_everywhere), check_kept_as_given),
    "strips nothing": (parse_by(str), check_schemas),
    "no schema": (parse_by(checked=False), check_schemas),
    "reads Python": (parse_by(load=ast.literal_eval, errors=(ValueError, SyntaxError, MemoryError)), check_malformed),
    "lenient constants": (parse_by(load=lambda t: json.loads(t, object_pairs_hook=once)), check_malformed),
    "control characters": (
        parse_by(load=lambda t: json.loads(t, strict=False, object_pairs_hook=once, parse_constant=refuse)),
        check_malformed,
    ),
    "the last of equal keys": (parse_by(load=lambda t: json.loads(t, parse_constant=refuse)), check_malformed),
    "ignores what follows": (parse_by(load=first_value), check_malformed),
    "any value will do": (lists_too, check_malformed),
    "keeps part of the reply": (only_reason, check_malformed),
    "crashes when nested deep": (parse_by(errors=json.JSONDecodeError), check_monsters),
}


test_wrong_versions_are_caught = caught(WRONG)


test_parse_json = passes([parse_by(), parse_json], CHECKS)


def check_canonical(canonical: Callable[[dict], str]) -> None:
    """Compact JSON text of the schema: one text a dict, the order of keys kept (it orders what is generated)."""

    @QUICK
    @given(OBJECTS)
    def holds(value: dict) -> None:
        text = canonical(value)
        assert json.loads(text) == value and list(json.loads(text)) == list(value)
        assert canonical(json.loads(text)) == text

    holds()
    schema = {"type": "object", "properties": {"why": {"type": "string"}, "answer": {"enum": ["ß x", 1]}}}
    assert list(json.loads(canonical(schema))["properties"]) == ["why", "answer"]
    assert len(canonical(schema)) == len(canonical(schema).replace(": ", ":").replace(", ", ","))
    assert canonical(schema) != canonical({**schema, "required": ["why"]})


def compact(schema: dict, **options: Any) -> str:
    return json.dumps(schema, separators=(",", ":"), **options)


@pytest.mark.parametrize("wrong", [json.dumps, lambda d: compact(d, sort_keys=True), str, lambda d: compact([*d])])
def test_wrong_canonical_schemas_are_caught(wrong: Any) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_canonical(wrong)


test_canonical_schema = passes([compact, canonical_schema], [check_canonical])
