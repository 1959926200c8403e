"""The share of a model's choices that lead to gold, and the share of the rule's choices on the same options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_rag.models.ask import Choose, Fields
from gpu_rag.program.decide import RULE, options_of
from gpu_rag.program.oracle import Oracle, helpful_among
from gpu_rag.program.run import Run


@dataclass(frozen=True)
class ChoiceShares:
    """Shares by the name of the choice, over all choices among options of which some lead to gold.

    oracle: knows the gold. The share of a choice: how many of its taken options lead to gold; 0 if it took none.
    Choices among options that all lead to gold are left out, since no decider can fail there.
    """

    oracle: Oracle
    shares: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)

    async def see(self, run: Run, choose: Choose, fields: Fields, taken: Sequence[int]) -> None:
        """Count one choice; `Run.on_choice`."""
        gold, n = self.oracle.known(run, choose.name), len(fields["options"])
        if choose.helps is None or gold is None:
            return
        helpful = await helpful_among(n, choose, fields, gold)
        if 0 < len(helpful) < n:
            by_rule = (await RULE.choice(run, choose, options_of(choose, fields), fields)).value
            shares = (_share(taken, helpful), _share(by_rule, helpful), len(helpful) / n)
            self.shares.setdefault(choose.name, []).append(shares)

    def entry(self) -> dict[str, Any]:
        """{name: {"n", "right", "rule", "chance"}}: number of choices, mean shares of the decider, of the rule, and of
        one random option."""
        means = {name: [sum(column) / len(rows) for column in zip(*rows)] for name, rows in self.shares.items()}
        return {
            name: {"n": len(self.shares[name]), "right": right, "rule": rule, "chance": chance}
            for name, (right, rule, chance) in sorted(means.items())
        }


def _share(taken: Sequence[int], helpful: Sequence[int]) -> float:
    return sum(i in helpful for i in taken) / len(taken) if taken else 0.0
