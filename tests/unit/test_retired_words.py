"""Words that were retired come back nowhere: in no identifier, file name, message or page.

`.ci/retired-words.txt` has one entry a line: a word, or several joined by `_`. An entry matches if its words follow
each other in an identifier, however it is written: `may_act` matches `wait_may_act`, `MayAct` and `mayAct`. A colon and
files, or folders that end with `/`, may follow: those use the word because the specification or the wire does.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / ".ci" / "retired-words.txt"
FOLDERS = ("src", "tests", "docs", "deploy")
SUFFIXES = {".py", ".lua", ".sql", ".js", ".css", ".html", ".md", ".toml", ".yaml", ".json"}
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def entries() -> dict[str, tuple[str, ...]]:
    found = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, exempt = line.partition(":")
            found[word.strip()] = tuple(exempt.split())
    return found


def files() -> list[Path]:
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted([*below, *ROOT.glob("*.md")])


def words(text: str) -> set[str]:
    """Every identifier as its parts in lower case, joined and enclosed by `_`."""
    return {f"_{'_'.join(PART.findall(name)).lower()}_" for name in set(IDENTIFIER.findall(text))}


def is_exempt(name: str, exempt: tuple[str, ...]) -> bool:
    return any(name == one or (one.endswith("/") and name.startswith(one)) for one in exempt)


def test_retired_words_are_used_nowhere() -> None:
    retired, back = entries(), []
    assert retired
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        there = " ".join(words(f"{name} {path.read_text(encoding='utf-8')}"))
        back += [
            f"{name}: {word}"
            for word, exempt in retired.items()
            if f"_{word}_" in there and not is_exempt(name, exempt)
        ]
    assert back == []


def test_exemptions_name_files_that_use_the_word() -> None:
    unused = [
        f"{word}: {one}"
        for word, exempt in entries().items()
        for one in exempt
        if not one.endswith("/") and f"_{word}_" not in " ".join(words((ROOT / one).read_text(encoding="utf-8")))
    ]
    assert unused == []
