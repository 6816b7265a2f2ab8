"""docs/reference/names.md says what became of each name of the originals: it must be so."""

import re
from functools import cache
from pathlib import Path

from dragoman.config.catalog import RETIRED, SETTINGS
from dragoman.store.keys import TABLE
from dragoman.tools.reference import metric_name, registry
from support.tables import for_each

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src/dragoman"
PAGE = (ROOT / "docs/reference/names.md").read_text(encoding="utf-8")
INLINE = re.compile(r"`([^`]+)`")
VERDICTS = ("kept", "renamed", "replaced", "refused", "left out")

ROWS = [
    (name, verdict, where)
    for section in PAGE.split("\n## ")[1:]
    for name, verdict, where in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ?([^|]*)\|$", section, re.M)
    if name not in ("name", "---")
]


def rows(*verdicts: str) -> list[tuple[str, str, str]]:
    return [row for row in ROWS if row[1].startswith(verdicts)]


@cache
def everything() -> str:
    """All of the source, the tests but those of the pages, and the tables of the database."""
    folders = [SOURCE, ROOT / "tests"]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".lua", ".sql")]
    return "\n".join(path.read_text(encoding="utf-8") for path in found if path != Path(__file__))


@cache
def metrics() -> set[str]:
    return {name for metric in registry() for name in (metric.name, metric_name(metric))}


def file_named(where: str) -> Path | None:
    """The file a row points to: below the source, or from the root."""
    for name in INLINE.findall(where):
        for folder in (SOURCE, ROOT):
            if (folder / name).is_file():
                return Path(folder / name)
    return None


def is_there(name: str, place: Path | None) -> bool:
    """A setting, a metric, a key of the data model, or these very words in the file that is named."""
    if name in SETTINGS or name in metrics():
        return True
    shape = re.sub(r"<\w+>", "<>", name.replace("{prefix}", "P"))
    if shape in {re.sub(r"<\w+>", "<>", key.name) for key in TABLE}:
        return True
    if place is None:
        return False
    text = place.read_text(encoding="utf-8")
    return (
        name in (place.stem, place.name) or re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", text) is not None
    )


def test_every_row_has_a_verdict() -> None:
    assert len(ROWS) > 80
    assert [row for row in ROWS if not row[1].startswith(VERDICTS)] == []


@for_each(rows("kept"))
def test_kept_names_exist(name: str, verdict: str, where: str) -> None:
    place = file_named(where)
    meant = INLINE.findall(name) or INLINE.findall(verdict)
    assert meant
    if "in `dragoman " not in verdict:
        meant += INLINE.findall(verdict)
    assert [each for each in meant if not is_there(each, place)] == []


@for_each(rows("renamed", "replaced"))
def test_replacements_exist(name: str, verdict: str, where: str) -> None:
    for new in INLINE.findall(verdict):
        if new.startswith("make "):
            assert re.search(rf"^{new.removeprefix('make ')}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        else:
            assert is_there(new, file_named(where)) or new in everything() or list(SOURCE.rglob(new)), new


def test_cluster_acceptance_runs_every_acceptance_test_of_the_originals() -> None:
    recipe = re.search(r"^cluster-acceptance:.*\n\t(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert recipe is not None
    folders = re.findall(r"\btests/\S+", recipe[1])
    run = {name for folder in folders for path in (ROOT / folder).rglob("*.py") for name in _tests_of(path)}
    named = {f"test_{word}" for name, _, _ in ROWS for word in INLINE.findall(name) if re.match(r"phase2_\w+_", word)}
    assert len(named) == 5
    assert named <= run


def _tests_of(path: Path) -> list[str]:
    return re.findall(r"^async def (test_\w+)\(", path.read_text(encoding="utf-8"), re.M)


def test_every_place_exists() -> None:
    missing = [
        word
        for _, _, where in ROWS
        for word in INLINE.findall(where)
        if "/" in word and not (SOURCE / word).exists() and not (ROOT / word).exists()
    ]
    assert missing == []


def test_the_names_refused_are_those_that_are_refused() -> None:
    assert {each for name, _, _ in rows("refused") for each in INLINE.findall(name)} == set(RETIRED)


@for_each(["MissingResult", "SessionAffinityManager", "pending_acknowledgments", "lingua:v1", "ClientMsgIdIdempotency"])
def test_removed_names_are_not_used(name: str) -> None:
    assert name in PAGE
    assert not [path for path in SOURCE.rglob("*.py") if name in path.read_text(encoding="utf-8")]
