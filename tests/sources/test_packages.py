"""Word documents and e-books: text, titles and metadata, and files made to exhaust or to mislead a reader."""

import io
import struct
import zipfile

from package_files import W, chapter, docx, epub, paragraph, zipped
from source_files import documents_of as read

LIST = '<w:numPr><w:ilvl w:val="0"/></w:numPr>'
BODY = f"""
{paragraph("Old Bridges", "Titel")}
<w:sdt><w:sdtPr><w:docPartObj><w:docPartGallery w:val="Table of Contents"/></w:docPartObj></w:sdtPr>
<w:sdtContent>{paragraph("Contents")}{paragraph("Halden 3")}</w:sdtContent></w:sdt>
{paragraph("Halden 3", "V1")}{paragraph("Vell", "TOC2")}
{paragraph("Halden", "Heading1")}
<w:p><w:r><w:t>The bridge </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">is old</w:t></w:r>
<w:del><w:r><w:delText>not</w:delText></w:r></w:del><w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r>
<w:r><w:rPr><w:vanish w:val="0"/></w:rPr><w:t>.</w:t><w:br/><w:t>It</w:t><w:tab/><w:t>spans a co</w:t><w:noBreakHyphen/>
<w:t>op &amp; more.</w:t></w:r><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>
{paragraph("one", "", LIST)}{paragraph("two", "", LIST)}{paragraph("")}
<w:tbl><w:tr><w:tc>{paragraph("Year")}</w:tc><w:tc>{paragraph("Span")}</w:tc></w:tr>
<w:tr><w:tc>{paragraph("1902")}</w:tc><w:tc>{paragraph("30")}{paragraph("m")}<w:tbl><w:tr><w:tc>{paragraph("in")}</w:tc>
</w:tr></w:tbl></w:tc></w:tr></w:tbl>
<w:p><w:pPr><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr><w:r><mc:AlternateContent
xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><mc:Choice><w:txbxContent>
{paragraph("In a box.")}</w:txbxContent></mc:Choice><mc:Fallback>{paragraph("In a box.")}</mc:Fallback>
</mc:AlternateContent></w:r></w:p>
{paragraph("The end.")}<w:sectPr/>"""
TEXT = """Old Bridges

Halden

The bridge is old.
It\tspans a co-op & more.

one
two

Year\tSpan
1902\t30 m in

In a box.

The end.

A note."""
STYLES = f"""<w:styles {W}><w:style w:styleId="Titel"><w:name w:val="Title"/></w:style>
<w:style w:styleId="V1"><w:name w:val="toc 1"/></w:style></w:styles>"""
NOTES = f"""<w:footnotes {W}><w:footnote w:type="separator">{paragraph("-")}</w:footnote>
<w:footnote>{paragraph("A note.")}</w:footnote></w:footnotes>"""


def run(text, style=""):
    return f'<w:r><w:rPr>{style}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def test_struck_words_are_between_tildes(tmp_path):
    struck, mark = "<w:strike/>", "<w:pPr><w:rPr><w:strike/></w:rPr></w:pPr>"
    price = run("30", struck) + run("0 ", "<w:dstrike/>") + run("240") + run(" ", struck)
    old = run("Old ", struck) + "<w:r><w:tab/></w:r>" + run("price", '<w:strike w:val="0"/>')
    (tmp_path / "a.docx").write_bytes(
        docx(f"<w:p>{mark}{run('It costs ')}{price}{run('crowns')}</w:p><w:p>{old}</w:p>")
    )
    (document,), rejects = read(tmp_path / "a.docx")
    assert (document.text, rejects) == ("It costs ~~300~~ 240 crowns\n\n~~Old~~ \tprice", [])


def test_the_text_of_a_word_document(tmp_path):
    (tmp_path / "a.docx").write_bytes(docx(BODY, styles=STYLES, footnotes=NOTES))
    (document,), rejects = read(tmp_path / "a.docx")
    assert (document.id, document.title, document.text, document.metadata) == ("a.docx", "Old Bridges", TEXT, {})
    assert document.pages == () and document.line == 0 and not rejects


def test_numbered_paragraphs_of_a_word_document_begin_with_their_numbers(tmp_path):
    levels = [("decimal", "§ %1", 1), ("decimal", "(%2)", 1), ("lowerLetter", "%3)", 1), ("upperRoman", "%1.%4", 9)]
    bullets = '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="bullet"/><w:lvlText w:val="•"/></w:lvl>'
    numbered = "".join(
        f'<w:lvl w:ilvl="{i}"><w:start w:val="{start}"/><w:numFmt w:val="{kind}"/><w:lvlText w:val="{text}"/></w:lvl>'
        for i, (kind, text, start) in enumerate(levels)
    )
    again = '<w:lvlOverride w:ilvl="1"><w:startOverride w:val="5"/></w:lvlOverride>'
    lists = "".join(
        f'<w:num w:numId="{id}"><w:abstractNumId w:val="{abstract}"/>{more}</w:num>'
        for id, abstract, more in ((1, 7, ""), (2, 7, again), (3, 8, ""))
    )
    abstract = f'<w:abstractNum w:abstractNumId="7">{numbered}</w:abstractNum>'
    abstract += f'<w:abstractNum w:abstractNumId="8">{bullets}</w:abstractNum>'
    style = '<w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
    styles = f'<w:styles {W}><w:style w:styleId="H">{style}</w:style></w:styles>'

    def item(text, level, list_=1, style=""):
        return paragraph(text, style, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_}"/></w:numPr>')

    body = [
        paragraph("Scope", "H"), item("All.", 1), item("Not", 1), item("cats;", 2), item("dogs.", 2), item("Deep.", 3),
        paragraph("Fees", "H"), item("Five.", 1), item("Later.", 1, 2), item("Dot.", 0, 3), item("Out.", 0, 0, "H"),
        paragraph("End", "H"),
    ]  # fmt: skip
    members = {"styles": styles, "numbering": f"<w:numbering {W}>{abstract}{lists}</w:numbering>"}
    (tmp_path / "a.docx").write_bytes(docx("".join(body), **members))
    (document,), rejects = read(tmp_path / "a.docx")
    words = "§ 1 Scope|(1) All.|(2) Not|a) cats;|b) dogs.|1.IX Deep.|§ 2 Fees|(1) Five.|(5) Later.|Dot.|Out.|§ 3 End"
    assert [line for line in document.text.split("\n") if line] == words.split("|") and not rejects
    assert [heading for _, heading in document.headings] == ["§ 1 Scope", "§ 2 Fees", "Out.", "§ 3 End"]


def test_letters_of_a_word_document_are_repeated_after_z_and_unknown_lists_and_levels_have_no_numbers(tmp_path):
    level = '<w:lvl w:ilvl="{}"><w:numFmt w:val="{}"/><w:lvlText w:val="({})"/></w:lvl>'
    levels = (
        level.format(0, "lowerLetter", "%1") + level.format(1, "decimal", "%1.%2") + level.format(9, "decimal", "%2")
    )
    lists = f'<w:abstractNum w:abstractNumId="1">{levels}</w:abstractNum>'
    lists += '<w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num>'
    stray = '<w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/></w:lvl>'
    places = [(0, 1)] * 28 + [(1, 1), (0, 7), (9, 1)] + [(0, 1)] * 753 + [(1, 1)]
    numbers = (f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list_}"/></w:numPr>' for level, list_ in places)
    body = "".join(paragraph("x", "", number) for number in numbers)
    (tmp_path / "a.docx").write_bytes(docx(body, numbering=f"<w:numbering {W}>{stray}{lists}</w:numbering>"))
    (document,), rejects = read(tmp_path / "a.docx")
    lines = [line for line in document.text.split("\n") if line]
    assert lines[25:32] == ["(z) x", "(aa) x", "(bb) x", "(bb.1) x", "x", "x", "(cc) x"] and not rejects
    assert lines[-3:] == [f"({'z' * 30}) x", "x", "x"]


def test_a_style_numbers_paragraphs_by_the_style_that_it_is_based_on_and_by_the_level_linked_to_it(tmp_path):
    level = '<w:lvl w:ilvl="{}"><w:numFmt w:val="decimal"/><w:pStyle w:val="{}"/><w:lvlText w:val="{}"/></w:lvl>'
    lists = f'<w:abstractNum w:abstractNumId="1">{level.format(0, "H1", "%1")}{level.format(1, "H2", "%1.%2")}'
    lists += '</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num>'
    number = '<w:pPr><w:numPr><w:numId w:val="{}"/></w:numPr></w:pPr>'
    based = {"H1": number.format(1), "H2": '<w:basedOn w:val="H1"/>', "Own": '<w:basedOn w:val="H2"/>',
             "None": f'<w:basedOn w:val="H1"/>{number.format(0)}', "Loop": '<w:basedOn w:val="Loop"/>'}  # fmt: skip
    styles = "".join(f'<w:style w:styleId="{name}">{inside}</w:style>' for name, inside in based.items())
    body = "".join(paragraph(name, name) for name in ("H1", "H2", "Own", "None", "H1", "Own", "Loop"))
    members = {"styles": f"<w:styles {W}>{styles}</w:styles>", "numbering": f"<w:numbering {W}>{lists}</w:numbering>"}
    (tmp_path / "a.docx").write_bytes(docx(body, **members))
    (document,), rejects = read(tmp_path / "a.docx")
    lines = [line for line in document.text.split("\n") if line]
    assert lines == ["1 H1", "1.1 H2", "1.2 Own", "None", "2 H1", "2.1 Own", "Loop"] and not rejects


def test_properties_of_a_word_document_are_title_and_metadata(tmp_path):
    about = (
        "<dc:title> On\nBridges </dc:title><dc:creator>Ann &amp; Bo</dc:creator>"
        "<dcterms:created>2021-03-04T23:00:00Z</dcterms:created><dcterms:modified>2022-01-01T00:00:00Z</dcterms:modified>"
    )
    (tmp_path / "a.docx").write_bytes(docx(BODY, about))
    (tmp_path / "b.docx").write_bytes(docx(paragraph("x"), "<dcterms:modified>yesterday</dcterms:modified>"))
    (first, second), rejects = read(tmp_path)
    assert (first.title, first.metadata) == ("On Bridges", {"author": "Ann & Bo", "date": "2021-03-04"})
    assert (second.title, second.metadata) == ("b", {}) and not rejects


def test_a_word_document_with_a_broken_part_keeps_the_others(tmp_path):
    (tmp_path / "a.docx").write_bytes(docx(paragraph("x"), "<dc:title>", footnotes="<a"))
    documents, rejects = read(tmp_path / "a.docx")
    assert [d.text for d in documents] == ["x"]
    assert ["footnotes.xml is broken XML" in rejects[0].reason, "core.xml is broken XML" in rejects[1].reason] == [
        True
    ] * 2


def test_an_e_book_is_its_chapters_in_order(tmp_path):
    chapters = {
        "text/b%20one.xhtml": chapter("<h1>One</h1><p>First&nbsp;words.</p>", "<title/>"),
        "text/cover.xhtml": chapter('<img src="x.png"/>'),
        "text/a.xhtml": chapter('<p>Second<a id="p2"/> words.</p><script src="x"/><p>More.</p>'),
        "../OEBPS/c.xhtml": b"",
    }
    about = (
        "<dc:title>A Book</dc:title><dc:creator>Ann</dc:creator><dc:creator>Bo</dc:creator><dc:date>1999-05</dc:date>"
        "<dc:language>en</dc:language><dc:publisher>P</dc:publisher>"
    )
    nav = '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    (tmp_path / "a.epub").write_bytes(epub(chapters, about, nav))
    (document,), rejects = read(tmp_path / "a.epub")
    assert (document.title, document.text) == ("A Book", "One\n\nFirst words.\n\nSecond words.\n\nMore.")
    assert document.metadata == {"author": "Ann, Bo", "date": "1999-05", "language": "en", "publisher": "P"}
    assert [reject.reason[:35] for reject in rejects] == ["the chapter OEBPS/c.xhtml cannot be"]


LAUGHS = "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij"))
BILLION = f'<!DOCTYPE a [<!ENTITY a "ha">{LAUGHS}]>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


def locked(raw):
    """The flag of a password on each member."""
    out = bytearray(raw)
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = -1
        while (start := out.find(sign, start + 1)) >= 0:
            struct.pack_into("<H", out, start + place, 1)
    return bytes(out)


def overlong(name, size):
    """A package whose member unpacks to `size` bytes of blanks."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package, package.open(name, "w") as stream:
        for _ in range(size >> 20):
            stream.write(b" " * (1 << 20))
    return out.getvalue()


GOOD = docx(paragraph("fine"))
HOSTILE = {
    "bomb.docx": (overlong("word/document.xml", 80 << 20), "over 200 times as many"),
    "bomb.epub": (overlong("META-INF/container.xml", 80 << 20), "over 200 times as many"),
    "laughs.docx": (zipped({"word/document.xml": f"{BILLION}<a>&j;</a>"}), "word/document.xml declares entities"),
    "laughs.epub": (zipped({"META-INF/container.xml": f"{BILLION}<a>&j;</a>"}), "declares entities"),
    "outside.docx": (zipped({"word/document.xml": f"{OUTSIDE}<a>&a;</a>"}), "declares entities"),
    "empty.docx": (zipped({}), "word/document.xml is not in the file"),
    "empty.epub": (zipped({}), "META-INF/container.xml is not in the file"),
    "words.docx": (b"just text", "not a zip file, or a broken one"),
    "old.docx": (b"\xd0\xcf\x11\xe0" + bytes(600), "encrypted with a password, or an old .doc"),
    "cut.docx": (GOOD[: len(GOOD) // 2], "not a zip file, or a broken one"),
    "damaged.docx": (GOOD.replace(b"PK\x03\x04", b"PK\x03\x05"), "cannot be unpacked"),
    "locked.docx": (locked(GOOD), "password required"),
    "blank.docx": (docx(paragraph(" ")), "the document has no text"),
    "deep.docx": (docx("<w:a>" * 300_000), "broken XML"),
    "leads-out.docx": (
        zipped({"_rels/.rels": '<a><Relationship Type="x/officeDocument" Target="../../../etc/passwd"/></a>'}),
        "etc/passwd is not in the file",
    ),
    "leads-out.epub": (
        epub({"../../../../etc/passwd": b""}),
        "no chapter of the book has text: the chapter etc/passwd",
    ),
    "locked.epub": (
        epub({"a.xhtml": chapter("x")}, encryption='<a><CipherReference URI="OEBPS/a.xhtml"/></a>'),
        "OEBPS/a.xhtml cannot be read: it is encrypted",
    ),
    "nameless.epub": (zipped({"META-INF/container.xml": "<a/>"}), "names no book"),
    "pictures.epub": (epub({"a.xhtml": chapter("<img/>")}), "no chapter of the book has text"),
}


def test_hostile_packages_are_rejects_and_the_files_between_them_are_read(tmp_path):
    for name, (raw, _) in HOSTILE.items():
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "x.docx").write_bytes(GOOD)
    documents, rejects = read(tmp_path)
    assert [(d.id, d.text) for d in documents] == [("x.docx", "fine")]
    reasons = {reject.file.rsplit("/", 1)[1]: reject.reason for reject in rejects}
    assert len(rejects) == len(HOSTILE)
    for name, (_, said) in HOSTILE.items():
        assert said in reasons[name], (name, reasons[name])


def test_packages_keep_to_the_limits(tmp_path):
    (tmp_path / "a.docx").write_bytes(docx(paragraph("words " * 100)))
    (tmp_path / "b.epub").write_bytes(epub({f"{i}.xhtml": chapter("<p>words words</p>") for i in range(50)}))
    documents, rejects = read(tmp_path, max_document_chars=400)
    assert (
        not documents and all("max_document_chars = 400" in reject.reason for reject in rejects) and len(rejects) == 2
    )
    documents, rejects = read(tmp_path, max_file_bytes=5_000)
    assert "max_file_bytes = 5000" in rejects[-1].reason
