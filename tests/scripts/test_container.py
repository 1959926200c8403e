"""Dockerfile and compose.yaml: their files exist, their commands are commands of today, and the health check checks."""

import json
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_rag.cli.main import build_parser
from gpu_rag.cli.options import settings_of

ROOT = Path(__file__).resolve().parents[2]
LINES = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)).splitlines()
INSTRUCTIONS = [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in LINES if line)]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def only(word: str) -> str:
    (rest,) = [rest for name, rest in INSTRUCTIONS if name == word]
    return rest


def test_what_is_copied_exists_and_is_all_that_a_build_needs() -> None:
    copied = {source for name, rest in INSTRUCTIONS if name == "COPY" for source in rest.split()[:-1]}
    assert copied and all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["packages"], *wheel["shared-data"], project["project"]["readme"], "pyproject.toml"]
    needed += project["project"]["license-files"]
    assert {name.split("/")[0] for name in needed} <= copied


def test_its_shell_is_sound_and_its_user_has_no_rights() -> None:
    for name, rest in INSTRUCTIONS:
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)
    order = [name for name, _ in INSTRUCTIONS]
    assert int(only("USER")) > 0 and order.index("USER") > max(i for i, name in enumerate(order) if name == "RUN")
    assert f"--uid {only('USER')}" in " ".join(rest for name, rest in INSTRUCTIONS if name == "RUN")


def test_extras_are_those_of_the_project() -> None:
    builds = [service["build"] for service in COMPOSE["services"].values()]
    chosen = [build["args"]["EXTRAS"] for build in builds if isinstance(build, dict)]
    chosen.append(only("ARG").removeprefix("EXTRAS="))
    assert (
        {extra for text in chosen for extra in text.split(",")} == {"cpu", "gpu", "documents", "serve"} <= set(EXTRAS)
    )


@pytest.mark.parametrize("name", ["image", *COMPOSE["services"]])
def test_its_command_is_one_of_the_command_line(name: str) -> None:
    words = json.loads(only("CMD")) if name == "image" else COMPOSE["services"][name]["command"]
    assert json.loads(only("ENTRYPOINT")) == ["gpu-rag"]
    options = build_parser(words[0]).parse_args(words)
    assert (options.command, options.host, str(options.port)) == ("serve", "0.0.0.0", only("EXPOSE"))
    assert all(Path(folder).is_relative_to(only("VOLUME")) for folder in options.indexes)
    settings_of(options, {})  # raises for a setting or profile that is none
    if name != "image":
        service: dict[str, Any] = COMPOSE["services"][name]
        assert service["profiles"] == [name] and (options.profile or "cpu") == name
        assert service["ports"] == [f"127.0.0.1:{only('EXPOSE')}:{only('EXPOSE')}"], "this machine alone"
        volume, _, place = service["volumes"][0].partition(":")
        assert volume in COMPOSE["volumes"] and place == only("VOLUME")


def test_commands_in_comments_parse() -> None:
    text = (ROOT / "compose.yaml").read_text()
    (words,) = re.findall(r"docker compose run .* cpu (index .*)$", text, re.M)
    assert str(build_parser("index").parse_args(words.split()).out).startswith(only("VOLUME"))


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_passes_only_when_the_server_is_ready(status: int) -> None:
    seen = []

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _, code, program = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
        own = f":{only('EXPOSE')}/"
        assert code == "-c" and program.count(own) == 1
        run = subprocess.run(
            [sys.executable, "-c", program.replace(own, f":{server.server_port}/")], capture_output=True
        )
        server.shutdown()
    assert seen == ["/ready"] and (run.returncode == 0) == (status == 200)
