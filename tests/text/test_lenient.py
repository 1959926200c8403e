"""Replies in another form: read where the meaning is certain, in part where a list was cut, else Malformed."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import caught

from gpu_rag.text.lenient import (
    EXACT,
    LENIENT,
    REPAIR_TOKENS,
    SALVAGED,
    Read,
    read_choice,
    read_json,
    read_reply,
    repairs,
)
from gpu_rag.text.replies import MAX_REPLY_CHARS, canonical_schema, object_of, spoken
from gpu_rag.types import Choice, JsonSchema, Malformed, Rank, Reply

NAMES = {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 4}
ITEM = object_of({"name": {"type": "string"}, "aliases": {"type": "array", "items": {"type": "string"}}})
SCHEMA = canonical_schema(object_of({"items": {"type": "array", "items": ITEM}, "names": NAMES}))
LABELS = canonical_schema(
    object_of({"chosen": {"type": "array", "items": {"enum": ["A", "B", "C"]}, "minItems": 1, "maxItems": 2}})
)
VERDICT = canonical_schema(
    object_of({"sure": {"type": "boolean"}, "n": {"type": "integer"}, "why": {"type": "string"}})
)
OPTIONS = ("A", "B", "none", "07")

WORDS = st.text(alphabet='ab "\\{}[],:é\n', max_size=9)
OBJECTS = st.fixed_dictionaries(
    {
        "items": st.lists(st.fixed_dictionaries({"name": WORDS, "aliases": st.lists(WORDS, max_size=2)}), max_size=3),
        "names": st.lists(WORDS, max_size=4),
    }
)
DRESSED = ["{}", " {}\n", "```json\n{}\n```", "Sure, here it is:\n{}\nAnything else?", "<think>{{x}} [1</think>\n{}"]
DRESSED += ["hm, [maybe]</think>{}", "Here:\n```\n{}\n```\nDone."]


@given(OBJECTS, st.sampled_from(DRESSED), st.sampled_from([None, 2]))
def test_what_stands_around_an_object_changes_nothing(value: dict[str, Any], form: str, indent: int | None) -> None:
    found = read_json(form.format(json.dumps(value, ensure_ascii=False, indent=indent)), SCHEMA)
    assert isinstance(found, Read) and found.value == value
    assert found.how == (EXACT if form.strip() == "{}" else LENIENT)


def begins(part: list[Any], whole: list[Any]) -> bool:
    return part == whole[: len(part)]


def check_cuts(read: Callable[[str, str], Any]) -> None:
    """Cut a reply anywhere: the complete items of its lists, or Malformed."""
    value = {
        "items": [{"name": f"n{i}", "aliases": ["x", 'y, "z"]}'][: i % 3]} for i in range(5)],
        "names": ["a", "b", "c]", "d"],
    }
    text = json.dumps(value)
    for end in range(len(text)):
        found = read(text[:end], SCHEMA)
        complete = [i for i in range(6) if len(json.dumps(value["items"][:i])) + len('{"items": ') - 1 <= end]
        if not isinstance(found, Read):
            assert end < len('{"items": [{"name": "n0", "aliases": []}'), f"lost at {end}: {text[:end]}"
            continue
        assert found.how == SALVAGED and begins(found.value["names"], value["names"])
        assert begins(found.value["items"], value["items"]), text[:end]
        assert len(found.value["items"]) == (complete[-1] if complete else 0), f"at {end}: {found.value}"
        if found.value["names"]:
            assert found.value["items"] == value["items"]


def test_half_of_a_surrogate_pair_is_read_as_a_question_mark() -> None:
    """No encoding holds it: a name with one would fail every text that is embedded with it, or end a build."""
    written = '{"items": [{"name": "a\ud800", "aliases": ["\udc00b"]}], "names": ["c\ud83d"]}'
    for text in (written, f"Here it is: {written}"):
        found = read_reply(Reply(text, "stop", 0, 0, 0), JsonSchema(SCHEMA))
        assert isinstance(found, Read)
        assert found.value == {"items": [{"name": "a?", "aliases": ["?b"]}], "names": ["c?"]}
    assert read_reply(Reply("a\ud800b", "stop", 0, 0, 0), None) == Read("a?b", EXACT)


def test_of_a_cut_list_the_complete_items_are_kept() -> None:
    check_cuts(read_json)


def keeps_the_unfinished_item(text: str, schema: str) -> Any:
    found = read_json(text, schema)
    if isinstance(found, Read) and text.count("{") - 1 > len(found.value["items"]):
        found.value["items"].append({"name": "n0", "aliases": []})
    return found


def loses_all(text: str, schema: str) -> Any:
    return Malformed("cut", text)


def loses_the_second_list(text: str, schema: str) -> Any:
    found = read_json(text, schema)
    return Read({**found.value, "items": []}, SALVAGED) if isinstance(found, Read) else found


test_wrong_salvage_is_caught = caught([keeps_the_unfinished_item, loses_all, loses_the_second_list], check_cuts)


@pytest.mark.parametrize(
    ("text", "schema", "value", "how"),
    [
        ('["A", "B"]', LABELS, {"chosen": ["A", "B"]}, LENIENT),
        ('{"chosen": "B"}', LABELS, {"chosen": ["B"]}, LENIENT),
        ('{"chosen": ["b.", "A"], "why": "it fits"}', LABELS, {"chosen": ["B", "A"]}, LENIENT),
        ('{"chosen": ["A"]} {"chosen": ["A"]}', LABELS, {"chosen": ["A"]}, LENIENT),
        ('{"chosen": ["A", "Z"]}', LABELS, {"chosen": ["A"]}, SALVAGED),
        ('{"chosen": ["C", "B", "A"]}', LABELS, {"chosen": ["C", "B"]}, SALVAGED),
        ('{"sure": "True", "n": "3", "why": 1943}', VERDICT, {"sure": True, "n": 3, "why": "1943"}, LENIENT),
        ('{"items": [{"name": 1, "aliases": []}, 7, {"name": "x"}], "names": []}', SCHEMA,
         {"items": [{"name": "1", "aliases": []}, {"name": "x", "aliases": []}], "names": []}, SALVAGED),
        ('{"names": ["a"', SCHEMA, {"items": [], "names": ["a"]}, SALVAGED),
    ],
)  # fmt: skip
def test_forms_that_mean_the_same(text: str, schema: str, value: Any, how: str) -> None:
    assert read_json(text, schema) == Read(value, how)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"chosen": ["A"]} or {"chosen": ["B"]}', LABELS),
        ('{"chosen": []}', LABELS),
        ('{"chosen": null}', LABELS),
        ("A", LABELS),
        ('<think>{"chosen": ["A"]}', LABELS),
        ('{"sure": "yes", "n": 3, "why": ""}', VERDICT),
        ('{"sure": true, "n": 3.5, "why": ""}', VERDICT),
        ('{"sure": true, "n": 3, "why": "cut in the mid', VERDICT),
        ('{"items": [{"name": "x", "al', SCHEMA),
        ("", SCHEMA),
    ],
)
def test_what_may_mean_something_else_is_malformed(text: str, schema: str) -> None:
    found = read_json(text, schema)
    assert isinstance(found, Malformed) and found.reason and found.raw == text


@pytest.mark.parametrize(
    ("text", "option", "how"),
    [
        (" A\n", "A", EXACT), ("A.", "A", LENIENT), ('"A"', "A", LENIENT), ("a", "A", LENIENT), ("**B**", "B", LENIENT),
        ("(B)", "B", LENIENT), ("A. Halden Bridge", "A", LENIENT), ("A) the bridge", "A", LENIENT),
        ("The best answer is B.", "B", LENIENT), ("Answer: **A**", "A", LENIENT), ('{"choice": "A"}', "A", LENIENT),
        ("```json\nB\n```", "B", LENIENT), ("<think>A or B?</think>B", "B", LENIENT), ("None.", "none", LENIENT),
        ("7", "07", LENIENT), ('["B"]', "B", LENIENT),
    ],
)  # fmt: skip
def test_an_option_in_other_clothes(text: str, option: str, how: str) -> None:
    assert read_choice(text, OPTIONS) == Read(option, how)


@pytest.mark.parametrize(
    "text",
    ["", "Z", "A river runs", "The answer is a river", "A or B", "Answer: A or B", "Answer: A. Answer: B", "<think>A",
     '{"a": "A", "b": "B"}', "70"],
)  # fmt: skip
def test_no_option_is_guessed(text: str) -> None:
    assert isinstance(read_choice(text, OPTIONS), Malformed)


def test_thinking_is_not_said() -> None:
    assert spoken("<think>a</think>\n<think>b</think> yes") == " yes"
    assert spoken("a thought</think>yes") == "yes" and spoken("<thinking>never ends") == "" and spoken("yes") == "yes"
    assert spoken("◁think▷a◁/think▷yes") == "yes"


def reply(text: str, finish: str = "stop", scores: tuple[float, ...] = ()) -> Reply:
    return Reply(text, finish, 1, 0, 7, scores)


def test_each_constraint_is_read_in_its_way() -> None:
    assert read_reply(reply('{"chosen": ["A"]}'), JsonSchema(LABELS)) == Read({"chosen": ["A"]}, EXACT)
    assert read_reply(reply("B."), Choice(("A", "B"))) == Read("B", LENIENT)
    assert read_reply(reply("A", "rank", (-1.0, -2.0)), Rank(("A", "B"))) == Read((-1.0, -2.0), EXACT)
    assert isinstance(read_reply(reply("A", "stop"), Rank(("A", "B"))), Malformed)
    assert read_reply(reply("<think>x</think>Paris"), None) == Read("Paris", EXACT)
    assert read_reply(reply("```\nParis\n```"), None) == Read("Paris", LENIENT)
    for broken in (reply(" \n"), reply("<think>never", "length"), reply("", "malformed")):
        assert isinstance(read_reply(broken, None), Malformed)
    found = read_reply(reply('{"chosen": [', "length"), JsonSchema(LABELS))
    assert isinstance(found, Malformed) and found.reason == "it was cut off at 7 tokens"


def test_a_repair_says_why_and_gives_room() -> None:
    first, *_, last = repairs("Which?", 8, Malformed("it was cut off at 8 tokens", ""))
    assert first[0].startswith("Which?\n\nAn earlier reply could not be read: it was cut off at 8 tokens")
    assert (first[1], last) == (REPAIR_TOKENS, ("Which?", 8))
    assert repairs("Which?", 100, Malformed("no", ""))[0][1] == 200


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 500_000, '{"' * 300_000, '[1,"' * 200_000, '"' * 500_000])
def test_a_megabyte_of_anything_is_read_or_refused(text: str) -> None:
    for found in (read_json(text, LABELS), read_choice(text, OPTIONS)):
        assert isinstance(found, Malformed)
    assert isinstance(read_json(text * 20, LABELS), Malformed) and len(text * 20) > MAX_REPLY_CHARS


def test_one_value_is_taken_for_a_property_and_never_for_an_item_of_a_list() -> None:
    schema = canonical_schema(
        object_of({"type": {"enum": ["entity"]}, "chosen": {"type": "array", "items": {"enum": ["A"]}, "minItems": 0}})
    )
    found = read_json('{"type": "film", "chosen": ["A"]}', schema)
    assert isinstance(found, Read) and found.value == {"type": "entity", "chosen": ["A"]}
    none = read_json('{"type": "entity", "chosen": ["none"]}', schema)
    assert not isinstance(none, Read) or none.value["chosen"] == []
