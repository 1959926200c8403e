"""Word documents and e-books written by hand: zip files of XML."""

import io
import zipfile
from collections.abc import Mapping

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_CORE = (
    'xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
    'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/"'
)


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    """A zip file of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in members.items():
            package.writestr(name, content)
    return out.getvalue()


def paragraph(text: str, style: str = "", more: str = "") -> str:
    """One paragraph of a Word document."""
    about = f'<w:pPr><w:pStyle w:val="{style}"/>{more}</w:pPr>' if style or more else ""
    return f'<w:p>{about}<w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def docx(body: str, properties: str = "", **members: str | bytes) -> bytes:
    """A Word document with this body; members: others, by their names below word/."""
    relations = (
        f'<Relationships xmlns="{_RELATIONS}">'
        f'<Relationship Id="a" Type="{_RELATION}/officeDocument" Target="word/document.xml"/>'
        f'<Relationship Id="b" Type="{_RELATION}/metadata/core-properties" Target="docProps/core.xml"/>'
        "</Relationships>"
    )
    return zipped(
        {
            "_rels/.rels": relations,
            "word/document.xml": f'<?xml version="1.0"?><w:document {W}><w:body>{body}</w:body></w:document>',
            "docProps/core.xml": f"<cp:coreProperties {_CORE}>{properties}</cp:coreProperties>",
            **{f"word/{name}.xml": content for name, content in members.items()},
        }
    )


def chapter(text: str, title: str = "<title>T</title>") -> str:
    """One chapter of an e-book."""
    return (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>'
        f'<html xmlns="http://www.w3.org/1999/xhtml"><head>{title}</head><body>{text}</body></html>'
    )


def epub(chapters: Mapping[str, str | bytes], about: str = "", more: str = "", **members: str | bytes) -> bytes:
    """An e-book of these chapters, by their paths below OEBPS/; more: items of its manifest; members: of META-INF."""
    names = list(chapters)
    items = "".join(f'<item id="c{i}" href="{n}" media-type="application/xhtml+xml"/>' for i, n in enumerate(names))
    spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(names)))
    book = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{about}</metadata>'
        f'<manifest>{items}{more}</manifest><spine><itemref idref="nav"/>{spine}</spine></package>'
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": container,
            "OEBPS/book.opf": book,
            **{f"OEBPS/{name.replace('%20', ' ')}": content for name, content in chapters.items()},
            **{f"META-INF/{name}.xml": content for name, content in members.items()},
        }
    )
