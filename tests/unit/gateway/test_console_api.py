"""The console's files: complete, in both languages, and with nothing in them that its policy would refuse."""

import re
from importlib.resources import files
from pathlib import Path

from dragoman.domain.chat.switches import NAMES
from dragoman.domain.job import Outcome
from dragoman.domain.release import Settled
from dragoman.domain.turn import AffinityResult
from dragoman.gateway import console_api

FOLDER = Path(str(files("dragoman.web"))) / "console"
HTML = (FOLDER / "index.html").read_text(encoding="utf-8")
SCRIPTS = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.js")}


def words(code: str) -> set[str]:
    return set(re.findall(r'^  "([\w.]+)":', SCRIPTS[f"words_{code}.js"], re.M))


def test_every_file_is_a_path_of_its_own() -> None:
    paths = {route.path for route in console_api.files()}
    assert paths == {"/console"} | {f"/console/{file.name}" for file in FOLDER.iterdir() if file.name != "index.html"}


def test_only_files_that_are_there_are_named_and_nothing_is_inline() -> None:
    named = set(re.findall(r'(?:src|href)="/console/([^"]+)"', HTML))
    for script in SCRIPTS.values():
        named |= set(re.findall(r'from "\./([^"]+)"', script))
    assert {name for name in named if not (FOLDER / name).exists()} == set()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|https?://", HTML)
    assert not [name for name, script in SCRIPTS.items() if re.search(r"innerHTML|insertAdjacentHTML|\beval\(", script)]


def test_every_module_is_asked_for_at_once_and_not_one_behind_another() -> None:
    asked = {
        *re.findall(r'"modulepreload" href="/console/([^"]+)"', HTML),
        *re.findall(r'src="/console/([^"]+)"', HTML),
    }
    assert asked == set(SCRIPTS)


def test_both_languages_say_everything_that_is_asked_for() -> None:
    assert words("en") == words("zh")
    asked = set(re.findall(r'data-(?:word|label|hint)="([\w.]+)"', HTML))
    for script in SCRIPTS.values():
        asked |= set(re.findall(r'(?:head|word|title|empty|"data-hint"|"data-label"): "([a-z][\w.]+)"', script))
        asked |= set(re.findall(r'(?:say|word|section|button|confirmed|named)\([^"`)]*"([\w.]+\.[\w.]+)"', script))
    assert asked - words("en") == set()


def test_whatever_the_server_names_has_a_word() -> None:
    wanted = {f"outcome.{one}" for one in Outcome} | {f"release.{one}" for one in Settled}
    wanted |= {f"why.turn.{one}" for one in AffinityResult} | {f"switch.{name}" for name in NAMES}
    assert wanted - words("en") == set()
