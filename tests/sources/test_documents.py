"""PDF, HTML and marked-up text files: text, titles, pages and charsets, and what is left out of a page."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pypdfium2
import pytest
from package_files import docx, paragraph
from pdf_files import pdf, pdf_of
from source_files import documents_of as read

from gpu_rag.errors import MissingBackend
from gpu_rag.index.index import page_of
from gpu_rag.sources.corpus import read_corpus, reader_versions
from gpu_rag.sources.corpus.marked import with_named_tables
from gpu_rag.sources.corpus.pdf import _without_running

PAGES = ["The Halden Bridge is old.\nIt crosses the Ves.", "", "Marta Orlo drew it.", "Kerling lies beside it."]


def check_pages(document, pages):
    """Each page's text stands at its offset, and every character is on the page that it came from."""
    assert len(document.pages) == len(pages) and document.pages[0] == 0
    ends = [*document.pages[1:], len(document.text) + 1]
    for number, (page, start, end) in enumerate(zip(pages, document.pages, ends), start=1):
        assert document.text[start:end].strip("\n") == page
        for offset in range(start, end):
            assert page_of(document.pages, offset) == number


@pytest.mark.parametrize("packed", [False, True])
def test_the_text_of_a_pdf_keeps_its_pages(tmp_path, packed):
    (tmp_path / "b.pdf").write_bytes(pdf(PAGES, "On Bridges", packed))
    (tmp_path / "untitled.PDF").write_bytes(pdf(PAGES[:1]))
    documents, rejects = read(tmp_path)
    assert [(d.id, d.title, d.line) for d in documents] == [("b.pdf", "On Bridges", 0), ("untitled.PDF", "untitled", 0)]
    check_pages(documents[0], PAGES)
    assert documents[0].text.startswith(PAGES[0]) and not rejects
    assert read(tmp_path / "b.pdf")[0][0].text == documents[0].text


def test_a_pdf_with_a_page_that_cannot_be_read_keeps_the_others(tmp_path):
    path = tmp_path / "b.pdf"
    path.write_bytes(pdf(["One.", "Two."]).replace(b"4 0 R 6 0 R", b"4 0 R 99 0 R"))
    documents, rejects = read(path)
    assert documents[0].text == "One.\n" and documents[0].pages == (0, 5)
    assert [(r.id, r.line) for r in rejects] == [("b.pdf", 0)] and "page 2 cannot be read" in rejects[0].reason
    path.write_bytes(pdf(["One."]).replace(b"/Count 1", b"/Count 7"))
    documents, rejects = read(path)
    assert len(documents) == 1 and len(rejects) == 6 and "page 7 cannot be read" in rejects[-1].reason


SCAN = b"q 100 0 0 100 0 0 cm BI /W 8 /H 8 /BPC 1 /CS /G ID \xff\xff\xff\xff\xff\xff\xff\xff EI Q"


@pytest.mark.slow  # where OCR is installed
def test_pages_that_are_pictures_are_told_from_empty_ones(tmp_path):
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents %d 0 R >>"
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(SCAN), SCAN)
    tree = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    (tmp_path / "scan.pdf").write_bytes(pdf_of(b"<< /Type /Catalog /Pages 2 0 R >>", tree, page % 4, stream))
    documents, rejects = read(tmp_path / "scan.pdf")
    assert not documents and "ocr" in rejects[0].reason.lower()
    whole = pdf(["One.", "Two."]).replace(b"BT /F1 12 Tf 72 720 Td 14 TL\n(Two.) Tj T*\nET", SCAN)
    (tmp_path / "part.pdf").write_bytes(whole)
    documents, rejects = read(tmp_path / "part.pdf")
    assert documents[0].text == "One.\n" and len(rejects) == 1 and "pages that are pictures: 1" in rejects[0].reason


@pytest.mark.slow
def test_scanned_pages_are_read_where_the_extra_is_installed(tmp_path):
    """Two pages are pictures of text, with names and numbers; OCR reads them word for word."""
    pytest.importorskip("rapidocr")
    pages = ["The Brannick Ferry\nhas carried cars since 1937.", "Its skipper is Kirsty Macrae;\nit takes 18 cars."]
    written = tmp_path / "written.pdf"
    written.write_bytes(pdf(pages))
    first, second = (page.render(scale=2).to_pil() for page in pypdfium2.PdfDocument(written))
    first.save(tmp_path / "scan.pdf", save_all=True, append_images=[second])
    documents, rejects = read(tmp_path / "scan.pdf")
    assert not rejects
    check_pages(documents[0], pages)
    assert reader_versions([tmp_path]).keys() >= {"pypdfium2", "rapidocr"}


def test_words_that_stand_apart_without_blanks_are_not_glued(tmp_path):
    page = pdf(["x"]).replace(b"(x) Tj T*", b"[(There) -300 (are) -300 (three) -300 (major) -300 (distributions)] TJ")
    (tmp_path / "a.pdf").write_bytes(page)
    assert read(tmp_path / "a.pdf")[0][0].text == "There are three major distributions"


def test_words_divided_at_line_ends_are_joined(tmp_path):
    text = "The two-thirds rule of docu-\nmentation holds, and the two-\nthirds vote."
    (tmp_path / "a.pdf").write_bytes(pdf([text]))
    found = read(tmp_path / "a.pdf")[0][0].text
    assert "documentation" in found and found.count("two-thirds") == 2 and "\ufffe" not in found


def test_glued_words_of_a_pdf_are_a_problem(tmp_path):
    plain = "Donaudampfschifffahrtsgesellschaft is one long word. " + "There are three major distributions of it. " * 20
    (tmp_path / "a.pdf").write_bytes(pdf([plain]))
    (tmp_path / "b.pdf").write_bytes(pdf(["Therearethreemajordistributions. There are three. " * 5]))
    documents, (reject,) = read(tmp_path)
    assert [d.id for d in documents] == ["a.pdf", "b.pdf"]
    assert reject.id == "b.pdf" and "25 letters" in reject.reason


@pytest.mark.parametrize("title", ["untitled", "(Untitled)", "Microsoft Word - brief.doc", "PowerPoint Presentation"])
def test_titles_and_authors_of_programs_are_none(tmp_path, title):
    (tmp_path / "brief.pdf").write_bytes(pdf(PAGES, f"{title}) /Author ((anonymous)"))
    (tmp_path / "note.docx").write_bytes(
        docx(paragraph("Words."), f"<dc:title>{title}</dc:title><dc:creator>python-docx</dc:creator>")
    )
    documents, _ = read(tmp_path)
    assert [(d.title, d.metadata) for d in documents] == [("brief", {}), ("note", {})]


def test_lock_files_of_open_documents_are_named_so(tmp_path):
    (tmp_path / "~$ntract.docx").write_bytes(b"\5Ann")
    (tmp_path / "contract.docx").write_bytes(docx(paragraph("Words.")))
    _, (reject,) = read(tmp_path)
    assert "lock file" in reject.reason


def test_properties_of_a_pdf_are_metadata(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf(PAGES, "T) /Author (Ann  Orlo) /CreationDate (D:20210304235900+02'00'"))
    (tmp_path / "b.pdf").write_bytes(pdf(PAGES, "T) /CreationDate (in May"))
    (first, second), rejects = read(tmp_path)
    assert (first.title, first.metadata) == ("T", {"author": "Ann Orlo", "date": "2021-03-04"})
    assert (second.title, second.metadata, rejects) == ("T", {}, [])


def test_headings_of_a_pdf_stand_apart(tmp_path):
    lines = [
        "Fuse",
        "The kiln needs a fuse of 32 amperes, as its plate",
        "by the door says in red letters. It hangs",
        "low.",
    ]
    more = ["Store K3", "The store of Lena Brook holds clay and glazes for all", "who come early."]
    path = tmp_path / "kiln.pdf"
    path.write_bytes(pdf(["\n".join([*lines, *more])]))
    (document,), _ = read(path)
    pieces = [" ".join(piece.split()) for piece in document.text.split("\n\n")]
    assert pieces == ["Fuse", " ".join([*lines[1:], "Store K3"]), " ".join(more[1:])]


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("Halden report 2024\nPage {n} of 4\n\nSpan {t}\nTotal {v}\n{m}", "Span {t}\nTotal {v}"),
        ("{t} opens.\nTotal {v}\n- {m} -", "{t} opens.\nTotal {v}"),
        ("{n} / 4\n{t} ends.\nTotal {v}", "{t} ends.\nTotal {v}"),
        # no number is surely that of a page, and no line surely a head
        ("Day {n}\n{t} opens.\nBill {m}\n{v}.50 due", None),
        ("{n} / 5\n{t} is up.\n$ {m}", None),
        ("{m} %\n{t} is up.\n{n} p", None),
        ("{n}.50\n{t} is cold.\n-{n}", None),
        ("20{m}\n{t} is up.\nSeats | {n}", None),
        ("Patient {t}\nDoes smoke: yes", None),
        ("Amount due $ 20\n{t}\nNone of these.", None),
        ("Yes\n{t}\nTotal 12", None),
    ],
)
def test_lines_that_run_over_the_pages_of_a_pdf_are_left_out(tmp_path, lines, left):
    """The first stays, unless it only numbers the page; two pages, or fewer than half, are too few."""
    parts = [{"n": n, "m": n + 40, "t": t, "v": v} for n, t, v in zip(range(1, 5), "ABCD", (7, 95, 12, 3))]
    pages, kept = ([form.format(**part) for part in parts] for form in (lines, left or lines))
    first = re.sub("Page 1 of 4\n|^1 / 4\n|\n(- )?41( -)?$", "", pages[0]) if left else pages[0]
    assert _without_running(pages) == [first, *kept[1:]]
    for others in (
        pages[:2],
        [*pages, *(f"Other words {word}\non page {word}." for word in ("up", "on", "at", "to", "by"))],
    ):
        assert _without_running(others) == others
    (tmp_path / "a.pdf").write_bytes(pdf(["The Halden", *(f"The Halden\n{page}" for page in "abc")]))
    check_pages(read(tmp_path / "a.pdf")[0][0], ["The Halden", "a", "b", "c"])


def test_leaders_of_contents_are_left_out_of_a_pdf(tmp_path):
    contents = (
        "Contents\n1 On bridges . . . . . . . 3\n2 On rivers.......12\nA.1 Ferries ..... A-1\nPreface......xii\nI ..."
    )
    prices = "Apples ...... 3\nAnd so on....\nSigned .........."
    (tmp_path / "a.pdf").write_bytes(pdf([contents, prices]))
    (document,), rejects = read(tmp_path / "a.pdf")
    left = "Contents\n1 On bridges\n2 On rivers\nA.1 Ferries\nPreface\nI ..."
    check_pages(document, [left, "Apples 3\nAnd so on....\nSigned"])
    assert not rejects


def page(path, markup):
    path.write_bytes(markup if isinstance(markup, bytes) else markup.encode())
    documents, rejects = read(path)
    assert not rejects, rejects
    return documents[0]


ARTICLE = """<!DOCTYPE html><html><head><title> Halden &amp;
 Ves </title><style>p { color: red }</style><script>var a = "<p>no</p>";</script></head>
<body><header>Site name</header><nav><ul><li>Home</ul></nav><div role="navigation">Crumbs</div>
<h1>The <em>Bridge</em></h1><p>Built&nbsp;in   1902 by Marta&#32;Orlo &lt;engineer&gt;.<br>It is caf&eacute;-brown,
super\xadstructure<b>s</b> aside.<p hidden>Secret.</p>
<ul><li>one</li><li><p>two</p></li></ul><table><tr><th>Year<th>Span</tr><tr><td>1902<td>30 m</table>
<pre>a
  b</pre><noscript>Turn it on</noscript><svg><title>icon</title><text>x</text></svg><template><p>t</p></template>
<article><header>By Ann</header><p>Inner.</p><footer>Noted.</footer></article>
<button>Buy</button><aside>Related</aside><footer>Imprint</footer></body></html>"""
ARTICLE_TEXT = """The Bridge

Built in 1902 by Marta Orlo <engineer>.
It is café-brown, superstructures aside.

one

two

Year\tSpan
Year: 1902\tSpan: 30 m

a
  b

By Ann

Inner.

Noted."""


def check_article(document):
    assert (document.title, document.text, document.pages) == ("Halden & Ves", ARTICLE_TEXT, ())


def test_the_main_text_of_a_page(tmp_path):
    check_article(page(tmp_path / "a.html", ARTICLE))


def test_titles_of_pages(tmp_path):
    assert page(tmp_path / "t.htm", "<h1>Head <i>line</i></h1>text").title == "Head line"
    assert page(tmp_path / "u.HTML", "just text").title == "u"
    assert page(tmp_path / "v.html", "<title> </title><svg><title>no</title></svg>text").title == "v"


def test_a_main_element_is_the_main_text_unless_it_is_empty(tmp_path):
    around = "<p>before</p>{}<div>after</div>"
    assert (
        page(tmp_path / "a.html", around.format("<main><p>x</p><nav>n</nav><aside>y</aside></main>")).text == "x\n\ny"
    )
    assert page(tmp_path / "b.html", around.format('<div role="main">x</div><main>y</main>')).text == "x\n\ny"
    assert page(tmp_path / "c.html", around.format("<main> </main>")).text == "before\n\nafter"


LINKS = "".join(f'<li><a href="/{i}">Page {i} of the site</a></li>' for i in range(9))
STORY = "<p>The Halden Bridge crosses the Ves. Marta Orlo drew it in 1902.</p>" * 9
FRAMES = {
    "menu": f'<div class="top-menu">{LINKS}</div>',
    "cookies": f'<div id="CybotCookiebotDialog">{"<p>We and our partners value your privacy.</p>" * 30}</div>',
    "camel": '<div class="socialShare"><p>Share this</p></div>',
    "footer": '<div id="footer"><p>Imprint</p></div>',
    "links": f"<ul>{LINKS}</ul>",
    "cells": f"<table><tr><td>{LINKS}</td></tr></table>",
    "skip": '<a class="skip-link" href="#x">Skip to the text</a>',
    "unseen": '<div style="color: red; Display : none">Turn on cookies</div>',
    "long sidebar": f'<div class="sidebar">{"<p>Read on.</p>" * 90}{LINKS * 9}</div>',
}


@pytest.mark.parametrize("name", FRAMES)
def test_the_frame_of_a_site_is_left_out(tmp_path, name):
    frame = FRAMES[name]
    story = STORY * (4 if len(frame) > 2000 else 1)
    text = page(tmp_path / "a.html", story).text
    assert page(tmp_path / "b.html", frame + story).text == text
    assert page(tmp_path / "c.html", f"<div>{story}</div>{frame}").text == text


KEPT = {
    "a body with a class": f'<body class="has-sidebar no-cookie"><h1>T</h1>{STORY}</body>',
    "a long text": f'<div class="menu">{STORY * 3}</div>',
    "a heading": '<div class="page-header"><h1>On bridges</h1><p>Short.</p></div>',
    "an article": '<div class="sidebar"><article>Short.</article></div>',
    "the names of a table": f'{STORY}<table><tr class="header"><th>Day</th></tr><tr id="share"><td>9</td></tr></table>',
    "a list of links": f"<p>All pages</p><ul>{LINKS}</ul>",
    "links in an article": f"<article>{STORY}<ul>{LINKS}</ul></article>",
    "links in sentences": STORY + "".join(f'<p>Words of a text, <a href="{i}">link {i}</a>.</p>' for i in range(9)),
}


@pytest.mark.parametrize("name", KEPT)
def test_text_is_not_taken_for_the_frame_of_a_site(tmp_path, name):
    text = page(tmp_path / "a.html", KEPT[name]).text
    whole = re.sub(r"<[^>]*>", " ", re.sub(r"</?a[^>]*>", "", KEPT[name]))
    assert text.split() == whole.split()


TABLE = "<table><tr><th rowspan=2>Day<th colspan=2>Year<tr><th>Sold<th>Cost<tr><td>Mon<td>5<td>6<tr><th>Tue{}</table>"


def test_items_of_ordered_lists_begin_with_their_numbers(tmp_path):
    inner = "<ol type=a><li><p>cats</p><li><ul><li>dot</ul></ol>"
    lists = f"<ol><li>All.<li>Not {inner}<li value=7>Seven.</ol><ol start=3 type=I><li></li><li>Four.</ol>"
    text = page(tmp_path / "a.html", f"<p>Of:{lists}<ol reversed><li>Two.<li>One.</ol><p>End.").text
    assert [line for line in text.split("\n") if line] == [
        "Of:", "1. All.", "2. Not", "a) cats", "b) dot", "7. Seven.", "IV) Four.", "Two.", "One.", "End.",
    ]  # fmt: skip
    wiki = "<h2>Fish<span class='mw-editsection'>[<a href=x>edit</a>]</span></h2><p>The char lives here.</p>"
    found = page(tmp_path / "b.html", wiki)
    assert (found.text, found.headings) == ("Fish\n\nThe char lives here.", ((0, "Fish"),))


def test_items_of_ordered_lists_have_one_number_or_none(tmp_path):
    lists = "<ol type=disc><li>x<li>2. y<li><b>(3)</b> z<li>4.5 m<li>5 m</ol>"
    lists += "<ol style='List-Style : inside none'><li>u</ol>"
    text = page(tmp_path / "a.html", f"<p>Of:{lists}<ol type=a><li>a) v<li>a) w</ol>").text
    lines = ["Of:", "1. x", "2. y", "(3) z", "4. 4.5 m", "5. 5 m", "u", "a) v", "b) a) w"]
    assert [line for line in text.split("\n") if line] == lines


SRT = "1\n00:00:01,000 --> 00:00:04,500\nOn <i>amber</i>.\n\n2\n01:00:05,000 --> 01:00:11,000\nOur guest,\nIlka.\n"
VTT = "WEBVTT - x\n\n00:05.200 --> 00:12.000 a:b\n<v.loud Bo>It closed.</v>\n\nend\n00:13.000 --> 00:14.000\n1898\n"


def test_cues_of_subtitles_begin_with_their_times_and_keep_their_lines(tmp_path):
    (tmp_path / "a.srt").write_bytes(SRT.replace("\n", "\r\n").encode())
    (tmp_path / "b.vtt").write_text(VTT)
    documents, rejects = read(tmp_path)
    assert [d.text for d in documents] == [
        "\n[00:00:01]\nOn amber.\n\n\n[01:00:05]\nOur guest,\nIlka.\n",
        "\n\n[00:05]\nBo: It closed.\n\nend\n[00:13]\n1898\n",
    ]
    assert [len(d.text.split("\n")) for d in documents] == [SRT.count("\n") + 1, VTT.count("\n") + 1] and not rejects


@pytest.mark.parametrize(("ending", "spoken"), [("vtt", "|||||||||[00:01]|Hi A & B,|1|i<j and k>l;|x<b and c>d &"),
                                                ("srt", "WEBVTT|Kind: captions||NOTE x")])  # fmt: skip
def test_only_marks_and_blocks_that_are_not_spoken_leave_subtitles(tmp_path, ending, spoken):
    cue = "00:01.000 --> 00:02.000\n{\\an8}<FONT color=red>Hi</font> <00:00:01.500><c.x>A &amp; B</c>,\n1\n"
    blocks = "WEBVTT\nKind: captions\n\nNOTE x\ny\n\nSTYLE\n::cue {}\n\n"
    written = f"{blocks}{cue}i<j and k>l;\nx<b and c>d &{'<v.' * 300_000}"  # quadratic would take an hour
    (tmp_path / f"a.{ending}").write_text(written)
    (document,), rejects = read(tmp_path)
    assert document.text.split("<v.")[0].replace("\n", "|").startswith(spoken) and not rejects
    assert document.text.count("\n") == written.count("\n") and document.text.count("<v.") == 300_000


def test_a_raised_figure_is_not_glued_to_the_word_before(tmp_path):
    body = "<p>10<sup>6</sup> in 1998<sup><a href=x>3</a></sup>, June<sup>1</sup>, the 2<sup>nd</sup> H<sub>2</sub>"
    ends = "O<sup>[4]</sup> <sup>7</sup>Li 5<sup></sup>6 a<sup><b>8</b></sup><p>z<sup><p>9</p></sup>"
    text = page(tmp_path / "a.html", body + ends).text
    assert text == "10^6 in 1998^3, June^1, the 2nd H2O[4] 7Li 56 a^8\n\nz\n\n9"


def test_struck_words_are_told_from_those_that_hold(tmp_path):
    body = "<p>It costs <s>300 </s>240, is <del><del>12</del></del> <ins>14</ins> m<strike></strike> wide<p>"
    blocks = (
        "<del>a <b>b</b></del><del><h2>Old</h2><p>c</p></del><pre><s>d\ne</s></pre>" + "<del>f<i>" * 30 + "</del>" * 30
    )
    text = page(tmp_path / "a.html", body + blocks).text
    assert text.startswith("It costs ~~300~~ 240, is ~~12~~ 14 m wide\n\n~~a b~~\n\nOld\n\nc\n\nd\ne\n\n")
    assert text.count("f") == 30 and text.count("~") == 16


CELLS = [
    {"cell_type": "markdown", "source": ["# Kinetics\n", "\n", "By **Yusra**.\n"]},
    {"cell_type": "code", "source": "# no heading", "outputs": [
        {"text": ["Km = 4\n", "Vmax = 2\n"]}, {"data": {"image/png": "iVBORw", "text/plain": "<Figure>"}},
        {"data": {"text/html": "<b>7</b>", "text/plain": "7"}}, "x", {"data": None},
        {"data": {"text/html": "<b>V</b> 3", "text/plain": "<HTML object>"}}, {"data": {"text/html": "<svg>"}},
        {"data": {"text/markdown": "*V* 4", "text/plain": "<Markdown object>"}},
        {"output_type": "error", "ename": "E", "evalue": "\x1b[0;31mlow\x1b[0m\n```\n# no"}]},
    {"cell_type": "markdown", "source": "## Remark\n\n|A|B|\n|-|-|\n|1|2|"}, "x", {"source": 3},
]  # fmt: skip


def test_notebooks_are_read_with_their_code_and_what_it_printed(tmp_path):
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": CELLS, "nbformat": 4}))
    (tmp_path / "b.ipynb").write_text(json.dumps({"worksheets": [{"cells": CELLS}], "nbformat": 3}))
    (tmp_path / "c.ipynb").write_text("[]")
    (document,), rejects = read(tmp_path)
    code = "```\n# no heading\n```\n\n```\nKm = 4\nVmax = 2\n```\n\n```\n7\n```\n\n```\nV 3\n```\n\n*V* 4"
    code += "\n\n````\nE: low\n```\n# no\n````"
    assert document.text == f"# Kinetics\n\nBy **Yusra**.\n\n{code}\n\n## Remark\n\n\nA\tB\nA: 1\tB: 2"
    assert document.title == "Kinetics" and [words for _, words in document.headings] == ["Kinetics", "Remark"]
    assert [reject.reason for reject in rejects] == [
        "an output in HTML cannot be read: the page has no text; the rest of the file is read",
        "the cells of the notebook are missing or null; expected a list (nbformat 4)",
        "the file is a list; expected a notebook with cells",
    ]


def test_latex_is_text_with_headings(tmp_path):
    written = (
        "\\documentclass{x}\n\\title[N]{Pine {Needles}}\n% \\section{No}\n \\subsection*{Minutes}\nWash for $10$~min.\n"
    )
    (tmp_path / "a.tex").write_text(written)
    (document,), rejects = read(tmp_path)
    assert (document.text, document.title, rejects) == (written, "Pine {Needles}", [])
    assert [(written[at:].strip()[:11], words) for at, words in document.headings] == [
        ("\\title[N]{P", "Pine {Needles}"), ("\\subsection", "Minutes")]  # fmt: skip


def test_cells_of_a_table_stand_behind_the_names_of_their_columns(tmp_path):
    rows = ["Day\tYear", "Sold\tCost", "Day: Mon\tYear: Sold: 5\tYear: Cost: 6"]
    text = page(tmp_path / "a.html", TABLE.format("<td rowspan=2>7<td>8<tr><td>Wed<td>9")).text
    assert text.split("\n") == [*rows, "Day: Tue\tYear: Sold: 7\tYear: Cost: 8", "Day: Wed\tYear: Cost: 9"]
    text = page(tmp_path / "b.html", TABLE.format(f"<td colspan=99999999>7{'<td>8' * 200}")).text
    assert text.split("\n")[3].split("\t")[:3] == ["Day: Tue", "Year: Sold: 7", "Year: Cost: 8"]
    assert page(tmp_path / "c.html", "<table><tr><th>Name<td>Ada<tr><th>Born<td>1901</table>").text[-9:] == "Born\t1901"


CITIES = "<tr><th>City<th>Pop<tr><td>Rome<td>3"
NAMED = {
    "a box of facts": ("<tr><th colspan=2>Ada<tr><th>Born<td>1815<tr><th colspan=2>Career<tr><th>Field<td>Sums",
                       "Ada|Born\t1815|Career|Field\tSums"),
    "a part of a table": (f"{CITIES}<tr><th colspan=2>Asia<tr><td>Doha<td>1", "*|Asia|City: Doha\tPop: 1"),
    "names again": (CITIES * 2, "*|City\tPop|City: Rome\tPop: 3"),
    "a part and names again": (f"{CITIES}<tr><th colspan=2>Asia{CITIES}", "*|Asia|City\tPop|City: Rome\tPop: 3"),
    "a row and a table left out": (f"{CITIES}<tr hidden><th>x<th>y<tr><td><table hidden></table>Bonn<td>1",
                                   "*||City: Bonn\tPop: 1"),
    "a heading": (f"{CITIES}<tr><td><h2>Bonn</h2><td>1", "*||Bonn||Pop: 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_rows_of_heads_name_columns_only_once(tmp_path, name):
    rows, lines = NAMED[name]
    document = page(tmp_path / "a.html", f"<table>{rows}</table>")
    assert document.text == lines.replace("*", "City\tPop|City: Rome\tPop: 3").replace("|", "\n")
    assert [words for _, words in document.headings] == ["Bonn"] * (name == "a heading")


CHARSETS = {
    "default": ("Ünï 🌊", "utf-8", ""),
    "mark": ("Ünï", "utf-8-sig", "<meta charset=koi8-r>"),
    "utf16": ("Ünï", "utf-16", ""),
    "meta": ("Привет", "windows-1251", '<meta charset="Windows-1251">'),
    "equiv": ("Ünï", "cp1252", '<meta http-equiv="Content-Type" content="text/html; charset=ISO-8859-1">'),
    "euro": ("5 €", "cp1252", "<meta charset=latin1>"),
    "japan": ("日本", "shift_jis", "<meta charset=Shift_JIS>"),
    "china": ("中文", "gbk", "<meta charset=gb2312>"),
    "xml": ("Ünï", "iso8859-15", '<?xml version="1.0" encoding="iso-8859-15"?>'),
    "comment": ("Ünï", "utf-8", "<!-- <meta charset=koi8-r> -->"),
    "late": ("Ünï", "utf-8", "<!-- " + "x" * 1100 + " --><meta charset=koi8-r>"),
    "unknown": ("Ünï", "utf-8", "<meta charset=zlib>"),
    "refused by browsers": ("Ünï", "utf-8", "<meta charset=hz-gb-2312>"),
    "wider than its name": ("€中文𠀀", "gb18030", "<meta charset=gbk>"),
    "impossible in a tag": ("Ünï", "utf-8", "<meta charset=utf-16>"),
    "of the user": ("Ünï", "cp1252", "<meta charset=x-user-defined>"),
    "undeclared": ("Où est le café de la gare ? Il a été fermé.", "cp1252", ""),
    "undeclared in Russian": ("Мост построили в 1902 году.", "koi8-r", ""),
    "declared, but another": ("Où est le café de la gare ?", "cp1252", "<meta charset=utf-8>"),
    "not in the Standard": ("5 €", "iso8859-15", "<meta charset=latin9>"),
}


@pytest.mark.parametrize("name", CHARSETS)
def test_declared_charsets_are_honoured(tmp_path, name):
    text, charset, head = CHARSETS[name]
    assert page(tmp_path / "a.html", (head + f"<p>{text}</p>").encode(charset)).text == text


def test_files_that_are_no_readable_page_are_rejects(tmp_path):
    cases = {
        "damaged": (b"caf\xc3\xa9s, caf\xc3\xa9\xe9", "not UTF-8, the charset of the file: byte 0xe9 at offset 13"),
        "half": (b"\xff\xfea\x00\x00\xd8", "not UTF-16-LE"),
        "nul": (b"a\x00b", "NUL"),
        "empty": (b"", "the file is empty"),
        "blank": (b"<script>x</script> \n", "the page has no text"),
        "frames": (b"<frameset><frame src=x></frameset>", "the page has no text"),
    }
    for name, (raw, _) in cases.items():
        (tmp_path / f"{name}.html").write_bytes(raw)
    documents, rejects = read(tmp_path)
    reasons = {Path(r.file).stem: r.reason for r in rejects}
    assert not documents and reasons.keys() == cases.keys()
    for name, (_, said) in cases.items():
        assert said in reasons[name], (name, reasons[name])


def test_without_the_extra_a_file_is_an_error_and_a_file_in_a_folder_a_reject(tmp_path, monkeypatch):
    (tmp_path / "b.pdf").write_bytes(pdf(PAGES))
    (tmp_path / "a.html").write_text("text")
    (tmp_path / "c.txt").write_text("text")
    assert reader_versions([tmp_path]).keys() >= {"pypdfium2", "selectolax"}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("pypdfium2", "selectolax", "rapidocr") else find(name, *rest),
    )
    for name, library in (("b.pdf", "pypdfium2"), ("a.html", "selectolax")):
        with pytest.raises(MissingBackend, match=rf"documents extra.*{library}.*gpu-rag\[documents\]"):
            read_corpus([tmp_path / name])
    documents, rejects = read(tmp_path)
    assert [d.id for d in documents] == ["c.txt"] and len(rejects) == 2
    assert all("gpu-rag[documents]" in reject.reason for reject in rejects)
    assert reader_versions([tmp_path]) == {"pypdfium2": "absent", "selectolax": "absent"}
    assert reader_versions([tmp_path / "c.txt"]) == {}


def test_the_working_directory_cannot_put_modules_into_the_parser(tmp_path):
    (tmp_path / "pypdfium2.py").write_text("raise SystemExit(7)")
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    (tmp_path / "b.pdf").write_bytes(pdf(PAGES))
    code = (
        "import sys, pathlib; from gpu_rag.sources.corpus import read_corpus; "
        "print([type(x).__name__ for x in read_corpus([pathlib.Path(sys.argv[1])])])"
    )
    run = [sys.executable, "-P", "-c", code, str(tmp_path / "b.pdf")]
    done = subprocess.run(run, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['Document']"


MARKED = """# Doses

| Drug | Dose |
|:-----|-----:|
| Mor\\|velin | 5 mg |
| Ortan | 9 mg |
end

````
```
~~~~
````py
a | b
--|--
1 | 2
````
"""
GRID = """Doses
=====

+------+-------+
| Drug | Dose  |
+======+=======+
| Mor  | 5     |
| velin| mg    |
+------+-------+

====  ====
City  Pop
====  ====
Oslo  717 thousand
Bonn  300
      or so
====  ====

====  ====
one over two
----------
Oslo  717
====  ====
"""


def test_rows_of_tables_stand_behind_the_names_of_their_columns_on_their_lines(tmp_path):
    (tmp_path / "a.md").write_text(MARKED)
    (tmp_path / "b.rst").write_text(GRID)
    (marked, grid), rejects = read(tmp_path)
    assert not rejects and (marked.title, grid.title) == ("Doses", "Doses")
    lines = marked.text.split("\n")
    assert lines[3:7] == ["Drug\tDose", "Drug: Mor|velin\tDose: 5 mg", "Drug: Ortan\tDose: 9 mg", "end"]
    assert lines[8:] == MARKED.split("\n")[8:]  # code is left alone
    lines = grid.text.split("\n")
    assert lines[5:7] == ["Drug\tDose", "Drug: Mor velin\tDose: 5 mg"] and not lines[7]
    assert lines[12:15] == ["City\tPop", "City: Oslo\tPop: 717 thousand", "City: Bonn\tPop: 300 or so"]
    assert "one over two" in grid.text and "one: " not in grid.text


def test_a_named_table_keeps_to_the_limit_of_a_document():
    text = "| Substance | Dose in mg |\n|--|--|\n" + "| a | 1 |\n" * 50
    kept = with_named_tables(text, False, len(text))
    assert len(kept) <= len(text) and "Substance: a" not in kept
    assert with_named_tables(text, False, 9 * len(text)).count("Substance: a") == 50


def test_broken_tables_take_linear_time(takes_linear_time):
    for text, is_rst in (("a|b\n|--|\n", False), ("|", False), ("== == \na\n", True), ("+--", True), ("| a\n", False)):
        takes_linear_time(lambda n, text=text, is_rst=is_rst: with_named_tables(text * n, is_rst, 10**8), 20_000)
