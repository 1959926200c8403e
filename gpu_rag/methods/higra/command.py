"""gpu-rag merges: list the names that an index treats as one entity, and edit these merges."""

from __future__ import annotations

import argparse
from typing import Any

from gpu_rag.cli.options import add_index, add_limit, add_list, say

HELP = "List the merges of names in an index; reject or force some for the next build."
EXAMPLE = 'gpu-rag merges my-index --find "curie"'
WHY = ["exact", "semantic", "forced", "quarantined"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_index(parser)
    parser.add_argument("--find", default="", metavar="TEXT", help="only merges with this text in a name")
    parser.add_argument("--why", choices=WHY, help="only merges made for this reason")
    add_limit(parser, "merges")
    add_list(parser, "--reject", "ID", "keep the names of a merge apart", type=str)
    add_list(parser, "--force", "NAME", "make two names one; stronger than a rejection", nargs=2, type=str)
    add_list(parser, "--undo", "ID", "take an edit back", type=str)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Make the edits that the options name, then list the merges."""
    from gpu_rag.errors import MissingLayer
    from gpu_rag.index.index import Index
    from gpu_rag.methods.higra.merges import open_merges

    if "higra_merge" not in Index.open(options.index).stages:
        raise MissingLayer(
            "this index has merged no names",
            given=f"{options.index} without higra_merge",
            expected="one that is built for a higra method",
            do=f"run: gpu-rag index CORPUS --out {options.index} --for higra-retriever "
            "(CORPUS, --kg, --skb, --source, --openie and settings as before)",
        )
    merges = open_merges(options.index)
    edited = bool(options.reject or options.force or options.undo)
    if edited:
        merges.undo(options.undo)
        merges.reject(options.reject)
        for name, other in options.force:
            merges.force(name, other)
        merges.save()
        say(f"gpu-rag: edits kept in {merges.path}; run gpu-rag index again to apply them")
    document = _document(merges, options, edited)
    return 0, document, _text(document, edited)


def _document(merges: Any, options: argparse.Namespace, edited: bool) -> dict[str, Any]:
    matching = merges.matching(options.find, options.why or "")
    edits = [{"id": e.id, "action": e.action, "members": list(e.members)} for e in merges.edits]
    shown = matching[: options.limit]
    return {
        "index": str(options.index),
        "n": len(matching),
        "edited": edited,
        "merges": shown,
        "edits": edits,
        "pairs": merges.pairs,
    }


def _text(document: dict[str, Any], edited: bool) -> str:
    from gpu_rag.methods.higra.report import coverage_lines

    lines = []
    for row in document["merges"] if not edited else ():
        others = [name for name in row["members"] if name != row["entity"]]
        names = " = ".join([row["entity"], *others]) if row["entity"] else " | ".join(others)
        lines.append(f"{row['id']}  {row['why']:8}  {row['score']:.3f}  {names}  ({row['rule']})")
    if not edited:
        lines += coverage_lines(document["pairs"])
        lines.append(f"{len(document['merges'])} of {document['n']} merges")
    lines += [f"edit {edit['id']}: {edit['action']} {' = '.join(edit['members'])}" for edit in document["edits"]]
    return "\n".join(lines or ["no edits"])
