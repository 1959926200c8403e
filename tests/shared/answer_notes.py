"""Notes of an answer on how it was found, and the task of a request."""

from functools import cache
from importlib.resources import files

from gpu_rag.text.prompts import Prompt
from gpu_rag.types import Answer, Request


def noted(answer: Answer, verb: str) -> list[tuple[str, ...]]:
    """The choices of each step of the trace by that name."""
    return [step.chosen for step in answer.trace if step.verb == verb]


def chosen(answer: Answer, verb: str) -> tuple[str, ...]:
    """The choices of the only step by that name."""
    (found,) = noted(answer, verb)
    return found


def verbs(answer: Answer) -> list[str]:
    """The names of all steps."""
    return [step.verb for step in answer.trace]


def ranking(answer: Answer) -> list[str]:
    """The passages of the evidence."""
    return [evidence.passage_id for evidence in answer.evidence]


def found(answer: Answer, pool: str) -> set[str]:
    """The entities on the paths that were held under that name."""
    return {name for one in answer.pools if one.name == pool for name in one.entities}


@cache
def _systems(method: str) -> dict[str, str]:
    packages = ("gpu_rag.program.prompts", f"gpu_rag.methods.{method}.prompts")
    names = [(p, file.name[:-4]) for p in packages for file in files(p).iterdir() if file.name.endswith(".txt")]
    return {Prompt.read(package, name).system: name for package, name in names}


def role(request: Request, method: str) -> str:
    """The prompt that a request is made of, by the name of its file."""
    return _systems(method)[request.system]
