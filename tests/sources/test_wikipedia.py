"""Dumps of Wikipedia: articles without markup; hostile and broken files are rejects."""

import bz2
import time
from pathlib import Path

import pytest

from gpu_rag.sources.corpus import read_corpus
from gpu_rag.sources.corpus.wikipedia import plain_text
from gpu_rag.sources.rows import Limits
from gpu_rag.types import Document, Reject

HEAD = """<mediawiki xml:lang="de"><siteinfo><namespaces><namespace key="0" />
<namespace key="6">Datei</namespace><namespace key="4">Wikipedia</namespace></namespaces></siteinfo>"""


def page(id: int, title: str, text: str, ns: int = 0, more: str = "") -> str:
    body = f"<revision><id>9{id}</id><text>{text}</text></revision>"
    return f"<page><title>{title}</title><ns>{ns}</ns><id>{id}</id>{more}{body}</page>"


def read(path: Path, data: bytes, **limits: int) -> list[Document | Reject]:
    path.write_bytes(data)
    return list(read_corpus([path], Limits(**limits)))


def test_articles_are_documents_without_their_markup(tmp_path: Path) -> None:
    text = """{{Infobox|a={{b|c}}}}
&lt;!-- note --&gt;'''Bern''' is a [[city|town]] on the [[Aare]].&lt;ref name="a"/&gt;
It grew&lt;ref&gt;x [[y]]&lt;/ref&gt;.
{| class="w"
| cell
|}
== History ==
* Founded in 1191 &amp;amp; named [https://x.org by Berchtold].
[[Datei:bern.jpg|mini|A [[bridge]].]][[Kategorie:Ort]][[Category:Town]]"""
    pages = [
        page(1, "Bern", text), page(2, "Berne", "#REDIRECT", more='<redirect title="Bern"/>'), page(3, "Talk", "x", 1),
        page(4, "Thun", "Thun is a town."), page(5, "", "no title"),
    ]  # fmt: skip
    data = (HEAD + "".join(pages) + "</mediawiki>").encode()
    found = read(tmp_path / "dewiki.xml.bz2", bz2.compress(data))
    assert [(d.id, d.title, d.line) for d in found if isinstance(d, Document)] == [
        ("wikipedia:1", "Bern", 1), ("wikipedia:4", "Thun", 4),
    ]  # fmt: skip
    (reject,) = [one for one in found if isinstance(one, Reject)]
    assert "no title" in reject.reason and reject.line == 5
    assert found[0].text == (  # type: ignore[union-attr]
        "Bern is a town on the Aare.\nIt grew.\n\nHistory\nFounded in 1191 & named by Berchtold.\nKategorie:Ort"
    )
    assert read(tmp_path / "plain.xml", data)[1].id == "wikipedia:4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("İİİİ İstanbul city.<ref>note</ref> Capital was here. End.", "İİİİ İstanbul city. Capital was here. End."),
        ("İzmir.<REF>a</Ref> One two.<ref name=b /> Three.<ref>c</ref>", "İzmir. One two. Three."),
        ("A.<references responsive></references> B.<ref>x</ref> C.", "A. B. C."),
        ("A. <score>x</score><scores>B</scores>", "A. B"),
        ("A <!-- > -->B<!-- x/>y -->C <ref>open", "A BC open"),
    ],
)
def test_notes_are_removed_to_their_end_and_nothing_else(text: str, words: str) -> None:
    """İ has two characters in lower case; <references> begins like <ref>."""
    assert plain_text(text, set()) == words


BOMB = """<!DOCTYPE m [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>"""


@pytest.mark.parametrize(
    ("data", "said", "n"),
    [
        (BOMB + HEAD + page(1, "A", "&b;") + "</mediawiki>", "(except dumps of Wikipedia)", 0),
        (HEAD + page(1, "A", "one") + "<page><title>B", "no element found", 1),
        (HEAD + page(1, "A", "one") + "<broken", "", 1),
        (HEAD + "</mediawiki>", "the dump cannot be read on: it has no page", 0),
        (
            "<haccp><p>no dump</p></haccp>",
            ".xml (except dumps of Wikipedia) are not read",
            0,
        ),
        ("plain words", ".xml (except dumps of Wikipedia) are not read", 0),
        (HEAD + page(1, "A", "&undefined;") + "</mediawiki>", "undefined entity", 0),
    ],
)
def test_a_file_that_is_hostile_or_broken_is_one_reject(tmp_path: Path, data: str, said: str, n: int) -> None:
    found = read(tmp_path / "x.xml", data.encode())
    assert isinstance(found[-1], Reject) and said in found[-1].reason
    assert sum(isinstance(one, Document) for one in found) == n and len(found) == n + 1


def test_a_page_beyond_the_limit_is_a_reject_and_the_next_is_read(tmp_path: Path) -> None:
    data = HEAD + page(1, "Long", "word " * 900) + page(2, "Short", "Thun is a town.") + "</mediawiki>"
    first, second = read(tmp_path / "x.xml", data.encode(), max_document_chars=1000)
    assert isinstance(first, Reject) and "more than 4000" in first.reason
    assert isinstance(second, Document) and second.text == "Thun is a town."


def test_a_tag_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_rag.sources.corpus.wikipedia._MAX_TAG_BYTES", 1 << 18)
    (found,) = read(tmp_path / "x.xml", HEAD.encode() + b"<page a='" + b"x" * (1 << 20))
    assert isinstance(found, Reject) and "a tag has more" in found.reason


@pytest.mark.parametrize("part", ["{{", "[[", "<ref>", "<!--", "''", "{{a|[[", "]]}}", "<ref", "\n{|", "= ", "[//a "])
def test_markup_that_never_ends_takes_linear_time(part: str) -> None:
    began = time.process_time()
    plain_text(part * (200_000 // len(part)), {"file"})
    assert time.process_time() - began < 5
