"""The time and tokens of a run, by stage and with the LLM's idle time: for --json, and as a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpu_rag_kernels.dispatch import spelled

from gpu_rag.models.llm.interface import ServerAccount
from gpu_rag.runtime.accounts import RunStats
from gpu_rag.runtime.occupancy import NOTHING_LEFT, QUESTIONS, RAMP_UP, Occupancy
from gpu_rag.types import FALLBACKS

CAUSES = {  # (cause of idle time, in words)
    "ramp_up": (RAMP_UP, "ramp-up"),
    "graph": ("graph", "waiting for graph and search"),
    "embedding": ("embedding", "waiting for embedding"),
    "programs": ("programs", "waiting for programs"),
    "questions": (QUESTIONS, "no question open"),
    "nothing_left": (NOTHING_LEFT, "nothing left to ask"),
}

SERVER_HEADER = ["server", "requests", "busy", "wait", "prompt tokens", "cached", "generated", "failures", "retries"]
SERVER_HEADER += ["preempted"]


def servers_document(servers: Iterable[ServerAccount], wall_s: float) -> dict[str, Any]:
    """{"servers": servers of the language model, with the busy share of `wall_s` of each}; {} without servers."""
    busy = [{**asdict(server), "busy_share": server.busy_s / wall_s if wall_s else 0.0} for server in servers]
    return {"servers": busy} if busy else {}


def server_lines(document: Mapping[str, Any]) -> list[str]:
    """Lines about the servers of the language model."""
    lines = [
        f"{name}: " + ", ".join(f"{what} {value}" for what, value in zip(SERVER_HEADER[1:], values))
        for name, *values in server_rows(document)
    ]
    odd = {"estimated": "replies with an estimated count of tokens", "other_model": "replies by another model"}
    return lines + [
        f"{server['name']}: {server[key]:,} {words}"
        for server in document.get("servers", ())
        for key, words in odd.items()
        if server.get(key)
    ]


def rerank_lines(entry: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The cost of a reranker as a line; [] without one."""
    if not (cost := entry.get("rerank")):
        return []
    return [f"{prefix}reranked: {cost['requests']:,} requests, {cost['pairs']:,} pairs, {cost['s']:.1f} s"]


def server_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """A row for each server of the language model, under SERVER_HEADER."""
    return [
        [
            server["name"],
            f"{server['requests']:,}",
            f"{100 * server['busy_share']:.0f} %",
            f"{server['queue_s'] / max(server['requests'], 1):.2f} s",
            *(f"{server[f'{kind}_tokens']:,}" for kind in ("prompt", "cached", "generated")),
            *(f"{server[key]:,}" for key in ("failures", "retries")),
            "-" if server["preemptions"] is None else f"{server['preemptions']:,}",
        ]
        for server in document.get("servers", ())
    ]


def graph_ops_line(ops: Mapping[str, str]) -> str:
    """The implementations of each graph op, in one line."""
    return ", ".join(f"{op} by {names}" for op, names in ops.items()) or "none"


def joined_ops(records: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One record of the implementations of graph ops, joined from several methods or stages."""
    names_of_op: dict[str, set[str]] = {}
    for record in records:
        for op, names in record.items():
            names_of_op.setdefault(op, set()).update(names.split(", "))
    return spelled(names_of_op)


def llm_account(stats: RunStats) -> dict[str, Any]:
    """LLM statistics of a run: idle time and its causes, open requests on average, prefix hit rate."""
    llm: Occupancy = stats.llm
    prompt = sum(cost.prompt_tokens for cost in stats.stages.values())
    cached = sum(cost.cached_tokens for cost in stats.stages.values())
    return {
        "idle_share": llm.share,
        "busy_s": llm.busy_s,
        "idle_s": {name: llm.idle_s.get(cause, 0.0) for name, (cause, _) in CAUSES.items()},
        "prefix_hit_rate": cached / prompt if prompt else None,
        "mean_open": llm.mean_open,
    }


def idle_line(account: Mapping[str, Any]) -> str:
    """A line such as "LLM idle 12.0 % of 25.3 s, because: ...". Causes under 0.1 % of the time are left out."""
    if account["idle_share"] is None:
        return "LLM: nothing was asked in this run"
    wall = account["busy_s"] + sum(account["idle_s"].values())
    shares = {CAUSES[name][1]: 100 * s / wall for name, s in account["idle_s"].items()}
    reasons = [f"{name} {p:.1f} %" for name, p in sorted(shares.items(), key=lambda item: -item[1]) if p >= 0.1]
    because = f", because: {', '.join(reasons)}" if reasons else ""
    rate = account["prefix_hit_rate"]
    hits = "" if rate is None else f"; prefix cache hit rate {100 * rate:.0f} %"
    queue = f"; {account['mean_open']:.1f} requests open on average"
    return f"LLM idle {100 * account['idle_share']:.1f} % of {wall:.1f} s{because}{queue}{hits}"


def fallbacks_line(fallbacks: Mapping[str, Mapping[str, int]], n_read: int) -> str:
    """A line such as "replies: 120 read; lenient 3, rule 1 (plan 3, choose 1)"."""
    kinds = {kind: sum(counts[kind] for counts in fallbacks.values()) for kind in FALLBACKS}
    shown = ", ".join(f"{kind} {n:,}" for kind, n in kinds.items() if n) or "all in the form asked for"
    steps = ", ".join(f"{step} {sum(counts.values()):,}" for step, counts in fallbacks.items())
    return f"replies: {n_read:,} read; {shown}{f' ({steps})' if steps else ''}"
