"""Office files and mails written by hand: slides, OpenDocument, sheets, Rich Text, mails, and mails of Outlook."""

import struct
from email.message import EmailMessage

from package_files import zipped

_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
A = 'xmlns:a="x:a" xmlns:p="x:p" xmlns:r="x:r"'


def relations(**targets):
    items = "".join(
        f'<Relationship Id="{id}" Type="{_OFFICE}/{kind}" Target="{target}"/>' for id, (kind, target) in targets.items()
    )
    return f'<Relationships xmlns="{_RELATIONS}">{items}</Relationships>'


def shape(text, kind="body"):
    paragraphs = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n"))
    return f'<p:sp><p:nvPr><p:ph type="{kind}"/></p:nvPr><p:txBody>{paragraphs}</p:txBody></p:sp>'


def pptx(slides, **more):
    """Slides as XML, listed in the presentation in the reverse of the order of their relations."""
    names = {f"r{i}": ("slide", f"slides/slide{i}.xml") for i in range(len(slides), 0, -1)}
    order = "".join(f'<p:sldId id="{300 - i}" r:id="r{i}"/>' for i in range(1, len(slides) + 1))
    return zipped(
        {
            "ppt/presentation.xml": f"<p:presentation {A}><p:sldIdLst>{order}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": relations(**names),
            **{f"ppt/slides/slide{i}.xml": f"<p:sld {A}>{slide}</p:sld>" for i, slide in enumerate(slides, 1)},
            **more,
        }
    )


NS = " ".join(f'xmlns:{name}="urn:{name}"' for name in ("office", "text", "table", "style", "draw", "meta", "dc"))
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def xlsx(rows, hidden="<row r='1'><c r='A1' t='inlineStr'><is><t>secret</t></is></c></row>"):
    """A workbook of the sheets Bridges, of these rows, and of one that is hidden."""
    sheet = f'<worksheet xmlns="{_MAIN}"><sheetData>%s</sheetData></worksheet>'
    parts = {"workbook": "sheet.main", "worksheets/a": "worksheet", "worksheets/b": "worksheet", "styles": "styles"}
    types = "".join(
        f'<Override PartName="/xl/{name}.xml" ContentType="{_TYPES}.{kind}+xml"/>' for name, kind in parts.items()
    )
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{types}'
            "</Types>",
            "_rels/.rels": relations(a=("officeDocument", "xl/workbook.xml")),
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
            '<sheet name="Bridges" sheetId="1" r:id="a"/>'
            '<sheet name="Hidden" sheetId="2" state="hidden" r:id="b"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": relations(
                a=("worksheet", "worksheets/a.xml"), b=("worksheet", "worksheets/b.xml"), s=("styles", "styles.xml")
            ),
            "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><numFmts><numFmt numFmtId="164" formatCode="0.0%"/>'
            '<numFmt numFmtId="165" formatCode="0.0&quot;%&quot;\\%"/></numFmts>'
            '<cellStyleXfs><xf numFmtId="9"/></cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/>'
            '<xf numFmtId="9"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs></styleSheet>',
            "xl/worksheets/a.xml": sheet % rows,
            "xl/worksheets/b.xml": sheet % hidden,
        }
    )


def row(number, *cells):
    kinds = {str: "<c r='{0}' t='inlineStr'><is><t>{1}</t></is></c>", bool: "<c r='{0}' t='b'><v>{1:d}</v></c>"}
    written = (
        kinds.get(type(value), "<c r='{0}'><v>{1}</v></c>").format(f"{column}{number}", value)
        for column, value in zip("ABCDEFG", cells)
    )
    return f"<row r='{number}'>{''.join(written)}</row>"


def mail(plain="The bridge is old.\nIt crosses the Ves.\n", html="", **headers):
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "Brücken", "Ann <ann@example.org>", "bo@example.org"
    message["Date"] = "Thu, 04 Mar 2021 23:00:00 -0500"
    if plain:
        message.set_content(plain)
    if html:
        (message.add_alternative if plain else message.set_content)(html, subtype="html")
    return message


def ole(streams):
    """A compound file of these streams, by path; all are shorter than 4,096 bytes, so they are in the short stream."""
    paths = sorted({"/".join(name.split("/")[:i]) for name in streams for i in range(1, name.count("/") + 2)})
    small, starts, chain = b"", {}, []
    for name, content in streams.items():
        starts[name], n = len(small) // 64, max(1, -(-len(content) // 64))
        small += content.ljust(64 * n, b"\0")
        chain += [*range(starts[name] + 1, starts[name] + n), 0xFFFFFFFE]

    def entry(name, kind, child, right, start, size):
        raw = name.encode("utf-16-le")
        return (
            raw.ljust(64, b"\0")
            + struct.pack("<HBBIII", len(raw) + 2, kind, 1, 0xFFFFFFFF, right, child)
            + bytes(36)
            + struct.pack("<IQ", start, size)
        )

    def children(parent):
        return [i for i, path in enumerate(paths, 1) if path.rpartition("/")[0] == parent]

    def first(parent):
        return next(iter(children(parent)), 0xFFFFFFFF)

    n_directory, n_small = -(-(len(paths) + 1) // 4), -(-len(small) // 512)
    entries = [entry("Root Entry", 5, first(""), 0xFFFFFFFF, 2 + n_directory, len(small))]
    for number, path in enumerate(paths, 1):
        rest = [i for i in children(path.rpartition("/")[0]) if i > number]
        is_stream = path in streams
        entries.append(
            entry(path.rpartition("/")[2], 2 if is_stream else 1, first(path), [*rest, 0xFFFFFFFF][0],
                  starts.get(path, 0), len(streams.get(path, b"")))
        )  # fmt: skip
    directory = b"".join(entries).ljust(512 * n_directory, b"\0")
    table = [0xFFFFFFFD, 0xFFFFFFFE, *range(3, 2 + n_directory), 0xFFFFFFFE]
    table += [*range(3 + n_directory, 2 + n_directory + n_small), 0xFFFFFFFE]
    fat = struct.pack(f"<{len(table)}I", *table).ljust(512, b"\xff")
    minifat = struct.pack(f"<{len(chain)}I", *chain).ljust(512, b"\xff")
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    head += struct.pack("<HHHHH6xIIIIIIIII", 62, 3, 0xFFFE, 9, 6, 0, 1, 2, 0, 4096, 1, 1, 0xFFFFFFFE, 0)
    return (
        (head + struct.pack("<I", 0)).ljust(512, b"\xff")
        + fat
        + minifat
        + directory
        + small.ljust(512 * n_small, b"\0")
    )


def msg(body="The bridge is old.\r\nIt crosses the Ves.", **more):
    ticks = 132_593_724_000_000_000  # 2021-03-04 23:00 UTC
    texts = {"0037": "Brücken", "0C1A": "Ann", "5D01": "ann@example.org", "0E04": "bo@example.org", "1000": body}
    return ole(
        {
            **{f"__substg1.0_{id}001F": text.encode("utf-16-le") for id, text in texts.items() if text},
            "__properties_version1.0": bytes(32) + struct.pack("<IIQ", 0x00390040, 6, ticks),
            **more,
        }
    )


def sound_file(suffix, words):
    """A file of a kind that holds these words, as bytes."""
    return {
        ".pptx": lambda: pptx([shape(words)]),
        ".odt": lambda: zipped({"content.xml": f"<office:body {NS}><text:p>{words}</text:p></office:body>"}),
        ".xlsx": lambda: xlsx(row(1, words)),
        ".rtf": lambda: rb"{\rtf1 " + words.encode() + b"}",
        ".eml": lambda: bytes(mail(words)),
        ".msg": lambda: msg(words),
        ".zip": lambda: zipped({"a.txt": words, "b/c.jsonl": '{"text": "x"}\n'}),
    }[suffix]()


OFFICE = (".pptx", ".odt", ".xlsx", ".rtf", ".eml", ".msg")
