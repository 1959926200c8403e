"""Text of a .docx file (Office Open XML). Runs only in the process of `parse_worker`.

| left out | why |
|---|---|
| headers and footers of pages, comments | not part of the text itself |
| the table of contents | repeats the headings |
| deleted and moved text, hidden text, field codes | not shown |
| `Fallback` of drawings | repeats the text, for older programs |
"""

from __future__ import annotations

import re

from gpu_rag.sources.corpus.package import Package, beside, properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError
from gpu_rag.text.sentences import word_set

_OLE = b"\xd0\xcf\x11\xe0"
_SKIPPED = word_set("del moveFrom Fallback instrText delText pPrChange rPrChange tabs")
_IN_RUNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_CONTENTS = re.compile(r"toc ?[0-9]")
_OFF = ("0", "false", "off", "none")


def read_docx(data: bytes, limits: Limits) -> Parsed:
    """Read the body of a document, then its footnotes and endnotes. Raises RowError.

    Paragraphs are separated by empty lines, items of a list by line breaks. A row of a table is a line with tabs
    between cells. title: from the properties, or else the first paragraph with the style Title. metadata: author, date
    (of creation, or else of the last change).
    """
    if data.startswith(_OLE):
        raise RowError("not a .docx file: it is encrypted with a password, or an old .doc")
    package = Package(data, limits)
    main, about = "word/document.xml", "docProps/core.xml"
    if "_rels/.rels" in package:
        for tag, attributes, _ in package.elements("_rels/.rels"):
            kind, target = attributes.get("Type", ""), attributes.get("Target", "")
            if tag == "Relationship" and kind.endswith("/officeDocument"):
                main = beside("", target)
            elif tag == "Relationship" and kind.endswith("/core-properties"):
                about = beside("", target)
    styles = _styles(package, beside(main, "styles.xml"))
    text = _Body(styles, limits)
    package.walk(main, text.start, text.end, text.characters)
    problems: list[str] = []
    for name in (beside(main, "footnotes.xml"), beside(main, "endnotes.xml")):
        if name in package:
            try:
                package.walk(name, text.start, text.end, text.characters)
            except RowError as error:
                problems.append(str(error))
    whole = text.joined()
    if not whole:
        raise RowError("the document has no text")
    known: dict[str, str] = {}
    if about in package:
        try:
            known = {tag: said for tag, _, said in package.elements(about) if said}
        except RowError as error:
            problems.append(str(error))
    metadata = properties(known.get("creator", ""), known.get("created") or known.get("modified", ""))
    return Parsed(known.get("title") or text.title, whole, (), tuple(problems), dict(metadata))


def _styles(package: Package, name: str) -> dict[str, str]:
    """{style id: name of the style}. Ids depend on the language of the program; names are always English."""
    found: dict[str, str] = {}
    style = ""
    for tag, attributes, _ in package.elements(name) if name in package else ():
        if tag == "style":
            style = attributes.get("styleId", "")
        elif tag == "name" and style:
            found.setdefault(style, attributes.get("val", "").lower())
    return found


class _Body:
    """Collector of the text in the parts of a document."""

    def __init__(self, styles: dict[str, str], limits: Limits) -> None:
        self.title = ""
        self._styles, self._limit, self._size = styles, limits.max_document_chars, 0
        self._blocks: list[tuple[str, str]] = []  # kind ("p": paragraph, "li": list item, "tr": table row) and text
        self._cells: list[list[str]] = []  # paragraphs of the open cells, outermost first
        self._rows: list[list[str]] = []  # cells of the open rows
        self._words: list[str] = []  # pieces of text in the open paragraph
        self._style, self._is_item = "", False
        self._skipped = 0  # depth inside an element that is left out
        self._runs = 0
        self._is_hidden = self._is_text = self._is_contents = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._skipped or self._is_left_out(tag, attributes):
            self._skipped += 1
        elif tag == "p":
            self._paragraph()  # a paragraph may be inside another one, in a drawing
        elif tag == "pStyle":
            id = attributes.get("val", "")
            self._style = self._styles.get(id, id.lower())
        elif tag == "numPr":
            self._is_item = True
        elif tag == "r":
            self._runs, self._is_hidden = self._runs + 1, False
        elif tag == "vanish" and self._runs:
            self._is_hidden = attributes.get("val", "true") not in _OFF
        elif tag == "t":
            self._is_text = True
        elif tag in _IN_RUNS and self._runs:
            self._add(_IN_RUNS[tag])
        elif tag == "docPartGallery":
            self._is_contents = attributes.get("val") == "Table of Contents"
        elif tag == "tr":
            self._rows.append([])
        elif tag == "tc":
            self._cells.append([])

    def _is_left_out(self, tag: str, attributes: dict[str, str]) -> bool:
        if tag == "sdtContent" and self._is_contents:
            self._is_contents = False
            return True
        is_line = tag in ("footnote", "endnote") and "eparator" in attributes.get("type", "")  # line above the notes
        return tag in _SKIPPED or is_line or (tag == "continuationNotice")

    def end(self, tag: str) -> None:
        if self._skipped:
            self._skipped -= 1
        elif tag == "p":
            self._paragraph()
        elif tag == "t":
            self._is_text = False
        elif tag == "r":
            self._runs, self._is_hidden = self._runs - 1, False
        elif tag == "tc":
            self._paragraph()
            cell = " ".join(self._cells.pop())
            if self._rows:
                self._rows[-1].append(cell)
        elif tag == "tr":
            self._put("\t".join(self._rows.pop()).strip(), "tr")

    def characters(self, text: str) -> None:
        if self._is_text and not self._skipped:
            self._add(text)

    def _add(self, text: str) -> None:
        if self._is_hidden:
            return
        self._words.append(text)
        self._size += len(text)
        if self._size > self._limit:
            raise RowError(f"the text has more than max_document_chars = {self._limit} characters")

    def _paragraph(self) -> None:
        """End the open paragraph."""
        text = "".join(self._words).strip()
        if self._style == "title" and not self.title:
            self.title = " ".join(text.split())
        if not _CONTENTS.fullmatch(self._style):
            self._put(text, "li" if self._is_item else "p")
        self._words, self._style, self._is_item = [], "", False

    def _put(self, text: str, kind: str) -> None:
        if text and self._cells:
            self._cells[-1].append(text)
        elif text:
            self._blocks.append((kind, text))

    def joined(self) -> str:
        parts: list[str] = []
        before = "p"
        for kind, text in self._blocks:
            parts += ("\n" if kind == before != "p" else "\n\n", text)
            before = kind
        return "".join(parts).strip()
