"""Slides, OpenDocument files, sheets, Rich Text and mails, and such files made to exhaust or to mislead a reader."""

from io import BytesIO
from pathlib import Path
from random import Random
from zipfile import ZipFile

import pytest
from office_files import NS, OFFICE, A, mail, msg, ole, pptx, relations, row, shape, sound_file, xlsx
from package_files import W, docx, paragraph, zipped
from source_files import documents_of as read

from gpu_rag.sources.columns import with_names

TABLE = (
    "<a:tbl><a:tr><a:tc><a:p><a:r><a:t>Year</a:t></a:r></a:p></a:tc><a:tc><a:p><a:r><a:t>Span</a:t></a:r></a:p></a:tc>"
    "</a:tr><a:tr><a:tc><a:p><a:r><a:t>1902</a:t></a:r></a:p></a:tc><a:tc><a:p><a:r><a:t>30 m</a:t></a:r></a:p></a:tc>"
    "</a:tr></a:tbl>"
)


def test_slides_are_pages_in_the_order_of_the_presentation(tmp_path):
    notes = {
        "ppt/slides/_rels/slide2.xml.rels": relations(n=("notesSlide", "../notesSlides/n.xml")),
        "ppt/notesSlides/n.xml": f"<p:notes {A}>{shape('Said aloud.')}{shape('7', 'sldNum')}</p:notes>",
    }
    slides = [
        shape("On bridges", "ctrTitle") + shape("Imprint", "ftr"),
        "<p:pic/>",
        shape("Spans", "title") + TABLE + shape("one\ntwo"),
    ]
    notes = {key.replace("slide2", "slide3"): value for key, value in notes.items()}
    (tmp_path / "a.pptx").write_bytes(pptx(slides, **notes))
    (document,), rejects = read(tmp_path / "a.pptx")
    pages = ["On bridges", "", "Spans\n\nYear\tSpan\n1902\t30 m\n\none\n\ntwo\n\nSaid aloud."]
    assert (document.title, document.text, rejects) == ("On bridges", "\n\n".join(pages), [])
    assert document.pages == (0, 12, 14)


def test_a_slide_that_cannot_be_read_is_a_problem_and_its_page_stays(tmp_path):
    (tmp_path / "a.pptx").write_bytes(pptx([shape("One."), f"{shape('Lost.')}<a:p>", shape("Three.")]))
    (document,), rejects = read(tmp_path / "a.pptx")
    assert document.text.endswith("Three.") and len(document.pages) == 3
    assert len(rejects) == 1 and "slide2.xml is broken XML" in rejects[0].reason
    (tmp_path / "b.pptx").write_bytes(pptx([f"{TABLE[:90]}", shape("Two.")]))
    (document,), rejects = read(tmp_path / "b.pptx")
    assert document.text.strip() == "Two." and len(rejects) == 1


ODT = f"""<office:document-content {NS}><office:automatic-styles><style:style style:name="P1"
style:parent-style-name="Title"/></office:automatic-styles><office:body><office:text>
<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:table-of-content><text:p>Halden 3</text:p>
</text:table-of-content><text:p text:style-name="P1">Old  Bridges</text:p><text:h>Halden</text:h>
<text:p>The bridge<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>A note.</text:p>
</text:note-body></text:note> is
 <text:span>old</text:span>.<text:line-break/>It<text:tab/>spans<text:s/>a coop &amp; more.<office:annotation><text:p>no
</text:p></office:annotation></text:p>
<text:list><text:list-item><text:p>one</text:p></text:list-item><text:list-item><text:p>two</text:p></text:list-item>
</text:list><table:table><table:table-row><table:table-cell><text:p>Year</text:p></table:table-cell><table:table-cell>
<text:p>Span</text:p></table:table-cell></table:table-row><table:table-row><table:table-cell><text:p>1902</text:p>
</table:table-cell><table:table-cell><text:p>30</text:p><text:p>m</text:p></table:table-cell></table:table-row>
</table:table><text:p>The end.</text:p></office:text></office:body></office:document-content>"""
ODT_TEXT = (
    "Old Bridges\n\nHalden\n\nThe bridge is old.\nIt\tspans a coop & more.\n\none\ntwo\n\nYear\tSpan\n1902\t30 m\n\n"
    "The end.\n\nA note."
)
META = (
    f"<office:document-meta {NS}><office:meta><meta:initial-creator>Ann</meta:initial-creator>"
    "<dc:creator>Bo</dc:creator>"
    "<meta:creation-date>2021-03-04T10:00:00</meta:creation-date></office:meta></office:document-meta>"
)


def test_the_text_of_an_open_document(tmp_path):
    (tmp_path / "a.odt").write_bytes(zipped({"content.xml": ODT, "meta.xml": META}))
    (document,), rejects = read(tmp_path / "a.odt")
    assert (document.title, document.text, rejects) == ("Old Bridges", ODT_TEXT, [])
    assert document.metadata == {"author": "Ann", "date": "2021-03-04"} and document.pages == ()
    slides = "".join(f"<draw:page><text:p>{text}</text:p></draw:page>" for text in ("One.", "Two."))
    (tmp_path / "b.odp").write_bytes(zipped({"content.xml": f"<office:body {NS}>{slides}</office:body>"}))
    (document,), rejects = read(tmp_path / "b.odp")
    assert (document.text, document.pages, rejects) == ("One.\n\nTwo.", (0, 6), [])


def test_struck_words_of_open_documents_and_slides_are_between_tildes(tmp_path):
    line, span = "style:text-properties style:text-line-through-style", "<text:span text:style-name="
    styles = "".join(
        f'<style:style style:name="{name}"><{line}="{kind}"/></style:style>'
        for name, kind in (("T0", "solid"), ("T1", "none"))
    )
    spans = f"{span}'T0'>30{span}'T1'>0</text:span></text:span> {span}'T1'>240</text:span>"
    content = f"<office:body {NS}>{styles}<text:p>It costs {spans} crowns</text:p></office:body>"
    (tmp_path / "a.odt").write_bytes(zipped({"content.xml": content}))
    said = (("noStrike", "It costs "), ("sngStrike", "300"), ("noStrike", " 240 crowns"))
    runs = "".join(f'<a:r><a:rPr strike="{kind}"/><a:t>{text}</a:t></a:r>' for kind, text in said)
    (tmp_path / "b.pptx").write_bytes(pptx([f"<p:sp><p:txBody><a:p>{runs}</a:p></p:txBody></p:sp>"]))
    for name in ("a.odt", "b.pptx"):
        (document,), rejects = read(tmp_path / name)
        assert (document.text, rejects) == ("It costs ~~300~~ 240 crowns", [])


def test_sheets_keep_their_rows(tmp_path):
    when = "<row r='4'><c r='B4' s='1'><v>44259</v></c><c r='C4' s='1'><v>44259.5</v></c></row>"
    rows = row(1, "name", "year", "open") + row(2, "Halden\n Bridge", 1902, True) + row(3, "Ves", 1.5) + when
    (tmp_path / "a.xlsx").write_bytes(xlsx(rows))
    (document,), rejects = read(tmp_path / "a.xlsx")
    assert document.text.split("\n") == [
        "Bridges", "name\tyear\topen", "name: Halden Bridge\tyear: 1902\topen: True", "name: Ves\tyear: 1.5",
        "\tyear: 2021-03-04\topen: 2021-03-04 12:00:00",
    ]  # fmt: skip
    assert (document.title, document.pages, rejects) == ("a", (0,), [])


@pytest.mark.parametrize("first", [1, 7])
@pytest.mark.parametrize("letters", ["ABCD", ("Y", "Z", "AA", "AB")])
def test_what_a_sheet_shows_as_percent_is_percent(tmp_path, first, letters):
    def line(number, *values):
        cells = (f"<c r='{c}{number}' s='{s}'><v>{v}</v></c>" for c, (v, s) in zip(letters, values))
        return f"<row r='{number}'>{''.join(cells)}</row>"

    rows = line(first, (0.07, 2), (0.315, 3), (0.5, 4), (0.25, 0)) + line(first + 2, (1, 2), (44259, 1))
    (tmp_path / "a.xlsx").write_bytes(xlsx(rows))
    (document,), rejects = read(tmp_path / "a.xlsx")
    assert (document.text.split("\n"), rejects) == (["Bridges", "7%\t31.5%\t0.5\t0.25", "100%\t2021-03-04"], [])
    with ZipFile(tmp_path / "a.xlsx") as package:
        parts = {name: package.read(name) for name in package.namelist()}
    styles = parts["xl/styles.xml"].replace(b"<numFmts>", b"<numFmts><!-- -- -->")  # no XML, but calamine reads it
    (tmp_path / "a.xlsx").write_bytes(zipped({**parts, "xl/styles.xml": styles}))
    (document,), (reject,) = read(tmp_path / "a.xlsx")
    assert "0.07\t0.315\t0.5\t0.25" in document.text and "percents and currencies are read as numbers" in reject.reason


FORMATS = {
    '#,##0.00 "CHF"': "-48750.5 CHF",
    "#,##0.00\\ [$€-407];[Red]-0": "-48750.5 €",
    '_("$"* #,##0_)': "-$48750.5",
    "[$kr-414]\\ 0": "-kr 48750.5",
    "\\C\\H\\F 0": "-CHF 48750.5",
    '0 "kg"': "-48750.5",
    "[$-407]0.0": "-48750.5",
    '$0.0,,"M"': "-48750.5",
    '#,##0, "Mio "[$€-407]': "-48750.5",
}


@pytest.mark.parametrize("code", FORMATS)
def test_a_currency_of_a_sheet_stays(tmp_path, code):
    with ZipFile(BytesIO(xlsx("<row r='1'><c r='A1' s='3'><v>-48750.5</v></c></row>"))) as package:
        parts = {name: package.read(name).decode() for name in package.namelist()}
    parts["xl/styles.xml"] = parts["xl/styles.xml"].replace("0.0%", code.replace('"', "&quot;"))
    (tmp_path / "a.xlsx").write_bytes(zipped(parts))
    assert [d.text for d in read(tmp_path / "a.xlsx")[0]] == [f"Bridges\n{FORMATS[code]}"]


def test_percents_and_currencies_of_an_open_sheet_are_as_shown(tmp_path):
    def cell(kind, value, shown, more=""):
        return (
            f'<table:table-cell office:value-type="{kind}" office:value="{value}"{more}>'
            f"<office:annotation><text:p>note</text:p></office:annotation><text:p>{shown}</text:p></table:table-cell>"
        )

    twice = ' table:number-columns-repeated="2"'
    rows = (
        f'<table:table-row table:number-rows-repeated="2"><table:table-cell{twice}/></table:table-row>',
        f"<table:table-row><table:table-cell{twice}/>{cell('percentage', 0.656, '65,6 %', twice)}"
        f"{cell('currency', 1834.5, '1 834,50 €')}{cell('float', 1.25, '1,3')}</table:table-row>",
    )
    table = f'<table:table table:name="Ventes">{"".join(rows)}</table:table>'
    content = (
        f"<office:document-content {NS}><office:body><office:spreadsheet>{table}</office:spreadsheet></office:body>"
    )
    (tmp_path / "a.ods").write_bytes(
        zipped(
            {
                "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
                "META-INF/manifest.xml": "<manifest/>",
                "content.xml": f"{content}</office:document-content>",
            }
        )
    )
    (document,), rejects = read(tmp_path / "a.ods")
    assert (document.text, rejects) == ("Ventes\n65,6 %\t65,6 %\t1 834,50 €\t1.25", [])


def test_headers_and_footers_of_a_document_are_read_once(tmp_path):
    members = {name: f"<w:hdr {W}>{words}</w:hdr>" for name, words in {
        "header1": paragraph("Emmi Dairy, contract 77-B"), "header2": paragraph("Emmi Dairy, contract 77-B"),
        "footer1": paragraph("Page 1 of 3"), "footer2": paragraph("Confidential") + paragraph("Until 2031"),
    }.items()}  # fmt: skip
    with ZipFile(BytesIO(docx(paragraph("The bridge is old."), **members))) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    targets = {name: (name[:6], f"{name}.xml") for name in members}
    for links, rest in ((relations(**targets), "Emmi Dairy, contract 77-B\n\nConfidential\n\nUntil 2031"), ("<", "")):
        (tmp_path / "a.docx").write_bytes(zipped({**parts, "word/_rels/document.xml.rels": links}))
        (document,), rejects = read(tmp_path / "a.docx")
        assert document.text == f"The bridge is old.\n\n{rest}".strip() and len(rejects) == (not rest)


RTF = r"""{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title Old Br\'fccken}{\author Ann}}
{\*\generator Secret;}The bridge is \b old\b0 . Caf\'e9 \u8364?\par It crosses the Ves.\par
\trowd\cellx1000\cellx2000 Year\cell Span\cell\row 1902\cell 30 m\cell\row The end.}"""


def test_cells_stand_behind_the_names_of_their_columns(tmp_path):
    rows = row(1, "Stock") + row(3, "part", "shelf", "stock") + row(4, "Nut", "A1", 40) + row(5, "Bolt", "", 7)
    (tmp_path / "a.xlsx").write_bytes(xlsx(rows + row(6, "All counted")))
    marked = TABLE.replace("<a:tbl>", '<a:tbl><a:tblPr firstRow="1"/>')
    (tmp_path / "b.pptx").write_bytes(pptx([marked]))
    heads, names = "<table:table-header-rows>", "<table:table-row><table:table-cell><text:p>Year"
    odt = ODT.replace(names, heads + names).replace(
        "</table:table-row><", "</table:table-row></table:table-header-rows><", 1
    )
    (tmp_path / "c.odt").write_bytes(zipped({"content.xml": odt}))
    texts = [d.text for d in read(tmp_path)[0]]
    lines = ["Bridges", "Stock", "part\tshelf\tstock", "part: Nut\tshelf: A1\tstock: 40", "part: Bolt\t\tstock: 7"]
    assert texts[0].split("\n") == [*lines, "All counted"]
    assert texts[1:] == ["Year\tSpan\nYear: 1902\tSpan: 30 m", ODT_TEXT.replace("1902\t30 m", "Year: 1902\tSpan: 30 m")]


def test_a_name_of_a_column_may_have_a_figure_above_numbers_alone():
    rows = [["Hive", "Site", "Honey 2024 (kg)", "Q1"]]
    rows += [["H07", "Lane", "31.5", "1"], ["H08", "Lane", "", "2"], ["H12", "Top", "44", "3"]]
    lines, _ = with_names(rows, 0, 999)
    assert lines[1:3] == ["Hive: H07\tSite: Lane\tHoney 2024 (kg): 31.5\tQ1: 1", "Hive: H08\tSite: Lane\t\tQ1: 2"]
    for first in (["Elm Road", "12a", "Ada"], ["Bed 3", "kale", "Bo"], ["Hive", "Site", "2024"]):
        rows = [first, ["Elm Road", "13", "Bo"], ["Bed 4", "14", "Cy"], ["Bed 5", "15", "7"]]
        assert with_names(rows, 0, 999)[0] == ["\t".join(row) for row in rows]
    rows = [["10 km", "20 km", "30 km"], ["31", "64", "99"], ["33", "70", "108"]]
    assert with_names(rows, 0, 999)[0] == ["\t".join(row) for row in rows]


@pytest.mark.parametrize("rows", ["ab 12 34", "abc def ghi", "xxx 111 222", "ab1 cd2 ef3"])
def test_a_table_that_may_have_no_names_is_left_alone(rows):
    assert with_names([*map(list, rows.split())], 0, 99) == (["\t".join(row) for row in rows.split()], 99)
    results = [with_names([["a", "b"], ["1", "2"]], 1, room) for room in (5, 6)]
    assert [(len(lines[1]), left) for lines, left in results] == [(3, 5), (9, 0)]
    wide, jagged = [f"{n:b}".translate({48: "a", 49: "b"}) for n in range(1, 4001)], [["x"]] * 20_000
    assert with_names([wide, *jagged, ["1"] * 5000, ["2"] * 5000], 0, 1e9)[0][-1].endswith("\t2")


def test_items_of_lists_of_an_open_document_begin_with_their_numbers(tmp_path):
    """A later list begins anew or continues, an item has one number, which no footnote takes, and bullets have none."""
    levels = [("1", "Art. ", ":", 1, 1), ("a", "", ")", 1, 1), ("i", "(", ")", 4, 2), ("", "", ".", 1, 1)]
    style = "".join(
        f'<text:list-level-style-number text:level="{n}" style:num-format="{kind}" style:num-prefix="{before}"'
        f' style:num-suffix="{after}" text:start-value="{first}" text:display-levels="{shown}"/>'
        for n, (kind, before, after, first, shown) in enumerate(levels, 1)
    )
    styles = f'<office:styles {NS}><text:list-style style:name="L">{style}</text:list-style></office:styles>'

    def listed(*items, name="L", how=""):
        inside = "".join(f"<text:list-item>{item}</text:list-item>" for item in items)
        return f'<text:list text:style-name="{name}" {how}>{inside}</text:list>'

    def p(*texts):
        return "".join(f"<text:p>{text}</text:p>" for text in texts)

    note = "One<text:note><text:note-body><text:p>foot</text:p></text:note-body></text:note>"
    deep = listed(p("x") + listed(p("four"), p("five")), p("y") + listed(p("anew") + listed(p("bare"))))
    body = listed(p(note, "more"), p("Two") + deep, "", p("", "Three")) + p("Between")
    body += listed(p("First")) + listed(p("Second"), how='text:continue-numbering="true"') + listed(p("Dot"), name="no")
    body += listed(p("Third"), how='text:continue-list="list1"').replace(
        "<text:list-item>", '<text:list-item text:start-value="9">'
    )
    content = f"<office:body {NS}>{body}</office:body>"
    (tmp_path / "a.odt").write_bytes(zipped({"content.xml": content, "styles.xml": styles}))
    (tmp_path / "b.odt").write_bytes(zipped({"content.xml": content, "styles.xml": "<broken"}))
    found, rejects = read(tmp_path)
    texts = [[line for line in document.text.split("\n") if line] for document in found]
    expected = "Art. 1: One|more|Art. 2: Two|a) x|(a.iv) four|(a.v) five|b) y|(b.iv) anew|bare|Art. 3: Three|Between|"
    assert texts[0] == f"{expected}Art. 1: First|Art. 2: Second|Dot|Art. 9: Third|foot".split("|")
    assert texts[1][0] == "One" and ["styles.xml" in r.reason for r in rejects] == [True]


def test_numbered_paragraphs_of_slides_begin_with_their_numbers(tmp_path):
    def p(text, kind="", level=0, more=""):
        number = f'<a:buAutoNum type="{kind}" {more}/>' if kind else ""
        return f'<a:p><a:pPr lvl="{level}">{number}</a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>'

    dot, paren = "arabicPeriod", "alphaLcParenR"
    first = [p("A", dot), p("B", dot), p("", dot), *(p(text, paren, 1) for text in "bc"), p("note", level=1)]
    first += [p("d", paren, 1), p("C", dot), p("Break"), p("D", dot, more='startAt="4"')]
    first += [p("E", "romanUcParenBoth"), p("F", "odd")]
    boxes = "".join(f"<p:sp><p:txBody>{''.join(box)}</p:txBody></p:sp>" for box in (first, [p("New", dot)]))
    (tmp_path / "a.pptx").write_bytes(pptx([boxes]))
    (document,), rejects = read(tmp_path / "a.pptx")
    lines = [line for line in document.text.split("\n") if line]
    assert "|".join(lines) == "1. A|2. B|a) b|b) c|note|a) d|3. C|Break|4. D|(I) E|F|1. New" and not rejects


def test_the_text_of_a_rich_text_file(tmp_path):
    (tmp_path / "a.rtf").write_text(RTF)
    (document,), rejects = read(tmp_path / "a.rtf")
    assert (document.title, document.metadata, rejects) == ("Old Brücken", {"author": "Ann"}, [])
    lines = [line.rstrip("| ") for line in document.text.split("\n")]
    assert lines == ["The bridge is old. Café €", "It crosses the Ves.", "Year|Span", "1902|30 m", "The end."]


MAIL_HEAD = "From: Ann <ann@example.org>\nTo: bo@example.org\nDate: Thu, 04 Mar 2021 23:00:00 -0500\n\n"


def test_a_mail_is_its_headers_and_its_text(tmp_path):
    with_file = mail(html="<p>The <b>bridge</b></p>")
    with_file.add_attachment(b"a,b\n", maintype="text", subtype="csv", filename="t.csv")
    (tmp_path / "a.eml").write_bytes(bytes(with_file))
    (tmp_path / "b.eml").write_bytes(bytes(mail("", "<title>x</title><p>Only <b>über</b>.</p>")))
    odd = (
        bytes(mail("x")).replace(b'charset="utf-8"', b'charset="no-such"').replace(b"\nx\n", b"\nCaf\xe9 d\xe9j\xe0\n")
    )
    (tmp_path / "c.eml").write_bytes(odd)
    stub = mail("See the other part.", "<p>The bridge was closed by the council on Monday, for a week.</p>")
    (tmp_path / "d.eml").write_bytes(bytes(stub))
    documents, rejects = read(tmp_path)
    texts = ["The bridge is old.\nIt crosses the Ves.", "Only über.", "Café déjà"]
    texts.append("The bridge was closed by the council on Monday, for a week.")
    assert [d.text for d in documents] == [MAIL_HEAD + text for text in texts]
    assert {d.title for d in documents} == {"Brücken"}
    assert documents[0].metadata == {"author": "Ann <ann@example.org>", "date": "2021-03-04"}
    assert [(r.id, "t.csv" in r.reason) for r in rejects] == [("a.eml", True)]


def test_each_mail_of_a_mailbox_is_a_document(tmp_path):
    """Lines that only look like the first of a mail are text; a broken mail is a reject, and so is another file."""
    first = b"From ann@example.org Thu Mar  4 23:00:00 2021\n"
    words = "We met.\n\nFrom 10:00 until 2024 it rained.\n>From then we danced.\nFrom x 10:00 2021\n"
    mails = [bytes(mail(words)), b"no header\n", bytes(mail("x" * 9000)), bytes(mail())]
    mailbox = b"\xef\xbb\xbf\n" + b"".join(first + one + b"\n" for one in mails)
    (tmp_path / "a.mbox").write_bytes(mailbox.replace(b"\n", b"\r\n"))
    (tmp_path / "b.mbox").write_bytes(bytes(mail()))
    documents, rejects = read(tmp_path, max_file_bytes=8000)
    assert [(d.id, d.line, d.title) for d in documents] == [(f"a.mbox/{n}.eml", n, "Brücken") for n in (1, 4)]
    assert documents[0].text == MAIL_HEAD + words.replace(">From", "From").strip()
    assert documents[1].metadata == {"author": "Ann <ann@example.org>", "date": "2021-03-04"}
    assert [(r.id, r.line) for r in rejects] == [("", 2), ("", 3), ("", 0)]
    assert "no header" in rejects[0].reason and "max_file_bytes" in rejects[1].reason and "From" in rejects[2].reason


def test_mails_quoted_below_a_mail_lose_their_marks_but_not_those_between_answers(tmp_path):
    quoted = "Agreed.\n\nOn Monday, Ann wrote:\n> Hi Bo,\n>\n> shall I?\n>> We have two.\n> Ann\n"
    between = "> Who pays?\nI do.\n> When?\nNow."
    (tmp_path / "a.eml").write_bytes(bytes(mail(quoted)))
    (tmp_path / "b.eml").write_bytes(bytes(mail(between)))
    plain = "Agreed.\n\nOn Monday, Ann wrote:\n\nHi Bo,\n\nshall I?\n\nWe have two.\n\nAnn"
    own = "Type:\n>>> x = 1\n>5 or\n>> /dev/null"
    (tmp_path / "c.eml").write_bytes(bytes(mail(own)))
    (tmp_path / "d.eml").write_bytes(bytes(mail("Ann wrote:\n> >>> x = 1\n>>>> y\n> >5 apples\n>> z\n>>>>> own")))
    quoted = "Ann wrote:\n\n>>> x = 1\n>>> y\n>5 apples\n\nz\n>>> own"
    assert [d.text for d in read(tmp_path)[0]] == [MAIL_HEAD + t for t in (plain, between, own, quoted)]


def test_a_mail_of_outlook(tmp_path):
    attached = {"__attach_version1.0_#00000000/__substg1.0_3707001F": "t.csv".encode("utf-16-le")}
    (tmp_path / "a.msg").write_bytes(msg(**attached))
    (tmp_path / "b.msg").write_bytes(msg("", **{"__substg1.0_10130102": b"<p>Only <b>bold</b>.</p>"}))
    documents, rejects = read(tmp_path)
    head = "From: Ann ann@example.org\nTo: bo@example.org\nDate: 2021-03-04 23:00:00+00:00\n\n"
    texts = ["The bridge is old.\nIt crosses the Ves.", "Only bold."]
    assert [(d.title, d.text) for d in documents] == [("Brücken", head + text) for text in texts]
    assert documents[0].metadata == {"author": "Ann ann@example.org", "date": "2021-03-04"}
    assert [(r.id, "t.csv" in r.reason) for r in rejects] == [("a.msg", True)]


# files that python-pptx, openpyxl, xlwt, python-docx, odfpy, EbookLib and PyRTF wrote, and what must be in them
MADE = {
    "bridge.pptx": ("Halden Bridge", ["Halden Bridge", "The river"], "built in 1902 by Marta Orlo"),
    "bridge.xlsx": ("bridge", [], "bridge: Ansel Bridge\tbuilt: 1911\tengineer: Pieter Lund"),
    "bridge.xls": ("bridge", [], "Halden Bridge\t1902"),
    "bridge.ods": ("bridge", [], "Halden Bridge\t1902"),
    "bridge.docx": ("Halden Bridge", ["Building", "The river"], "length\t212 m"),
    "bridge.odt": ("Building", ["Building"], "It crosses the river Ves at Kerling."),
    "bridge.epub": ("Halden Bridge", ["Building", "The river"], "It crosses the river Ves at Kerling."),
    "bridge.rtf": ("bridge", [], "built in 1902 by Marta Orlo.\nIt crosses the river Ves"),
}


@pytest.mark.parametrize("name", MADE)
def test_files_of_other_programs(name):
    title, headings, words = MADE[name]
    (document,), rejects = read(Path(__file__).parent / "data" / name)
    assert not rejects and (document.title, [heading for _, heading in document.headings]) == (title, headings)
    assert words in document.text
    assert all(document.text[start:].startswith(heading) for start, heading in document.headings)


def test_reports_and_logs_are_read_as_they_are(tmp_path):
    text = "=====\nOld\n=====\n\nThe bridge.\n\n.. note:: Old.\n"
    (tmp_path / "a.rst").write_text(text)
    (tmp_path / "b.log").write_text("2021-03-04 started\n----\n")
    documents, rejects = read(tmp_path)
    assert [(d.title, d.text) for d in documents] == [("Old", text), ("b", "2021-03-04 started\n----\n")]
    assert not rejects


LAUGHS = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
FLOOD = " ".join(f'a{i}="x"' for i in range(200_000))
NESTED = b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (i, i) for i in range(3000))
HOSTILE = {
    "bomb.pptx": (zipped({"ppt/presentation.xml": b" " * (80 << 20)}), "over 200 times as many"),
    "bomb.odt": (zipped({"content.xml": b" " * (80 << 20)}), "over 200 times as many"),
    "laughs.pptx": (zipped({"ppt/presentation.xml": f"{LAUGHS}<a>&b;</a>"}), "declares entities"),
    "laughs.odt": (zipped({"content.xml": f"{LAUGHS}<a>&b;</a>"}), "declares entities"),
    "broken.xlsx": (xlsx(row(1, "x")).replace(b"PK", b"KP"), "cannot be read"),
    "laughs.xlsx": (zipped({"xl/workbook.xml": f"{LAUGHS}<a>&b;</a>"}), "cannot be read"),
    "leads-out.pptx": (zipped({"_rels/.rels": relations(a=("officeDocument", "../../etc/passwd"))}), "not in the file"),
    "old.pptx": (b"\xd0\xcf\x11\xe0" + bytes(600), "encrypted with a password, or an old .ppt"),
    "empty.odt": (zipped({}), "content.xml is not in the file"),
    "blank.odt": (zipped({"content.xml": f"<office:body {NS}/>"}), "the document has no text"),
    "blank.pptx": (pptx(["<p:pic/>"]), "the document has no text"),
    "locked.odt": (
        zipped({"META-INF/manifest.xml": "<a><encryption-data/></a>", "content.xml": b"\x00"}),
        "encrypted with a password",
    ),
    "blank.xlsx": (xlsx(""), "no sheet of the file has a value"),
    "words.xls": (b"just text", "cannot be read"),
    "old.xls": (b"\xd0\xcf\x11\xe0" + bytes(600), "cannot be read"),
    "words.rtf": (b"just text", "not an .rtf file"),
    "number.rtf": (rb"{\rtf1 \u" + b"9" * 5000 + b" x}", "cannot be read"),
    "blank.rtf": (rb"{\rtf1 }", "the document has no text"),
    "words.eml": (b"\n\njust text", "it has no header"),
    "empty.eml": (bytes(mail(" \n")), "the mail has no text"),
    "nested.eml": (NESTED, "the mail"),
    "words.msg": (b"just text" * 1000, "cannot be read"),
    "cut.msg": (msg()[:700], "the mail"),
    "blank.msg": (ole({"__properties_version1.0": b"x"}), "the mail has no text"),
}


@pytest.mark.slow
def test_hostile_files_are_rejects_and_the_files_between_them_are_read(tmp_path):
    for name, (raw, _) in HOSTILE.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "flood.odt").write_bytes(
        zipped({"content.xml": f"<office:body {NS}><text:p {FLOOD}>fine</text:p></office:body>"})
    )
    (tmp_path / "z.rtf").write_bytes(rb"{\rtf1 " + b"{" * 100_000 + b"fine}")
    documents, rejects = read(tmp_path)
    assert [(d.id, d.text) for d in documents] == [("flood.odt", "fine"), ("z.rtf", "fine")]
    reasons = {Path(reject.file).name: reject.reason for reject in rejects}
    assert reasons.keys() == HOSTILE.keys()
    for name, (_, said) in HOSTILE.items():
        assert said in reasons[name], (name, reasons[name])


@pytest.mark.slow
def test_a_sheet_of_far_cells_or_of_a_huge_one_costs_one_reject(tmp_path):
    far = xlsx("".join(f"<row r='{n}'><c r='{c}{n}'><v>1</v></c></row>" for n, c in ((1, "A"), (1_048_576, "XFD"))))
    (tmp_path / "a.xlsx").write_bytes(far)
    (tmp_path / "b.xlsx").write_bytes(xlsx(row(1, "x" * 30_000_000)))
    (tmp_path / "c.xlsx").write_bytes(xlsx(row(1, "fine")))
    documents, rejects = read(tmp_path, max_parse_bytes=512 << 20)
    assert [d.id for d in documents] == ["c.xlsx"]
    assert [Path(r.file).name for r in rejects] == ["a.xlsx", "b.xlsx"]
    assert "max_document_chars" in rejects[1].reason or "memory" in rejects[1].reason or "signal" in rejects[1].reason


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"a{suffix}" for suffix in OFFICE])
def test_office_files_keep_to_the_limits_and_every_broken_one_gives_one_result(tmp_path, name):
    words = "words " * 100
    raw = sound_file(Path(name).suffix, words)
    (tmp_path / name).write_bytes(raw)
    assert "words words" in read(tmp_path / name)[0][0].text
    documents, rejects = read(tmp_path / name, max_document_chars=300)
    assert not documents and "max_document_chars = 300" in rejects[0].reason
    (tmp_path / "broken").mkdir()
    random, broken = Random(0), [raw[:cut] for cut in range(1, len(raw), len(raw) // 40)]
    for _ in range(40):
        flipped = bytearray(raw)
        for place in random.choices(range(len(raw)), k=8):
            flipped[place] = random.randrange(256)
        broken.append(bytes(flipped))
    for number, content in enumerate(broken):
        (tmp_path / "broken" / f"{number:03}{Path(name).suffix}").write_bytes(content)
    documents, rejects = read(tmp_path / "broken")
    assert {d.id for d in documents}.isdisjoint(Path(r.file).name for r in rejects if not r.id)
    assert len(documents) + sum(not r.id for r in rejects) == len(broken)


def test_names_of_columns_never_take_a_workbook_over_the_limit(tmp_path):
    rows = row(1, "part", "shelf", "stock") + "".join(row(i, "a", "b", i) for i in range(2, 40))
    with ZipFile(BytesIO(xlsx(rows, rows))) as package:
        parts = {name: package.read(name).decode().replace(' state="hidden"', "") for name in package.namelist()}
    (tmp_path / "a.xlsx").write_bytes(zipped(parts))
    (whole,), _ = read(tmp_path / "a.xlsx")
    (document,), rejects = read(tmp_path / "a.xlsx", max_document_chars=len(whole.text) - 1)
    assert not rejects and [document.text.count("part: a"), whole.text.count("part: a")] == [38, 76]


def test_merged_cells_tabs_and_the_next_table_do_not_shift_the_names_of_columns(tmp_path):
    def table(*rows):
        cells = ["".join(f"<w:tc>{cell}</w:tc>" for cell in cells) for cells in rows]
        return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl><w:p/>"

    def cell(text, before=""):
        return f"{before}<w:p><w:r><w:t>{text.replace('|', '</w:t><w:tab/><w:t>')}</w:t></w:r></w:p>"

    wide = '<w:tcPr><w:gridSpan w:val="2"/></w:tcPr>'
    first = table(map(cell, ("City", "Land", "Pop")), (cell("Rome", wide), cell("3")), map(cell, ("Oslo|x", "N", "1")))
    second = table(
        map(cell, ("Name", "Born", "Age")), map(cell, ("Ann", "1990", "33")), map(cell, ("Bob", "1992", "31"))
    )
    (tmp_path / "a.docx").write_bytes(docx(first + second))
    lines = ["City\tLand\tPop", "City: Rome\t\tPop: 3", "City: Oslo x\tLand: N\tPop: 1", "Name\tBorn\tAge"]
    (document,) = read(tmp_path)[0]
    assert document.text.split("\n")[:5] == [*lines, "Name: Ann\tBorn: 1990\tAge: 33"]
