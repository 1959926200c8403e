"""Chapters and sections: where they begin in the text of a file, and the titles of its passages."""

from pathlib import Path

import pytest
from office_files import NS, pptx, shape
from package_files import chapter, docx, epub, paragraph, zipped
from pdf_files import pdf
from source_files import documents_of as read

import gpu_rag

WEIRS, LOCKS = "The old weir was built of oak. " * 6, "The lock keeper lives in Vell. " * 6
MARKDOWN = f"# The Orn\n\n```\n# no heading\n```\n{WEIRS}\n\n## Locks (new)\n\n{LOCKS}\n"
PAGE = (
    "<html><title>The Orn</title><body><nav><h2>Menu</h2></nav><div class='sidebar'><h3>Ads</h3>Buy</div>"
    f"<main>\n <h1>The  <b>Orn</b></h1><p>{WEIRS}</p><h2>Locks (new)</h2><p>{LOCKS}</p></main></body></html>"
)
BOOK = {
    "a.xhtml": chapter(f"<h1>The Orn</h1><p>{WEIRS}</p>"),
    "b.xhtml": chapter(f"<p>{LOCKS}</p>", "<title>Locks (new)</title>"),
}
FILES: dict[str, bytes] = {
    "orn.md": MARKDOWN.encode(),
    "orn.rst": f"The Orn\n=======\n{WEIRS}\n\nLocks (new)\n-----------\n{LOCKS}\n".encode(),
    "orn.html": PAGE.encode(),
    "orn.epub": epub(BOOK, "<dc:title>The Orn</dc:title>"),
    "orn.docx": docx(
        paragraph("The Orn", "Heading1") + paragraph(WEIRS) + paragraph("Locks (new)", "Heading2") + paragraph(LOCKS),
        "<dc:title>The Orn</dc:title>",
    ),
    "orn.odt": zipped(
        {
            "content.xml": f"<office:body {NS}><text:h>The Orn</text:h><text:p>{WEIRS}</text:p>"
            f"<text:h>Locks (new)</text:h><text:p>{LOCKS}</text:p></office:body>",
            "meta.xml": f"<office:meta {NS}><dc:title>The Orn</dc:title></office:meta>",
        }
    ),
    "orn.pptx": pptx([shape("The Orn", "title") + shape(WEIRS), shape("Locks (new)", "title") + shape(LOCKS)]),
    "orn.pdf": pdf([WEIRS, LOCKS], "The Orn", outline={"The Orn": 0, "Locks \\(new\\)": 1}),
}


@pytest.mark.parametrize("name", FILES)
def test_where_sections_begin(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    (document,), rejects = read(tmp_path / name)
    assert not rejects and document.title == "The Orn"
    assert [words for _, words in document.headings] == ["The Orn", "Locks (new)"]
    starts = [offset for offset, _ in document.headings]
    assert (
        starts[0] == 0 and document.text.count("weir", 0, starts[1]) == 6 and "weir" not in document.text[starts[1] :]
    )
    assert name.endswith((".pdf", ".epub")) or document.text[starts[1] :].lstrip("# ").startswith("Locks (new)")


@pytest.mark.parametrize("name", FILES)
def test_passages_are_titled_by_their_section(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / name).write_bytes(FILES[name])
    settings = {"index": {"chunk_words": 20, "overlap_words": 0}, "models": {"embedder": "hash", "llm": "none"}}
    with gpu_rag.build(folder, tmp_path / "index", settings=settings) as index:
        rows = index.passages.select(["title", "text"]).to_pylist()
        assert {row["title"] for row in rows if "lock" not in row["text"]} == {"The Orn"}
        assert "The Orn (Locks new)" in {row["title"] for row in rows if "weir" not in row["text"]}
        assert "Orn (Locks" not in " ".join(index.entity_names), "all passages are about one thing"


def test_a_short_document_keeps_its_title(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.md").write_text("# The Orn\n\n## Locks\n\nThe lock keeper lives in Vell.\n")
    settings = {"models": {"embedder": "hash", "llm": "none"}}
    with gpu_rag.build(folder, tmp_path / "index", settings=settings) as index:
        assert index.passages["title"].to_pylist() == ["The Orn"]


def test_a_passage_of_several_sections_is_titled_by_the_first_and_the_last(tmp_path: Path) -> None:
    """Its middle one would name a wrong place for most sentences."""
    folder = tmp_path / "files"
    folder.mkdir()
    rules = (f"## Rule {n}\n\nBell {n} is rung by the guard of car {n} before it leaves.\n\n" for n in range(1, 9))
    (folder / "a.md").write_text("# Rules\n\n" + "".join(rules))
    settings = {"index": {"chunk_words": 40, "overlap_words": 0}, "models": {"embedder": "hash", "llm": "none"}}
    with gpu_rag.build(folder, tmp_path / "index", settings=settings) as index:
        for row in index.passages.select(["title", "text"]).to_pylist():
            rung = [int(words.split()[0]) for words in row["text"].split("Bell ")[1:]]
            assert row["title"] == f"Rules (Rule {rung[0]} - Rule {rung[-1]})" and len(rung) > 1
