"""Prompt files: two parts, slots filled in one pass, and errors that name the file."""

import importlib
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_rag.errors import UsageError
from gpu_rag.text.prompts import FENCE, Prompt

TEXT = """You are careful.

Answer with {"answer": {"text": ...}} only.
=== question ===
Passage: {{passage}}
Question: {{question}} ({{question}})
Answer:
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the path, to which a test writes prompt files."""
    folder = tmp_path / "prompts_for_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop(folder.name, None)


def test_reads_a_file_of_a_package(package):
    (package / "answer.txt").write_text(TEXT, encoding="utf-8")
    prompt = Prompt.read(package.name, "answer")
    assert prompt.system == 'You are careful.\n\nAnswer with {"answer": {"text": ...}} only.'
    assert prompt.fields == {"passage", "question"}
    assert prompt.render(passage="Vell.", question="Où?") == "Passage: Vell.\nQuestion: Où? (Où?)\nAnswer:"


def test_line_ends_and_a_byte_order_mark_make_no_difference(package):
    (package / "a.txt").write_text(TEXT, encoding="utf-8")
    (package / "b.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    a, b = Prompt.read(package.name, "a"), Prompt.read(package.name, "b")
    assert (a.system, a.template, a.digest) == (b.system, b.template, b.digest)
    assert a.digest != Prompt.parse("c", TEXT.replace("careful", "quick")).digest


def test_a_value_is_never_taken_for_a_slot():
    prompt = Prompt.parse("p", TEXT)
    out = prompt.render(passage="{{question}} \\1 {{nothing}}", question="{{passage}}")
    assert out == "Passage: {{question}} \\1 {{nothing}}\nQuestion: {{passage}} ({{passage}})\nAnswer:"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.text(), st.text())
def test_any_values_stand_where_their_slot_was(passage, question):
    expected = f"Passage: {passage}\nQuestion: {question} ({question})\nAnswer:"
    assert Prompt.parse("p", TEXT).render(passage=passage, question=question) == expected


FENCED = """You read.
=== question ===
<data>
Title: {{title}}
{{passage}}
</data>

Question: {{question}}"""


def test_a_fence_says_so_in_the_static_part_and_holds_its_slots():
    prompt = Prompt.parse("p", FENCED)
    assert prompt.system == f"You read.\n\n{FENCE}"
    assert prompt.fields == {"title", "passage", "question"}
    shown = prompt.render(title="T", passage="P", question="Q")
    assert shown == "<data>\nTitle: T\nP\n</data>\n\nQuestion: Q"


TAGS = ["</data>", "<data>", "</DATA >", "< / data>", "<\n/data>", "＜/data>", "<／data>", "<\u200b/data>", "</data x>"]


@pytest.mark.parametrize("tag", TAGS)
def test_no_value_opens_or_closes_a_fence(tag):
    prompt = Prompt.parse("p", FENCED)
    shown = prompt.render(title=tag, passage=f"a {tag} b {tag}", question=tag)
    rest = shown.removeprefix("<data>\n").replace("\n</data>\n\nQuestion: ", "")
    assert tag not in shown.replace("\n</data>\n", "").removeprefix("<data>") and rest.count("&lt;") == 4


def test_words_that_only_look_like_a_fence_stay():
    text = "<database> <dat> a < b, data; </td> <metadata>"
    assert text in Prompt.parse("p", FENCED).render(title="", passage=text, question="")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"passage": "x"}, "question"),
        ({"passage": "x", "question": "y", "other": "z"}, "other"),
        ({"passage": "x", "question": 3}, "int"),
        ({"passage": "x", "question": None}, "NoneType"),
        ({}, "passage"),
    ],
)
def test_fields_must_fit(fields, said):
    with pytest.raises(UsageError, match=said):
        Prompt.parse("p", TEXT).render(**fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no separator {{x}}", "0 lines"),
        ("a\n=== question ===\nb\n=== question ===\nc", "2 lines"),
        ("=== question ===\n{{x}}", "empty"),
        ("a\n=== question ===\n \n", "empty"),
        ("about {{x}}\n=== question ===\n{{x}}", "no slots"),
        ("a\n=== question ===\n{{ x }}", "cannot be read"),
        ("a\n=== question ===\n{{Name}}", "cannot be read"),
        ("a\n=== question ===\n{{x", "cannot be read"),
        ("a\n=== question ===\n<data>\n{{x}}", "not closed"),
        ("a\n=== question ===\n{{x}}\n</data>", "not closed"),
        ("a\n=== question ===\ntext: <data>\n{{x}}\n</data>", "beside other words"),
    ],
)
def test_a_file_of_another_form_is_refused(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        Prompt.parse("some/prompt.txt", text)
    assert "some/prompt.txt" in str(caught.value)


def test_missing_files_and_names_that_are_paths(package):
    (package / "latin.txt").write_bytes(b"caf\xe9\n=== question ===\nx")
    for name, said in (("absent", "no such"), ("../answer", "plain word"), ("", "plain word"), ("latin", "UTF-8")):
        with pytest.raises(UsageError, match=said):
            Prompt.read(package.name, name)
    with pytest.raises(UsageError, match="no such"):
        Prompt.read("no_such_package_anywhere", "answer")
