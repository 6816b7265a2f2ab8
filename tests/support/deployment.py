"""The files of deploy/, read: services of the compose file, variables filled in, and instructions of the image."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
INSTANCES = {name: service for name, service in SERVICES.items() if service.get("command") == ["serve"]}
REDIS = {name: service for name, service in SERVICES.items() if re.fullmatch(r"redis-\d", name)}
SECRETS = {"DRAGOMAN_SECURITY__SECRET": "s" * 64, "POSTGRES_PASSWORD": "p" * 64}


def filled(text: str, given: Mapping[str, str] = SECRETS) -> str:
    """As compose would: `${NAME}`, `${NAME:?why}` and `${NAME:-otherwise}`."""
    return re.sub(
        r"\$\{(\w+)(?::([?-])([^}]*))?\}", lambda found: given.get(found[1], found[3] if found[2] == "-" else ""), text
    )


def environment(name: str, given: Mapping[str, str] = SECRETS) -> dict[str, str]:
    return {key: filled(str(value), given) for key, value in SERVICES[name]["environment"].items()}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.partition(" ")[0], re.sub(r"\s+", " ", line.partition(" ")[2])) for line in lines]


def last(word: str) -> str:
    return [rest for each, rest in instructions() if each == word][-1]
