"""Keys of model servers: one variable for all, or a variable for each address."""

import pytest

from gpu_rag.cli.options import api_key
from gpu_rag.errors import UsageError
from gpu_rag.settings import Settings, make_settings

A, B = "http://a:8000/v1", "https://b/v1"


def settings(*entries: str, judge: str = "") -> Settings:
    models = {"llm": f"{A}#m,{A}2#m", "api_keys": list(entries)}
    return make_settings({"models": models, "eval": {"judge": judge}})


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in ("GPU_RAG_API_KEY", "KEY_A", "KEY_B"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for all")


def test_one_key_for_all_as_long_as_no_address_has_its_own(monkeypatch):
    assert api_key(settings()) == "for all"
    monkeypatch.setenv("GPU_RAG_API_KEY", "ours")
    assert api_key(settings()) == "ours"
    monkeypatch.setenv("KEY_A", " secret\n")
    assert api_key(settings(f"{A}=KEY_A")) == {A: "secret"}


def test_a_variable_that_is_not_set_matters_where_its_server_is_used():
    assert api_key(settings(f"{B}=KEY_B")) == {}
    for used in (settings(f"{A}/=KEY_A"), settings(f"{B}=KEY_B", judge=f"{B}#judge")):
        with pytest.raises(UsageError, match=r"key of a model server is not set; given KEY_., for http"):
            api_key(used)
    with pytest.raises(UsageError, match="KEY_B"):
        api_key(settings(f"{B}=KEY_B"), f"{B}#other")


@pytest.mark.parametrize("entry", ["KEY_A", f"{A}", "=KEY_A", f"{A}=", "a:8000=KEY_A"])
def test_what_cannot_be_read(entry):
    with pytest.raises(UsageError, match=r"cannot read models.api_keys"):
        api_key(settings(entry))
