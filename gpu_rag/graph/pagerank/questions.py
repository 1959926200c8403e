"""What PageRank on one device and PageRank of shards do alike: questions solved in f32, then in f64, and proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gpu_rag.errors import GpuRagError
from gpu_rag.graph.pagerank.plan import Array, Plan
from gpu_rag.graph.pagerank.solve import Gaps, Tile, solve_tile
from gpu_rag.graph.pagerank.teleport import Teleport

F64_GAP = 32 * 2.0**-52  # about the L1 gap below which steps in f64 may show rounding alone
Unsolved = tuple[Array, Array, Array]  # questions that are not within the tolerance, their bounds and their steps
SolveIn = Callable[[torch.dtype, Array, Array], Unsolved]  # of (precision, questions, their rows of the result)


def solve_questions(
    teleport: Teleport, plan: Plan, dtypes: Sequence[torch.dtype], first: int, last: int, result: torch.Tensor,
    solve_in: SolveIn,
) -> None:  # fmt: skip
    """Solves questions first..last into the rows of `result`, in each precision those that the one before could not
    bring within the tolerance. The row of a question without seeds is 0. Raises GpuRagError for one that none can."""
    questions = np.arange(first, last)
    empty = teleport.is_empty(questions)
    if empty.any():
        result[torch.from_numpy(empty).to(result.device)] = 0.0
    questions = questions[~empty]
    bound, steps = np.zeros(0), np.zeros(0)
    for dtype in dtypes:
        if len(questions):
            questions, bound, steps = solve_in(dtype, questions, questions - first)
    if len(questions):
        raise GpuRagError(
            "PageRank did not converge",
            given=f"question {questions[0]}: L1 error up to {bound[0]:.2g} after {int(steps[0])} steps",
            expected=f"<= {plan.tol:g} within {plan.max_iter}",
            do=way_out(float(bound[0]), plan.damping),
        )


def way_out(bound: float, damping: float) -> str:
    """What helps where a proved error stays above the tolerance: more steps, unless the gap is of the size of rounding,
    which the proof takes 2 d / (1 - d) times."""
    if bound * (1 - damping) <= 2 * damping * F64_GAP:
        reached = f"raise tol to {1.1 * bound:.1e}, or lower damping"
        return f"{reached}: what is left is of the size of rounding in f64, which more steps may not lower"
    return "raise max_iter, or lower damping"


def solve_columns(
    tile: Tile, plan: Plan, questions: Array, rows: Array, least_mass: Array, result: torch.Tensor,
    gaps: Gaps | None = None, taken: int = 0,
) -> Unsolved:  # fmt: skip
    """`solve_tile` of questions that are the first columns of `tile`, whose rows of `result` then sum to 1."""
    to = np.full(tile.width, -1, np.int64)
    to[: len(rows)] = rows
    solved = solve_tile(tile, plan, to, least_mass, gaps, taken)
    scale = np.ones(result.shape[0])
    scale[rows] = solved.scale[: len(rows)]
    if (scale != 1).any():
        result.mul_(torch.from_numpy(scale).to(result)[:, None])
    failed = solved.unsolved
    return questions[failed], solved.bound[failed], solved.steps[failed]


def least_mass(plan: Plan, teleport: Teleport, dangling: torch.Tensor | None, questions: Array, width: int) -> Array:
    """f64[width]: |q|_1 where it is known, else its lower bound 1 - d; 1 for unused columns.

    dangling: bool[N], nodes without outgoing weight; None where there are none.
    """
    least = np.ones(width)
    if not plan.known_mass:
        least[:] = 1 - plan.damping
    elif dangling is not None:
        least[: len(questions)] -= plan.damping * teleport.mass_on(dangling, questions)
    return least
