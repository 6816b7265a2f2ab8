import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman.cli.advisories import CONTROL, FAIR, HOLES, UNASKED, CannotAsk, verdict

HOLE = {"id": "PYSEC-2019-217", "fix_versions": ["2.10.1"], "aliases": [], "description": ""}


def told(*rows: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(rows), "fixes": []})


def fair(name: str) -> dict[str, object]:
    return {"name": name, "version": "1.0", "vulns": []}


KNOWN = told({"name": CONTROL[0], "version": CONTROL[1], "vulns": [HOLE]})
SKIPPED = told({"name": "aiohttp", "skip_reason": "Dependency not found on PyPI and could not be audited: aiohttp"})


class Service:
    """pip-audit as it answers; `answers`: by what it is asked about, and by which service."""

    def __init__(self, folder: Path, lock: str, control: str = KNOWN, away: Sequence[str] = ()) -> None:
        self.folder, self._lock, self._control, self._away = folder, lock, control, away
        self.said: list[str] = []

    def run(self, args: Sequence[str]) -> str:
        if args[args.index("-s") + 1] in self._away:
            raise CannotAsk("no connection")
        return self._control if args[-1].endswith("control.txt") else self._lock

    def verdict(self) -> int:
        return verdict(self.run, self.folder, ["requirements.lock"], self.said.append)


def test_no_known_hole_is_said_only_of_packages_that_were_looked_up(tmp_path: Path) -> None:
    service = Service(tmp_path, told(fair("aiohttp"), fair("msgspec")))
    assert service.verdict() == FAIR
    assert service.said == ["pypi knows of no hole in 2 packages of requirements.lock."]


def test_a_hole_is_named_with_what_mends_it(tmp_path: Path) -> None:
    service = Service(tmp_path, KNOWN)
    assert service.verdict() == HOLES
    assert service.said == ["HOLE: jinja2 2.10: PYSEC-2019-217, mended in 2.10.1"]


def test_packages_that_were_skipped_are_not_fair(tmp_path: Path) -> None:
    service = Service(tmp_path, SKIPPED)
    assert service.verdict() == UNASKED
    assert service.said == ["NOT ASKED: pypi does not know aiohttp."]


def test_a_service_that_knows_of_no_hole_at_all_is_not_believed(tmp_path: Path) -> None:
    service = Service(tmp_path, told(fair("aiohttp")), control=told(fair(CONTROL[0])))
    assert service.verdict() == UNASKED
    assert "does not know of the hole in jinja2 2.10" in service.said[0]
    assert "could NOT be checked" in service.said[-1]


def test_when_one_service_is_away_the_other_is_asked(tmp_path: Path) -> None:
    service = Service(tmp_path, told(fair("aiohttp")), away=["pypi"])
    assert service.verdict() == FAIR
    assert service.said[0] == "NOT ASKED: pypi: no connection."
    assert service.said[1].startswith("osv knows of no hole")


@pytest.mark.parametrize("nonsense", ["", "{", "[]", '{"x": 1}', "null"])
def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path, nonsense: str) -> None:
    service = Service(tmp_path, KNOWN, control=nonsense)
    assert service.verdict() == UNASKED
    assert "could NOT be checked" in service.said[-1]
