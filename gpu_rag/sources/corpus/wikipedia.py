"""Reader of Wikipedia dumps (`...-pages-articles.xml`, also .bz2 and .gz): the text of the articles, without markup.

The file is untrusted and read as a stream: a document type, and so any entity, is refused, and only the title and text
of one page are kept, up to the limit of a document. Redirects and pages of other namespaces are skipped.
"""

from __future__ import annotations

import bz2
import gzip
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from xml.parsers import expat

from gpu_rag.sources.json_rows import Row
from gpu_rag.sources.rows import MAX_ID_CHARS, Limits, RowError, shown
from gpu_rag.types import Reject

DUMP_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz")
_CHUNK = 1 << 16
_MAX_TAG_BYTES = 16 << 20  # bytes of one tag: a longer one is in no dump
_MARKUP = 4  # greatest ratio of a page's markup to a document
_COMMENT = "<!--", "-->"
_DROPPED = ("ref", "math", "gallery", "timeline", "syntaxhighlight", "score", "table")  # removed with their content
_TOKENS = re.compile(r"\{\{|\}\}|\[\[|\]\]|^\{\||^\|\}", re.MULTILINE)
_PAIRS = {"}}": "{{", "]]": "[[", "|}": "{|"}
_OUTER_LINK = re.compile(r"\[(?:https?:)?//[^\s\[\]]{1,500}[ ]?([^\[\]\n]{0,300})\]")
_TAG = re.compile(r"<[^<>\n]{0,300}>")
_EMPTY_LINES = re.compile(r"\n\s*\n\s*")


def read_dump(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    """A row {id, title, text} for each article, in the order of the dump, and a Reject for a page that cannot be used;
    if the file is broken or no dump, one Reject ends it. line: the number of the page. Memory: one page."""
    dump = _Dump(limits)
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = dump.start, dump.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = dump.characters, dump.refuse
    opened: Callable[..., object] = {".bz2": bz2.open, ".gz": gzip.open}.get(path.suffix.lower(), open)
    try:
        with opened(path, "rb") as file:  # type: ignore[attr-defined]
            while data := file.read(_CHUNK):
                dump.silent += len(data)
                if dump.silent > _MAX_TAG_BYTES:
                    raise RowError(f"a tag has more than {_MAX_TAG_BYTES} bytes")
                parser.Parse(data, False)
                yield from dump.taken(shown(path))
            parser.Parse(b"", True)
        if not dump.n:
            raise RowError("it has no page")
    except (expat.ExpatError, OSError, EOFError, RowError) as error:
        yield from dump.taken(shown(path))
        is_other = not dump.is_open and not isinstance(error, OSError | EOFError)
        other = "files of the type .xml (except dumps of Wikipedia) are not read"
        yield Reject(shown(path), dump.n, other if is_other else f"the dump cannot be read on: {error}")
    else:
        yield from dump.taken(shown(path))


class _Dump:
    """Pages of a dump, built from its tags. silent: bytes since the last tag or text; n: pages begun; is_open: whether
    the first tag was that of a dump."""

    def __init__(self, limits: Limits):
        self.silent = self.n = 0
        self.is_open = False
        self._limits, self._most = limits, _MARKUP * limits.max_document_chars
        self._pages: list[tuple[int, dict[str, str]]] = []
        self._page: dict[str, list[str]] = {}
        self._within: list[str] | None = None
        self._chars = 0
        self._places = {"file", "image", "category"}  # namespaces whose links are not words of the text
        self._is_place = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.silent = 0
        if not self.is_open and name != "mediawiki":
            raise RowError("it is no dump")
        self.is_open = True
        if name == "page":
            self.n += 1
            self._page, self._chars = {}, 0
        elif name == "redirect":
            self._page["redirect"] = []
        elif name in ("title", "ns", "id", "text", "namespace"):
            self._is_place = name == "namespace" and attributes.get("key") in ("6", "14")
            # only the first of each: a page's own id comes before the ids of revisions
            self._within = self._page.setdefault(name, []) if name not in self._page or name == "namespace" else None

    def characters(self, text: str) -> None:
        self.silent = 0
        if self._within is not None and self._chars <= self._most:
            self._chars += len(text)
            self._within.append(text)

    def end(self, name: str) -> None:
        self.silent, self._within = 0, None
        if name == "namespace":
            namespace = "".join(self._page.pop("namespace", []))
            self._places |= {namespace.casefold()} if self._is_place and len(self._places) < 100 else set()
            self._chars = 0
        elif name == "page" and "redirect" not in self._page:
            page = {key: "".join(parts) for key, parts in self._page.items()}
            if page.get("ns", "0").strip() == "0":
                self._pages.append((self.n, page if self._chars <= self._most else {"too": "long"}))
            self._page = {}

    def refuse(self, *given: object) -> None:
        raise RowError("it has a document type, which no dump has; entities are not expanded")

    def taken(self, file: str) -> Iterator[Row | Reject]:
        """Pages that have ended since the last call."""
        pages, self._pages = self._pages, []
        for number, page in pages:
            id, title = page.get("id", "").strip(), " ".join(page.get("title", "").split())
            if "too" in page:
                yield Reject(file, number, f"the page has more than {self._most} characters")
            elif not id or not title or len(title) > MAX_ID_CHARS:
                yield Reject(file, number, "the page has no id or no title", id[:100])
            elif text := plain_text(page.get("text", ""), self._places):
                yield Row(number, {"id": f"wikipedia:{id}", "title": title, "text": text})


def plain_text(wikitext: str, places: set[str]) -> str:
    """Words of a page, without templates, tables, notes and pictures; links as their text. Linear time.

    places: names of namespaces, in lower case, whose links are left out.

    >>> plain_text("'''Bern''', a [[city|town]]{{a|b}} on the [[Aare]].<ref>x</ref> [[File:a.png|b]]", {"file"})
    'Bern, a town on the Aare.'
    """
    text = _without(wikitext, *_COMMENT)
    for tag in _DROPPED:
        text = _without(text, rf"<{tag}(?=[\s/>])", f"</{tag}>")
    frames: list[tuple[str, list[str]]] = [("", [])]
    place = 0
    for match in _TOKENS.finditer(text):
        frames[-1][1].append(text[place : match.start()])
        place, token = match.end(), match[0]
        if token not in _PAIRS:
            frames.append((token, []))
        elif frames[-1][0] == _PAIRS[token]:
            kind, parts = frames.pop()
            if kind == "[[":
                frames[-1][1].append(_link("".join(parts), places))
    words = "".join(part for _, parts in frames for part in parts) + text[place:]
    words = _TAG.sub("", _OUTER_LINK.sub(r"\1", words).replace("'''", "").replace("''", ""))
    lines = (line.strip(" =\t").lstrip("*#:; ") for line in unescape(words).split("\n"))
    return _EMPTY_LINES.sub("\n\n", "\n".join(lines)).strip()


def _link(inner: str, places: set[str]) -> str:
    target, bar, shown_as = inner.partition("|")
    if target.partition(":")[0].strip().casefold() in places and ":" in target:
        return ""
    return shown_as if bar else target


def _without(text: str, opens: str, closes: str) -> str:
    """Text without the parts from each `opens` to the next `closes`, patterns in any case of A to Z; the rest stays if
    `closes` is missing. An opening tag that ends in "/>" is removed alone."""
    starts, ends = (re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in (opens, closes))
    parts, place = [], 0
    while first := starts.search(text, place):
        end = text.find(">", first.end()) + 1 if opens != _COMMENT[0] else 0
        last = end if end and text[end - 2] == "/" else (closing := ends.search(text, first.end())) and closing.end()
        if not last:
            break
        parts.append(text[place : first.start()])
        place = last
    return "".join([*parts, text[place:]])
