"""A small sample corpus with questions, for the demonstration and for tests.

The corpus holds 75 short articles of our own on real people, places, works and voyages, in five clusters that meet:
the physics of radioactivity, composers of Leipzig and Vienna, Renaissance Florence and Milan, pioneers of computing,
and sea and polar exploration. Articles name one another's titles, and some share a surname on purpose. The 30
questions need two to four of the articles joined; `gold_ids` lists these in hop order.

Both files are JSON lines in UTF-8. A corpus row is {id, title, text}, where id is "p_" and the first 12 hex digits of
the SHA-1 of title, newline, text. A question row is {id, question, answers, hops, type, gold_ids}; type is "bridge"
(two hops), "chain" (three or four) or "comparison".

The larger sample, in `world/`: 440 shorter passages, a third of them distractors, on bridges and rivers, mountains,
elements, opera, novels, ships, astronomy, scripts, plants and museums; 60 questions of two to four hops whose bridges
are not named, each written from the passages before any method was tried on them; and ready triples, written passage by
passage without sight of the questions, as a capable model would extract them.

The same facts are a knowledge graph, `facts.tsv`, of 815 ready triples whose relations were brought to 49 names, and a
knowledge base, `nodes.jsonl`: what the graph names, with types, and with passages as texts. `kg-questions.jsonl` and
`kb-questions.jsonl` are a few plain questions over them, for methods over knowledge bases.
"""

import json
from importlib.resources import files
from pathlib import Path

__all__ = ["corpus_path", "questions_path", "world_files", "world_path"]

COPIED = ("corpus.jsonl", "questions.jsonl", "openie.jsonl", "facts.tsv", "kb-questions.jsonl", "kg-questions.jsonl")


def corpus_path() -> Path:
    """The file of the sample corpus: 75 JSON lines of {id, title, text}."""
    return Path(str(files(__name__) / "corpus.jsonl"))


def questions_path() -> Path:
    """The file of the sample questions: 30 JSON lines of {id, question, answers, hops, type, gold_ids}."""
    return Path(str(files(__name__) / "questions.jsonl"))


def world_path(name: str) -> Path:
    """A file of the larger sample, one of `COPIED` or nodes.jsonl."""
    return Path(str(files(__name__) / "world" / name))


def world_files() -> dict[str, str]:
    """The larger sample as files of a folder: by name, their text. The knowledge base is in `world/`."""
    texts_by_name = {name: world_path(name).read_text(encoding="utf-8") for name in COPIED}
    texts = {row["id"]: row["text"] for row in map(json.loads, texts_by_name["corpus.jsonl"].splitlines())}
    nodes = [json.loads(line) for line in world_path("nodes.jsonl").read_text(encoding="utf-8").splitlines()]
    ids = {node["name"]: node["id"] for node in nodes}
    facts = [line.split("\t") for line in texts_by_name["facts.tsv"].splitlines()[1:]]
    edges = [f"{ids[head]}\t{relation}\t{ids[tail]}\n" for head, relation, tail, _ in facts]
    for node in nodes:
        if "passage" in node:
            node["text"] = texts[node.pop("passage")]
    texts_by_name["world/nodes.jsonl"] = "".join(json.dumps(node, ensure_ascii=False) + "\n" for node in nodes)
    texts_by_name["world/edges.tsv"] = "src\trelation\tdst\n" + "".join(edges)
    return texts_by_name
