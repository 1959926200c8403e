"""Text of .docx, .pptx, .odt, .odp and .rtf files. Runs only in the process of `parse_worker`.

| left out | why |
|---|---|
| headers and footers of slides and .odt, comments | not part of the text itself |
| equal headers and footers of a .docx, page numbers | repeat others |
| the table of contents | repeats the headings |
| deleted and moved text, hidden text, field codes | not shown |
| `Fallback` of drawings | repeats the text, for older programs |

Paragraphs are separated by empty lines, items of a list by line breaks; struck words are between "~~" (not in .rtf,
nor if the style of a paragraph strikes them). Numbered paragraphs begin with their numbers (in .odt and .odp items of
lists, in .pptx paragraphs with a number of their own). A row of a table is a line with tabs between cells, each behind
the name of its column (in .rtf, "|" and no names). A slide is a page: its text, then its notes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby, takewhile
from operator import itemgetter

from gpu_rag.sources.charset import decode_text
from gpu_rag.sources.columns import with_names
from gpu_rag.sources.corpus.numbering import Numbering, OpenNumbering, SlideNumbering
from gpu_rag.sources.corpus.package import Package, beside, given, properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.corpus.pdf import PAGE_NUMBER
from gpu_rag.sources.rows import Limits, RowError, one_line
from gpu_rag.text.sentences import word_set

Pieces = list[tuple[str, bool]]  # of a paragraph: text, and whether it is struck
_END_OF_TABLE = ("", "")  # a block between tables
_MAX_WIDTH = 64  # columns of one cell
_OLE = b"\xd0\xcf\x11\xe0"
_SKIPPED = word_set(
    "del moveFrom Fallback instrText delText pPrChange rPrChange tabs fld tracked-changes annotation note-citation "
    "table-of-content"
)
_BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "s": " "}
# OpenDocument, in the words of Office Open XML
_SAME = {
    "h": "p", "table": "tbl", "table-row": "tr", "table-cell": "tc", "covered-table-cell": "tc", "line-break": "br",
    "note-body": "note",
}  # fmt: skip
_CONTENTS = re.compile(r"toc ?[0-9]")
_HEADING = re.compile(r"heading ?[1-9]")
_FRAME = ("dt", "ftr", "hdr", "sldNum")  # date, footer, header and number of a slide
_TITLES = ("title", "ctrTitle")
_OFF = ("0", "false", "off", "none")
_PROPERTY = r"\{\\%s ([^{}]{1,2000})\}"


def read_docx(data: bytes, limits: Limits) -> Parsed:
    """Read the body of a document, then its footnotes and endnotes, then its headers and footers. Raises RowError.

    title: from the properties, or else the first paragraph with the style Title. headings: by style.
    metadata: author, date (of creation, or else of the last change).
    """
    package, main, about = _opened(data, limits, "docx", "word/document.xml")
    numbering = Numbering(package, beside(main, "numbering.xml"), beside(main, "styles.xml"))
    styles = _styles(package, beside(main, "styles.xml"))
    text = _Body(styles, limits, numbering)
    package.walk(main, text.start, text.end, text.characters)
    problems: list[str] = []
    for name in (beside(main, "footnotes.xml"), beside(main, "endnotes.xml")):
        if name in package:
            _walk(package, name, text, problems)
    try:
        margins = [name for kind in ("/header", "/footer") for name in _targets(package, main, kind).values()]
    except RowError as error:
        margins = []
        problems.append(f"headers and footers are not read: {error}")
    for name in margins:
        margin = _Body(styles, limits)
        _walk(package, name, margin, problems)
        text.add_margin(margin.pages()[0][0])
    return _parsed(package, about, text, problems)


def read_pptx(data: bytes, limits: Limits) -> Parsed:
    """Read the slides in order. title: title of the first slide that has one, or else from the properties; headings:
    the titles of slides. Raises RowError.

    A slide that cannot be read is empty and a problem.
    """
    package, main, about = _opened(data, limits, "pptx", "ppt/presentation.xml")
    targets = _targets(package, main, "/slide")
    order = [targets.get(attrs.get("id", ""), "") for tag, attrs, _ in package.elements(main) if tag == "sldId"]
    text = _Body({}, limits)
    problems: list[str] = []
    for name in filter(None, dict.fromkeys([*order, *targets.values()])):
        text.new_page()
        _walk(package, name, text, problems)
        for notes in _targets(package, name, "/notesSlide").values():
            _walk(package, notes, text, problems)
    return _parsed(package, about, text, problems, own_title=True)


def read_odt(data: bytes, limits: Limits) -> Parsed:
    """Read an OpenDocument text, then its notes, or the slides of a presentation; title and metadata as in .docx.

    Raises RowError.
    """
    package = Package(data, limits)
    manifest = "META-INF/manifest.xml"
    if manifest in package and any(tag == "encryption-data" for tag, _, _ in package.elements(manifest)):
        raise RowError("the document is encrypted with a password")
    numbering, problems = OpenNumbering(), list[str]()
    try:
        for tag, attributes, _ in package.elements("styles.xml") if "styles.xml" in package else ():
            numbering.define(tag, attributes)
    except RowError as error:
        problems.append(str(error))
    text = _Body({}, limits, lists=numbering)
    package.walk("content.xml", text.start, text.end, text.characters)
    return _parsed(package, "meta.xml", text, problems)


def read_rtf(data: bytes, limits: Limits) -> Parsed:
    """Read a Rich Text file. title and metadata (author): its own. Raises RowError."""
    from striprtf.striprtf import rtf_to_text

    markup = decode_text(data)
    if not markup.lstrip().startswith("{\\rtf"):
        raise RowError("not an .rtf file")
    try:
        text = rtf_to_text(markup).strip()
        title, author = (
            " ".join(rtf_to_text(f"{{\\rtf1 {match[1]}}}").split()) if match else ""
            for match in (re.search(_PROPERTY % name, markup) for name in ("title", "author"))
        )
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as error:
        raise RowError(one_line(f"the file cannot be read: {type(error).__name__}: {error}")) from error
    if not text:
        raise RowError("the document has no text")
    return Parsed(title, text, metadata=dict(properties(author)))


def _opened(data: bytes, limits: Limits, kind: str, main: str) -> tuple[Package, str, str]:
    """(package, its main part, the part of its properties) of an Office Open XML file. Raises RowError."""
    if data.startswith(_OLE):
        raise RowError(f"not a .{kind} file: it is encrypted with a password, or an old .{kind[:3]}")
    package = Package(data, limits)
    mains, abouts = (_targets(package, "", f"/{kind}") for kind in ("officeDocument", "core-properties"))
    return package, [main, *mains.values()][-1], ["docProps/core.xml", *abouts.values()][-1]


def _targets(package: Package, name: str, kind: str) -> dict[str, str]:
    """{id: member} of the relations of a member ("": of the package) whose type ends in `kind`."""
    relations = beside(name, f"_rels/{name.rsplit('/', 1)[-1]}.rels")
    return {
        attrs.get("Id", ""): beside(name, attrs.get("Target", ""))
        for tag, attrs, _ in (package.elements(relations) if relations in package else ())
        if tag == "Relationship" and attrs.get("Type", "").endswith(kind)
    }


def _walk(package: Package, name: str, text: _Body, problems: list[str]) -> None:
    """Read one part among others: one that is broken is a problem."""
    try:
        package.walk(name, text.start, text.end, text.characters)
    except RowError as error:
        problems.append(str(error))
        text.abandon()


def _parsed(package: Package, about: str, text: _Body, problems: list[str], own_title: bool = False) -> Parsed:
    """Contents of the document; own_title: prefer a title in the text to the title in the properties."""
    joined = text.pages()
    pages = [page for page, _ in joined]
    if not any(pages):
        raise RowError(one_line(f"the document has no text {'; '.join(problems[:3])}".strip()))
    known: dict[str, str] = {}
    if about in package:
        try:
            known = {tag: words for tag, _, words in package.elements(about) if words}
        except RowError as error:
            problems.append(str(error))
    author = known.get("initial-creator") or known.get("creator", "")
    dates = (known.get(name) for name in ("created", "creation-date", "modified", "date"))
    metadata = properties(author, next(filter(None, dates), ""))
    about_title = given(known.get("title", ""))
    titles = (text.title, about_title) if own_title else (about_title, text.title)
    starts = tuple(accumulate((len(page) + 2 for page in pages[:-1]), initial=0))
    headings = tuple((start + offset, words) for start, (_, own) in zip(starts, joined) for offset, words in own)
    title = next(filter(None, titles), "")
    page_starts = starts if text.has_pages else ()
    return Parsed(title, "\n\n".join(pages), page_starts, tuple(problems), dict(metadata), headings)


def _styles(package: Package, name: str) -> dict[str, str]:
    """{style id: name of the style}. Ids depend on the language of the program; names are always English."""
    names: dict[str, str] = {}
    style = ""
    for tag, attributes, _ in package.elements(name) if name in package else ():
        if tag == "style":
            style = attributes.get("styleId", "")
        elif tag == "name" and style:
            names.setdefault(style, attributes.get("val", "").lower())
    return names


class _Body:
    """Collector of the text in the parts of a document. lists: those of an OpenDocument."""

    def __init__(
        self,
        styles: dict[str, str],
        limits: Limits,
        numbering: Numbering | None = None,
        lists: OpenNumbering | None = None,
    ) -> None:
        self._numbering, self._open_lists, self._slide_lists = numbering, lists, SlideNumbering()
        self.title, self.has_pages = "", False
        self._styles, self._limits, self._size, self._is_open = styles, limits, 0, lists is not None
        # blocks of each page: kind ("p": paragraph, "h": heading, "li": list item, "tr": row of a table, "th": row of
        # names) and text
        self._pages: list[list[tuple[str, str]]] = [[]]
        self._notes: list[tuple[str, str]] = []
        self.abandon()

    def abandon(self) -> None:
        """Forget all open elements, after a part that ended too early."""
        self._cells: list[list[str]] = []  # paragraphs of the open cells, outermost first
        self._widths: list[int] = []  # columns of these
        self._rows: list[list[str]] = []  # cells of the open rows
        self._words: Pieces = []  # of the open paragraph
        self._outer: list[tuple[Pieces, str]] = []  # paragraphs in which notes are open, and their styles
        self._style, self._is_item, self._is_title, self._is_heading = "", False, False, False
        self._list = self._level = ""  # the numbered list of the open paragraph, and its level there
        self._auto = ("", "")  # of a paragraph of a slide: kind and start of its number
        self._skipped = self._lists = 0  # depth inside an element that is left out, and inside lists
        self._runs = 0
        self._open_style, self._striking = "", set[str]()  # of OpenDocument: the open style; styles that strike words
        self._spans: list[bool] = []  # whether words of each open span are struck
        self._is_head = self._is_struck = False
        self._is_hidden = self._is_text = self._is_contents = self._is_frame = False

    def new_page(self) -> None:
        self._pages += [[]] if self.has_pages else []
        self.has_pages = True

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        is_heading = self._is_open and tag == "h"
        tag = _SAME.get(tag, tag) if self._is_open else tag
        if self._skipped or self._is_left_out(tag, attributes):
            self._skipped += 1
            return
        if self._open_lists:
            self._open_lists.start(tag, attributes)
        if tag == "p":
            self._paragraph()  # a paragraph may be inside another one, in a drawing
            style = attributes.get("style-name", "")
            self._style, self._is_text = self._styles.get(style, style.lower()), self._is_open
            self._style = "title" if self._is_title else self._style
            self._is_heading = is_heading
        elif tag == "pStyle":
            id = attributes.get("val", "")
            self._style = self._styles.get(id, id.lower())
            if self._numbering and not self._list:
                self._list, self._level = self._numbering.of_style(id)
        elif tag == "numId":
            self._list = attributes.get("val", "")
        elif tag == "ilvl":
            self._level = attributes.get("val", "")
        elif tag == "style" and self._is_open:
            self._open_style = attributes.get("name", "")
            self._styles[self._open_style] = attributes.get("parent-style-name", "").lower()
        elif tag == "text-properties" and attributes.get("text-line-through-style", "none") != "none":
            self._striking.add(self._open_style)
        elif tag == "span" and self._is_open:
            self._spans.append(any(self._spans[-1:]) or attributes.get("style-name") in self._striking)
        elif tag == "page" and self._is_open:
            self.new_page()
        elif tag == "pPr" and "lvl" in attributes:
            self._level = attributes["lvl"]
        elif tag == "buAutoNum":
            self._auto = attributes.get("type", ""), attributes.get("startAt", "")
        elif tag == "txBody":
            self._slide_lists = SlideNumbering()
        elif tag == "numPr":
            self._is_item = True
        elif tag == "list":
            self._lists += 1
        elif tag == "ph":
            kind = attributes.get("type", "")
            self._is_title, self._is_frame = kind in _TITLES, kind in _FRAME
        elif tag == "r":
            self._runs, self._is_hidden, self._is_struck = self._runs + 1, False, False
        elif tag == "rPr":  # of a slide
            self._is_struck = attributes.get("strike", "noStrike") != "noStrike"
        elif tag in ("strike", "dstrike") and self._runs:
            self._is_struck |= attributes.get("val", "true") not in _OFF
        elif tag == "vanish" and self._runs:
            self._is_hidden = attributes.get("val", "true") not in _OFF
        elif tag == "t":
            self._is_text = True
        elif tag in _BREAKS:
            self._add(_BREAKS[tag])
        elif tag == "docPartGallery":
            self._is_contents = attributes.get("val") == "Table of Contents"
        elif tag == "tr":
            self._rows.append([])
        elif tag == "tblPr":
            self._is_head = attributes.get("firstRow", "0") not in _OFF
        elif tag in ("tblHeader", "table-header-rows"):
            self._is_head = attributes.get("val", "true") not in _OFF
        elif tag == "tc":
            self._cells.append([])
            self._widths.append(_width(attributes.get("number-columns-repeated", "")))
        elif tag == "gridSpan" and self._widths:
            self._widths[-1] = _width(attributes.get("val", ""))
        elif tag == "note" and self._is_open:
            self._outer.append((self._words, self._style))
            self._words = []

    def _is_left_out(self, tag: str, attributes: dict[str, str]) -> bool:
        if tag == "sdtContent" and self._is_contents:
            self._is_contents = False
            return True
        is_line = tag in ("footnote", "endnote") and "eparator" in attributes.get("type", "")  # line above the notes
        return tag in _SKIPPED or is_line or (tag == "continuationNotice")

    def end(self, tag: str) -> None:
        tag = _SAME.get(tag, tag) if self._is_open else tag
        if self._skipped:
            self._skipped -= 1
        elif tag == "p":
            self._paragraph()
            self._is_text = self._is_open and bool(self._outer)
        elif tag == "t":
            self._is_text = False
        elif tag == "r":
            self._runs, self._is_hidden, self._is_struck = self._runs - 1, False, False
        elif tag == "span" and self._spans:
            self._spans.pop()
        elif tag == "list":
            self._lists -= 1
            if self._open_lists:
                self._open_lists.end()
        elif tag == "sp":
            self._is_title = self._is_frame = False
        elif tag == "tc":
            self._paragraph()
            cell, width = " ".join(self._cells.pop()).replace("\t", " "), self._widths.pop()
            if self._rows:
                self._rows[-1] += [cell, *[""] * (width - 1)]
        elif tag == "tr":
            self._put("\t".join(self._rows.pop()).rstrip(), "th" if self._is_head else "tr")
            self._is_head = self._is_head and self._is_open
        elif tag == "table-header-rows":
            self._is_head = False
        elif tag == "tbl" and not self._cells:
            (self._notes if self._outer else self._pages[-1]).append(_END_OF_TABLE)
        elif tag == "note" and self._is_open:
            self._words, self._style = self._outer.pop()

    def characters(self, text: str) -> None:
        if self._is_text and not self._skipped:
            self._add(re.sub(r"\s+", " ", text) if self._is_open else text)

    def _add(self, text: str) -> None:
        if self._is_hidden or self._is_frame:
            return
        is_struck = self._is_struck or any(self._spans[-1:])
        self._words.append((text, is_struck))
        self._size += len(text) + 4 * is_struck
        self._limits.check_chars(self._size)

    def _paragraph(self) -> None:
        text = _with_marks(self._words)
        if self._style == "title" and not self.title:
            self.title = " ".join(text.split())
        if not _CONTENTS.fullmatch(self._style):
            is_heading = (
                self._is_heading or _HEADING.fullmatch(self._style) or (self.has_pages and self._style == "title")
            )
            number = self._number(bool(text))
            text = f"{number} {text}" if number and text else text
            self._put(text, "h" if is_heading else "li" if self._is_item or self._lists else "p")
        self._words, self._style, self._is_item, self._is_heading = [], "", False, False
        self._list = self._level = ""
        self._auto = ("", "")

    def _number(self, has_text: bool) -> str:
        """The number of the open paragraph. Empty paragraphs of slides do not count."""
        if self._numbering:
            return self._numbering.next(self._list, self._level) if self._list else ""
        if self._open_lists:
            return self._open_lists.next() if has_text and not self._outer else ""
        return self._slide_lists.next(self._level, *self._auto) if has_text else ""

    def _put(self, text: str, kind: str) -> None:
        if text and self._outer:
            self._notes.append((kind, text))
        elif text and self._cells:
            self._cells[-1].append(text)
        elif text:
            self._pages[-1].append((kind, text))

    def add_margin(self, words: str) -> None:
        """Add a header or footer behind the notes, unless it is a page number or there already."""
        if words and ("p", words) not in self._notes and not PAGE_NUMBER.fullmatch(words):
            self._notes.append(("p", words))
            self._size += len(words)
            self._limits.check_chars(self._size)

    def pages(self) -> list[tuple[str, list[tuple[int, str]]]]:
        """(text, its headings with their offsets) of each page, the notes after the last one."""
        pages, result = [*self._pages[:-1], self._pages[-1] + self._notes], []
        room: float = self._limits.max_document_chars - sum(len(text) + 2 for blocks in pages for _, text in blocks)
        for blocks in pages:
            named, room = _tables_named(blocks, room)
            result.append(_joined(named))
        return result


def _with_marks(words: Pieces) -> str:
    """The text of a paragraph, with "~~" around struck words."""
    parts = list[str]()
    for is_struck, group in groupby(words, key=itemgetter(1)):
        text = "".join(piece for piece, _ in group)
        struck = text.strip() if is_struck else ""
        parts.append(text.replace(struck, f"~~{struck}~~", 1) if struck else text)
    return "".join(parts).strip()


def _width(number: str) -> int:
    """The number of columns of a cell, from an attribute."""
    return min(max(int(number), 1), _MAX_WIDTH) if number.isdecimal() and len(number) < 9 else 1


def _tables_named(blocks: Sequence[tuple[str, str]], room: float) -> tuple[list[tuple[str, str]], float]:
    """The blocks with names of columns in the cells of their tables, and the room that is left, see `with_names`."""
    named = list[tuple[str, str]]()
    for is_table, group in groupby(blocks, lambda block: block[0] in ("th", "tr")):
        table = [*group]
        if is_table:
            n_heads = sum(1 for _ in takewhile(lambda block: block[0] == "th", table))
            lines, room = with_names([text.split("\t") for _, text in table], n_heads, room)
            table = [("tr", line.strip()) for line in lines]
        named += [block for block in table if block != _END_OF_TABLE]
    return named, room


def _joined(blocks: Sequence[tuple[str, str]]) -> tuple[str, list[tuple[int, str]]]:
    """(text, [(offset, heading)]) of the blocks (kind, text) of a page."""
    headings: list[tuple[int, str]] = []
    parts: list[str] = []
    before, size = "", 0
    for kind, text in blocks:
        gap = "" if not before else "\n" if kind == before and kind in ("li", "tr") else "\n\n"
        if kind == "h":
            headings.append((size + len(gap), " ".join(text.split())))
        parts += (gap, text)
        size += len(gap) + len(text)
        before = kind
    return "".join(parts), headings
