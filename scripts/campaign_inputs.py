"""Broken inputs of the campaign: for each reader small valid inputs, changed by a seed, and a call of the reader."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broken_files import lines_from
from mutator import Mutator

LIMIT_S = 20
DOCS = [{"id": "a", "title": "Vell", "text": "Vell lies on the Orn."}, {"id": 7, "text": "Ünï 🌊"}]
CONTEXT = [["Vell", ["Vell is a town.", " It lies on the Orn."]], ["Orn", ["A river."]]]
HOTPOT = [{"_id": "1", "question": "q?", "answer": "a", "supporting_facts": [["Vell", 0]], "context": CONTEXT}]
QUESTIONS = [{"id": "1", "question": "Who?", "gold_ids": ["a", 7], "answers": ["x"]}, {"question": "What?"}]
OPENIE = [{"id": "a", "entities": ["Vell", "Orn"], "triples": [["Vell", "on", "Orn"]]}]
TRIPLES = b"head\trelation\ttail\nVell\tlies on\tOrn\n\xc3\x9cn\xc3\xaf\tr_1\t\xf0\x9f\x8c\x8a\n"
NODES = [{"id": "n1", "type": "drug", "name": "Vell", "text": "A drug."}, {"id": 7, "name": "Orn"}]
EDGES = [{"src": "n1", "relation": "treats", "dst": 7}]
HTML = b"<!DOCTYPE html><html><head><title>Vell &amp; Orn</title></head><body><h1>Vell</h1><p>It is.<table><td>b"
ASK = {"method": "ppr", "questions": [{"id": "1", "question": "Who?"}], "passages": 3, "params": {"damping": 0.5}}
CHAT = {"model": "gpu-rag/ppr", "messages": [{"role": "user", "content": "Who?"}], "stream": False}
REPLY = {
    "entities": [{"name": "Vell", "aliases": ["V"], "types": ["place"], "description": "d"}],
    "triples": [["a", "b", "c"]],
}
NT = b'<http://x/Vell> <http://x/on> <http://x/Orn> .\n<http://x/Vell> <http://x/name> "V\\u00e9"@en .\n'
TTL = b'@prefix x: <http://x/> .\nx:Vell a x:Town ; x:on x:Orn , [ x:of "1"^^x:int ] .\n'
NS = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
RDF_XML = f'<r:RDF xmlns:r="{NS}" xmlns:x="http://x/"><x:T r:about="http://x/V"><x:on>O</x:on></x:T></r:RDF>'.encode()
GRAPHS = {
    "kg.tsv": TRIPLES, "kg.nt": NT, "kg.nq": NT, "kg.ttl": TTL, "kg.trig": TTL, "kg.rdf": RDF_XML,
    "kg.jsonld": b'{"@context": {"on": "http://x/on"}, "@id": "http://x/V", "on": [{"@id": "http://x/O"}, "text"]}',
}  # fmt: skip
EDIT = {"id": "m_1", "action": "reject", "members": ["a", "b"]}
WORDS = [
    "--json", "--debug", "--limit", "0", "-1", "1e999", "", " ", "\x1b[2J", "é" * 300, "--set", "index.block=0", "a=b",
    "models.llm=x", "--method", "ppr", "dense", "--out", "/dev/null", "--for", "all", "--k", "q1", "--format", "pyg",
    "--digest", "--find", "--reject", "m_1", "--force", "nan", "\udc80", "--profile", "cpu", "--help", "--at", "2,5",
]  # fmt: skip


def _any(mutator: Mutator, value: Any) -> bytes:
    if isinstance(value, bytes):
        return mutator.raw(value)
    return mutator.dumped(mutator.value(value)) if mutator.random.random() < 0.6 else mutator.raw(mutator.dumped(value))


def _corpus(name: str, rows: Any, folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.sources.corpus import read_corpus

    path = folder / name
    whole = not name.endswith(".jsonl")

    def take(mutator: Mutator | None) -> None:
        if mutator is None:
            sound = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
            path.write_bytes(sound if whole else b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        else:
            path.write_bytes(_any(mutator, rows) if whole else lines_from(mutator, rows))
        list(read_corpus([path]))

    return take


def _parquet(folder: Path) -> Callable[[Mutator | None], None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from gpu_rag.sources.corpus import read_corpus

    path, buffer = folder / "c.parquet", io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x y", "z"]}), buffer)

    def take(mutator: Mutator | None) -> None:
        path.write_bytes(buffer.getvalue() if mutator is None else mutator.raw(buffer.getvalue()))
        list(read_corpus([path]))

    return take


def _package(kind: str, folder: Path) -> Callable[[Mutator | None], None]:
    """Files of office programs: whole, or with broken members in a sound container."""
    import package_files
    import pdf_files

    from gpu_rag.sources.corpus import read_corpus

    path = folder / f"c.{kind}"
    body = package_files.paragraph("Vell lies on the Orn.") + package_files.paragraph("Orn", "Heading1")
    chapter = package_files.chapter("<h1>Vell</h1><p>It lies on the Orn.</p>")

    def take(mutator: Mutator | None) -> None:
        inner = (lambda text: text) if mutator is None else (lambda text: mutator.raw(text.encode()))
        if mutator is not None and mutator.random.random() < 0.5:
            inner, outer = (lambda text: text), mutator.raw
        else:
            outer = bytes
        content = {
            "docx": lambda: package_files.docx(
                "", document=inner(f"<w:document {package_files.W}>{body}</w:document>")
            ),
            "epub": lambda: package_files.epub({"a.xhtml": inner(chapter)}),
            "pdf": lambda: pdf_files.pdf(["Vell lies on the Orn.", "It is old."], "Vell", packed=inner("x") == "x"),
        }[kind]()
        path.write_bytes(outer(content))
        list(read_corpus([path]))

    return take


def _office(suffix: str, folder: Path) -> Callable[[Mutator | None], None]:
    import office_files

    return _corpus(f"c{suffix}", office_files.sound_file(suffix, "Vell lies on the Orn. " * 20), folder)


def _reader(read: Callable[[Path], Any], name: str, rows: list[Any], folder: Path) -> Callable[[Mutator | None], None]:
    path = folder / name

    def take(mutator: Mutator | None) -> None:
        sound = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        path.write_bytes(sound if mutator is None else lines_from(mutator, rows))
        items = read(path)
        if not isinstance(items, (tuple, list, dict)):
            list(items)

    return take


def _questions(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.sources.questions import read_questions

    return _reader(lambda path: list(read_questions(path)), "q.jsonl", QUESTIONS, folder)


def _openie(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.sources.corpus.openie import read_openie

    return _reader(lambda path: list(read_openie(path)), "o.jsonl", OPENIE, folder)


def _base(kind: str, folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.index.stages.knowledge_base.read import read_source
    from gpu_rag.index.work import NamedSource

    graphs = {"kg": ["kg.tsv"], "rdf": [name for name in GRAPHS if name != "kg.tsv"]}.get(kind, [])
    places = [folder / name for name in graphs] or [folder / "skb"]

    def take(mutator: Mutator | None) -> None:
        place = places[0] if mutator is None else mutator.random.choice(places)
        if graphs:
            sound = GRAPHS[place.name]
            place.write_bytes(sound if mutator is None else mutator.raw(sound))
        else:
            place.mkdir(exist_ok=True)
            for name, rows in (("nodes", NODES), ("edges", EDGES)):
                sound = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
                (place / f"{name}.jsonl").write_bytes(sound if mutator is None else lines_from(mutator, rows))
        read_source(NamedSource("s", "kg" if graphs else kind, place), lambda reject: None, 10_000)

    return take


def _edits(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.methods.higra.merges import read_edits

    path = folder / "merges.jsonl"

    def take(mutator: Mutator | None) -> None:
        path.write_bytes(b"" if mutator is None else lines_from(mutator, [EDIT, EDIT]))
        read_edits(path)

    return take


def _manifest(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.index.manifest import Manifest
    from gpu_rag.index.verify import verify
    from gpu_rag.methods.registry import stage_checks

    place = folder / "ix"
    shutil.copytree(folder.parent / "template", place)
    sound = json.loads((place / "manifest.json").read_text())
    plain = {name: part for name, part in sound.items() if name not in ("sha256", "blocks")}

    def take(mutator: Mutator | None) -> None:
        changed = sound if mutator is None else plain
        raw = (place / "manifest.json").read_bytes() if mutator is None else _any(mutator, changed)
        (place / "manifest.json").write_bytes(raw)
        manifest = Manifest.read(place)
        manifest.defaults(), manifest.digest()
        if mutator is None or mutator.random.random() < 0.1:
            verify(place, stage_checks())

    return take


def _replies(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.index.stages.extraction import Extracted
    from gpu_rag.models.llm.interface import reply_from_record
    from gpu_rag.program.reader import clean_answer
    from gpu_rag.text.lenient import read_json
    from gpu_rag.text.structs import schema_of

    record = {"text": "x", "finish_reason": "stop", "n_prompt": 1, "n_cached": 0, "n_generated": 2, "scores": [0.5]}

    def take(mutator: Mutator | None) -> None:
        raw = json.dumps(REPLY).encode() if mutator is None else _any(mutator, REPLY)
        text = raw.decode("utf-8", "replace")
        if mutator is not None and mutator.random.random() < 0.05:
            text += mutator.random.choice(("[", '{"a":', "```json\n", "<think>", "\\")) * 20_000
        read_json(text, schema_of(Extracted))
        clean_answer(text)
        changed = record if mutator is None else mutator.value(record)
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            reply_from_record(changed)

    return take


def _bodies(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.serve.bodies import read_ask, read_chat

    def take(mutator: Mutator | None) -> None:
        if mutator is None or mutator.random.random() < 0.5:
            read_ask(
                json.dumps(ASK).encode() if mutator is None else _any(mutator, ASK), ("ppr.damping",), retrieval=True
            )
        else:
            read_chat(_any(mutator, CHAT))

    return take


def _arguments(folder: Path) -> Callable[[Mutator | None], None]:
    from gpu_rag.cli.main import main

    place = folder / "ix"
    shutil.copytree(folder.parent / "template", place)
    off = ["--set", "models.embedder=hash", "--set", "models.llm=none"]
    questions = str(folder / "q.jsonl")
    commands = [
        ["verify", str(place)],
        ["merges", str(place)],
        ["explain", questions, "q"],
        ["ask", str(place), "Who?", "--method", "dense", *off],
        ["export", str(place), "--format", "graphml", "--out", str(folder / "g")],
        ["verify-answers", str(place), questions],
        ["eval", str(place), questions, *off],
        ["answer", str(place), questions, "--out", str(folder / "a.jsonl"), "--method", "dense", *off],
        ["index", questions, "--out", str(folder / "new"), *off],
    ]

    def take(mutator: Mutator | None) -> None:
        argv = list(commands[0])
        if mutator is not None:
            rand = mutator.random
            argv = list(rand.choice(commands))
            for _ in range(rand.choice((1, 1, 2, 4))):
                start = rand.randrange(1, len(argv) + 1)
                argv[start : start + rand.choice((0, 0, 1))] = [rand.choice(WORDS)]
            for name in ("new", "g", "a.jsonl"):
                shutil.rmtree(folder / name, ignore_errors=True)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as output:
                status = main(argv)
        except SystemExit as error:  # --help
            status = int(error.code or 0)
        if status not in (0, 1, 2, 3) or "internal error" in output.getvalue():
            raise AssertionError(f"{argv}: {status}: {output.getvalue()[-300:]}")

    return take


TARGETS: dict[str, Callable[[Path], Callable[[Mutator | None], None]]] = {
    "jsonl": lambda folder: _corpus("c.jsonl", DOCS, folder),
    "json": lambda folder: _corpus("c.json", HOTPOT, folder),
    "text": lambda folder: _corpus("c.md", b"# Vell\n\nVell lies on the Orn. ```\n# not\n", folder),
    "html": lambda folder: _corpus("c.html", HTML, folder),
    "csv": lambda folder: _corpus("c.csv", b'id,title,text\na,Vell,"It lies, on\nthe Orn"\nb,,\xc3\x9cn\n', folder),
    "parquet": _parquet,
    "docx": lambda folder: _package("docx", folder),
    "epub": lambda folder: _package("epub", folder),
    "pdf": lambda folder: _package("pdf", folder),
    **{
        suffix: lambda folder, suffix=suffix: _office(suffix, folder)
        for suffix in (".pptx", ".odt", ".xlsx", ".rtf", ".eml", ".msg", ".zip")
    },
    "questions": _questions,
    "openie": _openie,
    "kg": lambda folder: _base("kg", folder),
    "rdf": lambda folder: _base("rdf", folder),
    "skb": lambda folder: _base("skb", folder),
    "edits": _edits,
    "manifest": _manifest,
    "replies": _replies,
    "bodies": _bodies,
    "arguments": _arguments,
}


def _late(number: int, frame: object) -> None:
    raise TimeoutError(f"no end within {LIMIT_S} s")


def run(target: str, seed: str, n: int, folder: Path, most_mib: int) -> None:
    """Read n broken inputs: only our errors may occur, within the time of each, and `most_mib` above a good input."""
    from gpu_rag.errors import GpuRagError
    from gpu_rag.serve.refusal import Refusal

    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    take, mutator = TARGETS[target](folder), Mutator(0)
    mutator.random.seed(seed)
    take(None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGALRM, _late)
    for number in range(n):
        state = mutator.random.getstate()
        signal.alarm(LIMIT_S)
        try:
            take(mutator)
        except (GpuRagError, Refusal):
            pass
        except BaseException as error:
            error.add_note(f"input {number} of {seed}; state {hash(state)}")
            raise
        finally:
            signal.alarm(0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    if grown > most_mib:
        raise MemoryError(f"{grown} MiB above a good input")
