"""Replies: the reasons of malformed ones, and no text that crashes; wrong versions: tests/oracle/test_replies.py."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import UsageError
from gpu_rag.text.replies import canonical_schema, parse_json
from gpu_rag.text.strict_json import MAX_DEPTH, JsonError, iter_array, loads
from gpu_rag.types import Malformed

SCHEMA_DICT = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "ids": {"type": "array", "items": {"type": "integer"}}},
    "required": ["answer"],
    "additionalProperties": False,
}
SCHEMA = canonical_schema(SCHEMA_DICT)
ANY = "{}"
GOOD = '{"answer": "Vell", "ids": [1, 2]}'


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (f"{GOOD}<think>late</think>", "more text"),
        ('{"answer": 3}', "answer"),
        ('{"ids": [1]}', "answer"),
        ('{"answer": "x", "ids": [1, "2"]}', "ids/1"),
        ('{"answer": "x", "more": 1}', "more"),
        ('{"answer": "x", "answer": "y"}', "twice"),
        ('{"answer": "x", "ids": [9223372036854775808]}', "64 bits"),
        ('{"answer": "x", "ids": [-9223372036854775809]}', "64 bits"),
        ('{"answer": "\\ud83d"}', "surrogate"),
        ('{"answer": "\udc00"}', "surrogate"),
    ],
)
def test_a_malformed_reply_names_its_fault(text, fact):
    """Other forms: tests/oracle/test_replies.py."""
    found = parse_json(text, SCHEMA)
    assert isinstance(found, Malformed) and fact in found.reason and found.raw == text


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 100_000, "-" + "9" * 25])
def test_numbers_that_are_no_json_or_do_not_fit(number):
    for text in (f'{{"x": {number}}}', f'{{"x": [[{number}]]}}'):
        assert isinstance(parse_json(text, ANY), Malformed)


def test_numbers_at_the_edge_are_read():
    value = parse_json('{"a": 9223372036854775807, "b": -9223372036854775808, "c": 1e308, "d": "\\ud83c\\udf0a"}', ANY)
    assert value == {"a": 2**63 - 1, "b": -(2**63), "c": 1e308, "d": "🌊"}


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '["', '{"a\\"":[', "```json\n["])
def test_deep_nesting_is_malformed_not_a_crash(opening):
    for text in (opening * 100_000, '{"x":' + opening * 100_000, '{"x":' + "[" * 900 + "]" * 900 + "}"):
        found = parse_json(text, ANY)
        assert isinstance(found, Malformed)


def nested(depth):
    return '{"x":' * depth + "1" + "}" * depth


def test_the_depth_limit_is_exact_and_ignores_brackets_in_strings():
    assert isinstance(parse_json(nested(MAX_DEPTH), ANY), dict)
    assert "nested deeper" in parse_json(nested(MAX_DEPTH + 1), ANY).reason
    assert isinstance(parse_json(json.dumps({"x": '[{"\\' * 500, "y": [[]] * 200}), ANY), dict)


def test_a_long_reply_is_malformed():
    found = parse_json('{"x": "' + "a" * 1_000_001 + '"}', ANY)
    assert "1000000" in found.reason


@pytest.mark.parametrize("number", ["9", "-9", "1.", "1e"])
def test_long_numbers_take_linear_time(number, takes_linear_time):
    takes_linear_time(lambda n: parse_json(f'{{"x": {number}{"9" * n}}}', ANY), 800_000)


@pytest.mark.parametrize("unit", ['"', '"\\', '\\"', "<think>", "```\n"])
def test_reading_takes_linear_time(unit, takes_linear_time):
    def work(n):
        text = unit * (n // len(unit)) + "[" * 99
        for around in (text, '{"x": [[[' + text):
            assert isinstance(parse_json(around, ANY), Malformed)

    takes_linear_time(work, 200_000)


MARKS = list("{}[]:,\"'\\ \n\x00\ufeff\udc00é#")
WORDS = ['"answer"', '"ids"', '"Vell"', "1", "-0", "1e5", "NaN", "Infinity", "null", "true", "//", "\\u", "\\ud800"]
WHOLES = ["```json\n", "```", "<think>", "</think>", '{"answer":', "9" * 30, GOOD]
PIECES = st.sampled_from(MARKS + WORDS + WHOLES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["answer", "ids", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
ANSWERS = st.fixed_dictionaries({"answer": st.text(max_size=8)}, optional={"ids": st.lists(st.integers(), max_size=3)})
TEXTS = (
    st.text(max_size=60)
    | st.lists(PIECES, max_size=14).map("".join)
    | JSON.map(json.dumps)
    | ANSWERS.map(json.dumps)
    | ANSWERS.map(lambda a: f"<think>x</think>\n```json\n{json.dumps(a, ensure_ascii=False)}\n```")
    | st.tuples(ANSWERS.map(json.dumps), st.integers(0, 40), PIECES).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :])
)


@settings(max_examples=400, deadline=None, derandomize=True)  # a crash in here would end a whole run
@given(TEXTS)
def test_any_text_is_valid_or_malformed(text):
    found = parse_json(text, SCHEMA)
    if isinstance(found, Malformed):
        assert found.reason and found.raw == text
    else:
        jsonschema.Draft202012Validator(SCHEMA_DICT).validate(found)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
        assert loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"type": "text"}', "not valid"),
        ('{"properties": {"x": {"pattern": "("}}}', "not valid"),
        ('{"$ref": "http://localhost/schema.json"}', "leads nowhere"),
        ('{"$ref": "#/$defs/absent"}', "leads nowhere"),
        ('{"$ref": "#"}', "leads nowhere"),
    ],
)
def test_schemas_that_cannot_be_used(schema, said):
    with pytest.raises(UsageError, match=said):
        parse_json("{}", schema)


def test_schema_errors_when_written():
    for schema in ({"const": float("nan")}, {"const": {1, 2}}, {"type": 3}):
        with pytest.raises(UsageError):
            canonical_schema(schema)


def test_arrays_one_element_at_a_time():
    assert list(iter_array(' [1, {"a": [2]}, "]" ] ')) == [1, {"a": [2]}, "]"]
    assert list(iter_array("[]")) == list(iter_array(" [ ] ")) == []
    found = list(iter_array('[{"a": 1, "a": 2}, 3, NaN, 4]'))
    assert [type(x) for x in found] == [JsonError, int, JsonError, int]


@pytest.mark.parametrize(
    "text", ["", "{}", "[", "[1", "[1,", "[1,]", "[1 2]", "[1] 2", "[,1]", "[1]]", "[" * 100_000, "[{}, {"]
)
def test_arrays_that_break(text):
    with pytest.raises(JsonError):
        list(iter_array(text))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=4)
        | st.none()
        | st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_arrays_like_the_standard_library(values):
    text = json.dumps(values, indent=1)
    assert list(iter_array(text)) == json.loads(text) == loads(text)
