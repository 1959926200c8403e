"""Checks of the arguments of public functions, before anything is opened. The code behind them trusts its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from gpu_rag.errors import UsageError
from gpu_rag.index.index import Index
from gpu_rag.models.llm.interface import LLM, ApiKeys
from gpu_rag.settings import Settings, make_settings, merge
from gpu_rag.settings.ranges import MAX_INTEGER

PathLike = str | Path
IndexLike = Index | PathLike
SettingsLike = Settings | Mapping[str, Any] | None


def checked_path(name: str, given: object) -> Path:
    """A path, also that of an open Index. Raises UsageError for "" and for other types."""
    given = given.path if isinstance(given, Index) else given
    if not isinstance(given, (str, Path)) or not str(given) or given == "":
        raise UsageError(f"{name} is not a path", given=repr(given)[:80], expected="a path")
    return Path(given)


def checked_paths(name: str, given: object) -> tuple[Path, ...]:
    """One path or several."""
    several = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(checked_path(name, item) for item in several)


def checked_count(name: str, given: object) -> int | None:
    """An integer from 1, also NumPy's, or None. Raises UsageError."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, Integral) or not 1 <= int(given) <= MAX_INTEGER:
        raise UsageError(f"{name} is not a count", given=repr(given)[:80], expected="a whole number above 0")
    return int(given)


def checked_text(name: str, given: object, none: str | None = None) -> str:
    """A str. none: what None stands for, if it is allowed. Raises UsageError for other types."""
    given = none if given is None else given
    if not isinstance(given, str):
        raise UsageError(f"{name} is not a text", given=repr(given)[:80], expected="a text")
    return given


def checked_names(given: object) -> list[str]:
    """Names of methods from a comma-separated text or several texts, without duplicates, in order."""
    several = given.split(",") if isinstance(given, str) else given
    if not isinstance(several, (list, tuple)):
        raise UsageError("methods are not names", given=repr(given)[:80], expected="a name, or a list of names")
    return list(dict.fromkeys(checked_text("methods", item).strip() for item in several))


def checked_key(given: object) -> ApiKeys:
    """The key of a model server, or {address: key}."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) and all(isinstance(part, str) for item in given.items() for part in item):
        return given
    raise UsageError("api_key is not a key", given=type(given).__name__, expected="a text, or {address: key}")


def checked_settings(
    settings: object, saved: Mapping[str, Any], *, llm: object = None, embedder: object = None
) -> tuple[Settings, LLM | None]:
    """The settings with the models that separate arguments name, and the language model if it is an object.

    saved: settings of the index, which the given ones override. Raises UsageError.
    """
    models: dict[str, Any] = {}
    if isinstance(llm, str):
        models["llm"], llm = llm, None
    elif llm is not None and not callable(getattr(llm, "complete", None)):
        expected = "a name, such as http://HOST:PORT/v1#MODEL, or an object with `complete`"
        raise UsageError("llm is not a language model", given=type(llm).__name__, expected=expected)
    if embedder is not None:
        models["embedder"] = checked_text("embedder", embedder)
    if isinstance(settings, Settings):
        return (settings.changed("models", **models) if models else settings), llm  # type: ignore[return-value]
    if settings is not None and not isinstance(settings, Mapping):
        raise UsageError(
            "settings are not sections", given=type(settings).__name__, expected="{'section': {'name': ...}}"
        )
    return make_settings(merge(settings or {}, {"models": models} if models else {}), saved), llm  # type: ignore[return-value]
