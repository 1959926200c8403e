"""Title and main text of an HTML page. Called only in the process of `parse_worker`: hostile markup may crash it.

| left out | why |
|---|---|
| script, style, noscript, template, svg, iframe, object, select, button and other controls | no text of the page |
| nav, the roles of navigation, `hidden` | not the topic of the page |
| header, footer and aside outside main, article and section | frame of the site, not of the text |
| everything outside main, if a page has a main element with text | the page itself marks its text |
| short or linked blocks whose class or id says menu, sidebar, cookie, share and the like | frame by another name |
| outside main, article and section: lists and blocks of four or more links and little else | links to other pages |

The last two rules keep everything that holds main, article or h1. They are not applied where they would leave less than
a quarter of the text: such a page is a list of links.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gpu_rag.sources.charset import decode_text, mark_of
from gpu_rag.sources.columns import MAX_HEAD
from gpu_rag.sources.corpus.numbering import numeral, whole
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError
from gpu_rag.text.sentences import word_set

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


_LEFT_OUT = word_set(
    "script style noscript template svg iframe frame object embed applet audio video canvas head title nav select "
    "option datalist button textarea input meter progress dialog"
)
_LEFT_OUT_ROLES = word_set("navigation banner contentinfo complementary search menu menubar toolbar dialog alertdialog")
_FRAME = word_set("header footer aside")
_CONTENT = word_set("main article section")
_PARAGRAPHS = word_set(
    "address article aside blockquote body center details dir div dl fieldset figure footer form h1 h2 h3 h4 h5 h6 "
    "header hgroup hr main menu ol p pre section table ul listing xmp plaintext"
)
_LINES = word_set("caption dd dt figcaption legend li summary tbody tfoot thead tr")
_CELLS = word_set("td th")
_PARTS_OF_TABLE = word_set("caption tbody td tfoot th thead tr")
_LISTS = word_set("ol ul menu")
_STRUCK = word_set("del s strike")
_VERBATIM = word_set("pre listing xmp plaintext")
_HEADS = word_set("main article h1")
_HEADINGS = word_set("h1 h2 h3")
_BLOCKS = word_set("ul ol menu dl div p td table")  # possible lists of links
_FRAME_WORDS = word_set(
    "breadcrumb breadcrumbs navbar nav navigation menu sidebar share sharing social newsletter subscribe advert "
    "advertisement ads sponsored promo popup modal related recommended pagination pager toc skip editsection"
)
_OUTER_WORDS = word_set("header footer masthead")
_COOKIE_WORDS = ("cookie", "consent", "gdpr", "onetrust")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MAX_FRAME_CHARS, _MAX_COOKIE_CHARS = 600, 3000  # characters; a longer block is text, unless a quarter of it is links
_MAX_SPAN = 100  # columns or rows of one cell, and columns that can have a name
_UNNUMBERED = re.compile(r"list-style(?:-type)?\s*:[^;]{0,100}\bnone\b", re.IGNORECASE)
_SOFT_HYPHEN = "\xad"
Headings = tuple[tuple[int, str], ...]
MAX_ATTRIBUTES = 1000
# A comment, a text that holds no tags, or a tag (2) and its attributes (3), whose quoted values may hold ">".
_PARTS = re.compile(
    r"""<!--[\s\S]*?(?:-->|\Z)|<(script|style|title|textarea)\b[\s\S]*?(?:</\1|\Z)"""
    r"""|(</?[a-z][^\s/>]{0,64})((?:[^>=]++|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?+)*+)""",
    re.IGNORECASE,
)


def read_html(data: bytes, limits: Limits) -> Parsed:
    """Title and main text of a page; see the table above for the parts left out.

    title: the title element, else the first h1, else "". Text: references are decoded, runs of white space become one
    space (kept in pre), with an empty line between paragraphs, headings, lists and tables, a line break between list
    items and rows, "^" before a raised figure, "~~" around struck words, a tab between cells, which begin with the name
    of their column where th alone make a row. Items of an ordered list begin with their numbers. The parser follows the
    HTML Standard: any bytes that decode give a page.
    Raises RowError: the charset does not fit, a NUL character, too much text, or none.
    """
    from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, SelectolaxError

    markup = decode_html(data)
    if "\x00" in markup:
        raise RowError("the file holds a NUL character")
    # No events: they serve pages that change while shown. With scripting, noscript is one piece of text.
    try:
        tree = LexborHTMLParser(_without_floods(markup), options=LexborDocumentOptions.WO_EVENTS, scripting=True)
    except (SelectolaxError, RuntimeError) as error:
        raise RowError(f"the page cannot be parsed, or not within the memory it may take: {error}") from error
    body = tree.body
    text = ""
    headings: Headings = ()
    if body is not None:
        if tree.css_first("main") is not None or tree.css_first('[role="main"]') is not None:
            text, headings = _text_of(body, limits, main_only=True)
        if not text:
            text, headings = _text_of(body, limits)
    if not text:
        raise RowError("the page has no text")
    return Parsed(_title(tree, limits), text, headings=headings)


def _without_floods(markup: str) -> str:
    """Markup in which tags of more than MAX_ATTRIBUTES attributes become bare tags: comparing all pairs takes hours.

    Linear. Comments and the texts of scripts and the like are left alone: a "<" there begins no tag.
    """
    return _PARTS.sub(_bare_where_flooded, markup) if len(markup) > 2 * MAX_ATTRIBUTES else markup


def _bare_where_flooded(part: re.Match[str]) -> str:
    attributes: str | None = part[3]
    if attributes is None or len(attributes) < 2 * MAX_ATTRIBUTES:
        return part[0]
    n = max(attributes.count("="), len(attributes.split(maxsplit=MAX_ATTRIBUTES)))
    return part[2] if n > MAX_ATTRIBUTES else part[0]


def _text_of(body: LexborNode, limits: Limits, main_only: bool = False) -> tuple[str, Headings]:
    collector = _Text(limits, main_only=main_only, without_frame=True)
    text = collector.of(body)
    if collector.n_dropped > 3 * len(text):
        collector = _Text(limits, main_only=main_only)
        text = collector.of(body)
    return text, tuple(collector.headings)


def _title(tree: LexborHTMLParser, limits: Limits) -> str:
    for selector in ("head > title", "body > title", "h1"):
        node = tree.css_first(selector)
        if node is not None:
            text = _Text(limits).of(node)
            if text:
                return " ".join(text.split())
    return ""


class _Mark(NamedTuple):
    """State of the text at the start of an element that may be left out. most: greatest number of characters to leave
    out, by its class; 0: only if it is a list of links."""

    most: int
    n_parts: int
    size: int
    n_links: int
    link_size: int
    n_heads: int
    owed: int
    gap: str


class _Open(NamedTuple):
    """Properties of an open element that affect the text in it."""

    tag: str = ""
    is_main: bool = False
    is_content: bool = False
    is_verbatim: bool = False
    is_link: bool = False
    mark: _Mark | None = None
    n_parts: int = 0  # when it began


class _Table:
    """The place in an open table. names: names of the columns, from rows that are only th; label: the prefix of the
    open cell; size: size of the text when it began."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.label, self.size, self.is_head = "", 0, False
        self._down: dict[int, int] = {}  # rows into which a cell above still reaches, by column
        self.begin_row(False)

    def begin_row(self, is_head: bool) -> None:
        self._was_head, self.is_head = self.is_head, is_head
        self._column, self._heads = 0, dict[int, str]()

    def begin_cell(self, attributes: Mapping[str, str | None], size: int) -> None:
        while self._down.get(self._column, 0):
            self._down[self._column] -= 1
            self._column += 1
        first, self.size = self._column, size
        self._column += _span(attributes.get("colspan"))
        self._columns = range(first, min(self._column, _MAX_SPAN))
        if (n_rows := _span(attributes.get("rowspan"))) > 1:
            self._down |= dict.fromkeys(self._columns, n_rows - 1)
        self.label = f"{name}: " if (name := self.names.get(first)) and not self.is_head else ""

    def end_cell(self, words: str) -> None:
        self.label = ""
        if words and len(words) <= MAX_HEAD:
            self._heads |= dict.fromkeys(self._columns, words)

    def end_row(self) -> None:
        for column in self._down:
            self._down[column] -= column >= self._column and self._down[column] > 0
        if len({*self._heads.values()}) < 2:  # one cell names a part of the table, not its columns
            return
        for column, words in self._heads.items():
            above = self.names.get(column, "") if self._was_head else ""
            is_new = above and above != words and not above.endswith(f": {words}")
            both = f"{above}: {words}" if is_new else above or words
            self.names[column] = both if len(both) <= MAX_HEAD else words


def _span(value: str | None) -> int:
    return min(int(value), _MAX_SPAN) if value and value.isdecimal() and len(value) < 5 and int(value) else 1


class _Text:
    """Collector of the text below a node. It walks with its own stack, because pages can nest to any depth."""

    def __init__(self, limits: Limits, *, main_only: bool = False, without_frame: bool = False) -> None:
        self.n_dropped = 0  # characters left out as frame of the page
        self.headings: list[tuple[int, str]] = []  # (offset into the text, words)
        self._limits = limits
        self._main_only, self._without_frame = main_only, without_frame
        self._open: list[_Open] = []
        self._inside = {"main": 0, "content": 0, "verbatim": 0, "link": 0}
        self._n_links = self._link_size = self._n_heads = 0
        self._parts: list[str] = []
        self._tables: list[_Table] = []
        self._lists: list[tuple[str, int]] = []  # kind and next number of each open list; kind "": no numbers
        self._number = ""  # number of the open item, before its first word
        self._is_raised = False  # whether a superscript has begun, before its first word
        self._size = 0
        self._owed = 0  # line breaks due before the next word
        self._gap = ""  # white space due before the next word

    def of(self, start: LexborNode) -> str:
        """Text below `start`, which itself is never left out; without white space at its ends."""
        node: LexborNode = start
        while True:
            child = node.first_child if self._enter(node) else None
            if child is not None:
                node = child
                continue
            self._leave()
            while self._open and node.next is None:
                node = _there(node.parent)
                self._leave()
            if not self._open:
                text = "".join(self._parts)
                n_blank = len(text) - len(text.lstrip())
                self.headings = sorted((offset - n_blank, words) for offset, words in self.headings)
                return text.strip()
            node = _there(node.next)

    def _enter(self, node: LexborNode) -> bool:
        """Enter a node. Returns whether to visit its children."""
        if node.is_text_node and (self._inside["main"] or not self._main_only):
            self._add(node.text_content or "")
        if not node.is_element_node:
            self._open.append(_Open())
            return False
        tag, attributes = node.tag or "", node.attributes
        role = ((attributes.get("role") or "").lower().split() or [""])[0]
        is_hidden = "hidden" in attributes or "display:none" in (attributes.get("style") or "").replace(" ", "").lower()
        if self._open and self._is_left_out(tag, role, is_hidden):
            self._break(tag if tag != "br" else "")
            self._open.append(_Open())
            return False
        is_main, is_link = tag == "main" or role == "main", tag == "a" and "href" in attributes
        mark = self._mark(tag, attributes) if self._open and self._without_frame else None
        is_content, n_parts = is_main or tag in _CONTENT, len(self._parts)
        self._open.append(_Open(tag, is_main, is_content, tag in _VERBATIM, is_link, mark, n_parts))
        self._count(self._open[-1], 1)
        self._n_links += is_link
        self._n_heads += is_main or tag in _HEADS
        self._break(tag)
        self._is_raised |= tag == "sup"
        if self._tables and (tag == "table" or tag in _HEADINGS):
            self._tables[-1].label = ""
        if tag in _LISTS:
            kind = attributes.get("type") or "1"
            kind = kind if kind in ("a", "A", "i", "I") else "1"
            if tag != "ol" or "reversed" in attributes or _UNNUMBERED.search(attributes.get("style") or ""):
                kind = ""
            self._lists.append((kind, whole(attributes.get("start"), 1)))
        elif tag == "li" and self._lists:
            kind, number = self._lists[-1]
            number = whole(attributes.get("value"), number)
            self._lists[-1] = kind, number + 1
            if name := numeral(number, kind):
                self._number = f"{name}. " if kind == "1" else f"{name}) "  # "a." would be a sentence
        if tag == "table":
            self._tables.append(_Table())
        elif self._tables and tag == "tr":
            self._tables[-1].begin_row(all(cell.tag == "th" for cell in node.iter()))
        elif self._tables and tag in _CELLS:
            self._tables[-1].begin_cell(attributes, self._size)
        return True

    def _leave(self) -> None:
        left = self._open.pop()
        self._count(left, -1)
        if left.mark is not None and self._is_frame(left.mark):
            self._drop(left.mark)
        elif left.tag in _HEADINGS and (parts := self._parts[left.n_parts + 1 :]):
            words = "".join(parts)
            self.headings.append((self._size - len(words), " ".join(words.split())))
        self._is_raised &= left.tag != "sup"
        if left.tag in _STRUCK:
            self._strike(left.n_parts)
        if left.tag in _LISTS:
            self._lists.pop()
        elif left.tag == "li":
            self._number = ""
        if self._tables and left.tag in _CELLS:
            # Only short cells are joined: tables in tables, each with all the text below it, would take quadratic time.
            may_name = self._tables[-1].is_head and self._size - self._tables[-1].size <= 2 * MAX_HEAD
            words = "".join(self._parts[left.n_parts :]) if may_name else ""
            self._tables[-1].end_cell(" ".join(words.split()))
        elif self._tables and left.tag == "tr":
            self._tables[-1].end_row()
        elif self._tables and left.tag == "table":
            self._tables.pop()
        if left.tag != "br":  # br breaks only once
            self._break(left.tag)

    def _strike(self, start: int) -> None:
        """Put "~~" around the parts of a line from `start`, if they are few: an old price is told from the new one."""
        parts = self._parts[start + 1 : start + 20]
        is_line = len(self._parts) < start + 20 and not self._owed and not any("\n" in part for part in parts)
        if parts and is_line and not parts[-1].endswith("~~"):
            self._parts[start + 1] = f"~~{parts[0]}"
            self._parts[-1] += "~~"
            self._size += 4

    def _mark(self, tag: str, attributes: Mapping[str, str | None]) -> _Mark | None:
        """A mark if the element may be frame of the page, else None."""
        is_outer = not self._inside["content"]
        named = "" if tag in _PARTS_OF_TABLE else f"{attributes.get('class') or ''} {attributes.get('id') or ''}"
        words = _WORD.findall(named)  # the first row of a table often has the class "header"
        limit = 0
        for word in map(str.lower, words):
            if word.startswith(_COOKIE_WORDS):
                limit = _MAX_COOKIE_CHARS
            elif word in _FRAME_WORDS or (is_outer and word in _OUTER_WORDS):
                limit = max(limit, _MAX_FRAME_CHARS)
        if not limit and not (is_outer and tag in _BLOCKS):
            return None
        size = len(self._parts), self._size, self._n_links, self._link_size, self._n_heads
        return _Mark(limit, *size, self._owed, self._gap)

    def _is_frame(self, mark: _Mark) -> bool:
        """Whether the text since a mark is frame of the page."""
        size, linked = self._size - mark.size, self._link_size - mark.link_size
        if not size or self._n_heads > mark.n_heads:
            return False
        if mark.most and (size <= mark.most or linked >= 0.25 * size):
            return True
        return not self._inside["content"] and self._n_links - mark.n_links >= 4 and linked >= 0.7 * size

    def _drop(self, mark: _Mark) -> None:
        """Remove the text since a mark."""
        self.n_dropped += self._size - mark.size
        self.headings = [heading for heading in self.headings if heading[0] < mark.size]
        del self._parts[mark.n_parts :]
        self._size, self._link_size, self._owed, self._gap = mark.size, mark.link_size, mark.owed, mark.gap

    def _is_left_out(self, tag: str, role: str, is_hidden: bool) -> bool:
        if tag in _LEFT_OUT or role in _LEFT_OUT_ROLES or is_hidden:
            return True
        return tag in _FRAME and not self._inside["content"]

    def _count(self, element: _Open, by: int) -> None:
        self._inside["main"] += by * element.is_main
        self._inside["content"] += by * element.is_content
        self._inside["verbatim"] += by * element.is_verbatim
        self._inside["link"] += by * element.is_link

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._owed = 2
        elif tag in _LINES:
            self._owed = max(self._owed, 1)
        elif tag == "br":
            self._owed = min(self._owed + 1, 2)
        elif tag in _CELLS:
            self._gap = "\t"

    def _add(self, text: str) -> None:
        text = text.replace(_SOFT_HYPHEN, "")
        if self._inside["verbatim"]:
            self._put(text)
            return
        words = text.split()
        if not words:
            self._gap = self._gap or (" " if text else "")
            return
        if text[0].isspace():
            self._gap = self._gap or " "
        self._put(" ".join(words))
        if text[-1].isspace():
            self._gap = " "

    def _put(self, text: str) -> None:
        if not text:
            return
        before = "\n" * self._owed or self._gap
        if self._is_raised and not before and text[0].isdigit() and self._parts and self._parts[-1][-1:].isalnum():
            before = "^"  # else 10 to the power of 6 becomes 106, and a note 1 of 1998 makes it 19981
        self._is_raised = False
        self._owed, self._gap = 0, ""
        label, self._number = self._number, ""
        own = label[:-2]
        if label and text[: len(label) + 2].split()[:1] in ([f"{own}."], [f"{own})"], [f"({own})"]):
            label = ""  # the page writes the number itself
        if self._tables and self._tables[-1].label:
            label, self._tables[-1].label = self._tables[-1].label + label, ""
        self._parts += (before, label + text)
        self._size += len(before) + len(label) + len(text)
        self._link_size += len(text) * bool(self._inside["link"])
        self._limits.check_chars(self._size)


def _there(node: LexborNode | None) -> LexborNode:
    if node is None:
        raise RowError("the tree of the page is broken")
    return node


# --- bytes to text -----------------------------------------------------------------------------------

_LOOKED_AT = 1024  # the HTML Standard requires the declaration within the first 1,024 bytes
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"<meta[\s/][^>]*?charset\s*=\s*[\"']?\s*([^\s\"'/>;]+)", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']+)")
# Charsets by their names in the WHATWG Encoding Standard. UTF-16 cannot be declared in an ASCII tag, GB 18030 is a
# superset of GBK, and Python has no x-user-defined codec.
_CODECS = {
    "utf-16le": "utf-8", "utf-16be": "utf-8", "gbk": "gb18030", "x-user-defined": "cp1252", "euc-jp": "euc-jp",
}  # fmt: skip
_LABELS = {"latin9": "iso-8859-15"}  # used in pages, but not in the Standard


def decode_html(data: bytes) -> str:
    """Text of an HTML file, decoded by its byte order mark, else by the charset in its meta tag (or XML declaration)
    within the first 1,024 bytes, else by a detected charset, also if the declared one does not fit.

    Raises RowError naming the charset and the first bad byte: no byte is replaced.
    """
    codec = "" if mark_of(data)[0] else _declared(data)
    if codec:
        with suppress(UnicodeDecodeError):
            return data.decode(codec)
    return decode_text(data)


def _declared(data: bytes) -> str:
    """Python's name of the charset that the page declares, or ""."""
    import webencodings

    head = _COMMENT.sub(b"", data[:_LOOKED_AT])
    for declaration in (_META, _XML):
        if match := declaration.search(head):
            label = match[1].strip().lower().decode("ascii", "replace")
            codec = webencodings.lookup(_LABELS.get(label, label))
            if codec is not None and codec.name != "replacement":
                return _CODECS.get(codec.name, codec.codec_info.name)
    return ""
