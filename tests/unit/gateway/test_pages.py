"""The files of the page and of the console, under a policy that allows this host alone."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from dragoman.domain.chat.rules import Registration
from dragoman.domain.chat.switches import NAMES
from dragoman.domain.fleet import Node
from dragoman.domain.job import Outcome
from dragoman.domain.placement import AffinityResult
from dragoman.domain.release import Settled
from dragoman.domain.sample_sentences import SENTENCES
from dragoman.gateway import operator_api, operator_chat_api, pages, room_api
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.http_application import application
from dragoman.gateway.operator_api import ACTIONS, Auditor, HttpContext
from dragoman.gateway.pages import MAX_GROUPS, SampleFailed, Samples, groups
from dragoman.protocol.codes import RoomEnd, RoomErrorCode

WEB = Path(str(files("dragoman.web")))
PAGE, ROOM, CONSOLE = WEB / "page", WEB / "room", WEB / "console"


def node(name: str, hears: str, writes: str, *, draining: bool = False, public: bool = True) -> Node:
    heard, written = frozenset(hears.split()), frozenset(writes.split())
    return Node(name, 1, "i1", 4, heard, written, draining=draining, public=public)


@asynccontextmanager
async def serving(
    *nodes: Node, samples: Samples | None = None
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    app = web.Application()
    app.add_routes(pages.routes(lambda: nodes, samples or Samples("/nonexistent")))
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/room", "/room/4b0a6f2e-9c1d-4a53-8a9e-0d6d4c1f7b21"])
async def test_page_has_a_policy_that_allows_only_this_host(path: str) -> None:
    async with serving() as client, client.get(path) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split(";"))
        assert {rules[kind] for kind in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
        assert {rules[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("registration", "value"),
    [
        (Registration("open", private=True), "private"),
        (Registration("closed", private=False, min_password_length=12), "closed"),
        (Registration("invite", private=False, min_password_length=12), "invite"),
    ],
)
async def test_page_gets_the_registration_policy(registration: Registration, value: str) -> None:
    app = web.Application()
    app.add_routes(pages.routes(list, registration=registration))
    async with TestClient(TestServer(app)) as client, client.get("/try") as answer:
        html = await answer.text()
    shown = f'content="{value}" data-min-password="{registration.min_password_length}"'
    assert f'<meta name="dragoman-accounts" {shown}>' in html
    assert "{{" not in html


async def test_cached_file_is_not_sent_again() -> None:
    async with serving() as client:
        async with client.get("/page/page.js") as first:
            etag, body = first.headers["ETag"], await first.text()
            assert body
            assert first.content_type == "text/javascript"
        async with client.get("/page/page.js", headers={"If-None-Match": etag}) as again:
            assert (again.status, await again.text()) == (304, "")
            assert again.headers["ETag"] == etag
            assert "Content-Security-Policy" in again.headers
        async with client.get("/page/page.js", headers={"If-None-Match": '"another"'}) as other:
            assert (other.status, await other.text()) == (200, body)


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/nothing.js",
        "/page/../pages.py",
        "/page/index.html",
        "/index.html",
        "/room/",
        "/room/nothing.js",
        "/captions/",
        "/captions/nothing.js",
    ],
)
async def test_other_paths_are_not_found(path: str) -> None:
    async with serving() as client, client.get(path) as answer:
        assert answer.status == 404


def test_page_serves_each_file_at_its_own_path() -> None:
    paths = [route.path for route in pages.routes(list) if isinstance(route, web.RouteDef)]
    assert len(paths) == len(set(paths))
    assert [path for path in paths if "{" in path] == [pages.ROOM, pages.CAPTIONS]
    assert {"/", "/try", "/room"} < set(paths)
    for folder in (PAGE, ROOM, PAGE.parent / "start", PAGE.parent / "captions"):
        assert {f"/{folder.name}/{file.name}" for file in folder.iterdir() if file.name != "index.html"} < set(paths)


# -- languages


def pairs(nodes: list[Node]) -> set[tuple[str, str]]:
    return {(a, b) for group in groups(nodes) for a in group["from"] for b in group["to"] if a != b}


def test_groups_are_what_the_nodes_serve_now_in_order() -> None:
    fleet = [node("a", "en es", "es en zh"), node("b", "fr", "en"), node("c", "de es", "zh en es")]
    assert groups(fleet) == [{"from": ["de", "en", "es"], "to": ["en", "es", "zh"]}, {"from": ["fr"], "to": ["en"]}]


def test_groups_stand_for_the_pairs_of_every_node_and_no_others() -> None:
    draw = Random(7)
    for _ in range(200):
        fleet = [
            node(str(n), *(" ".join(draw.sample("abcdef", draw.randint(0, 4))) for _ in range(2))) for n in range(4)
        ]
        served = {(a, b) for one in fleet for a in one.asr for b in one.semantic if a != b}
        assert pairs(fleet) == served
        assert {a for group in groups(fleet) for a in group["from"]} == {a for a, _ in served}


async def test_public_answer_lists_only_languages_of_nodes() -> None:
    codes = " ".join(f"language-{number:03}" for number in range(256))
    async with serving(node("a", codes, codes)) as client, client.get("/api/v1/public/languages") as answer:
        assert len(await answer.read()) < 3 * len(codes)


async def test_a_fleet_of_odd_nodes_does_not_make_the_answer_long_and_hides_no_usual_ones() -> None:
    odd = [node(f"odd-{n}", "en", " ".join(f"{'x' * 30}-{n}-{k}" for k in range(256))) for n in range(100)]
    usual = [node("a", "en", "es"), node("b", "en", "es")]
    async with serving(*odd, *usual) as client, client.get("/api/v1/public/languages") as answer:
        body = await answer.read()
    value = json.loads(body)["groups"]
    assert len(body) < 200_000
    assert value[0] == {"from": ["en"], "to": ["es"]}
    assert len(value) <= MAX_GROUPS


def test_languages_of_texts_are_those_of_nodes_that_can_be_used() -> None:
    pairs = {"a": [("fr", "de"), ("auto", "es")], "b": [("it", "fr")], "c": [("pt", "fr")]}
    fleet = [replace(node(name, "", ""), text=frozenset(text)) for name, text in pairs.items()]
    fleet[1] = replace(fleet[1], draining=True)
    fleet[2] = replace(fleet[2], public=False)
    assert pages.text_languages(fleet) == ["de", "es", "fr"]


def test_draining_and_private_nodes_offer_no_language() -> None:
    assert (
        groups([node("a", "en", "es", draining=True), node("b", "en", "es", public=False), node("c", "en", "en")]) == []
    )


async def test_the_languages_name_no_node() -> None:
    async with serving(node("secret-name", "en", "es")) as client, client.get("/api/v1/public/languages") as answer:
        assert await answer.json() == {"groups": [{"from": ["en"], "to": ["es"]}], "samples": ["en"], "text": []}
        assert answer.headers["Cache-Control"] == "no-store"


# -- the sample


def a_voice(folder: Path, *lines: str) -> Samples:
    """Something in the place of espeak-ng."""
    program = folder / "voice"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o755)
    return Samples(str(program))


async def test_sample_is_synthesised_once_and_has_its_length(tmp_path: Path) -> None:
    counted = tmp_path / "count"
    samples = a_voice(tmp_path, f"echo . >> {counted}", "head -c 100 /dev/zero")
    async with serving(samples=samples) as client:
        for _ in range(2):
            async with client.get("/sample.wav?lang=en") as answer:
                body = await answer.read()
                assert (answer.content_type, len(body)) == ("audio/wav", 100)
                assert body[4:8] == (92).to_bytes(4, "little")
                assert body[40:44] == (56).to_bytes(4, "little")
    assert counted.read_text().count(".") == 1


async def test_only_known_sentences_are_spoken(tmp_path: Path) -> None:
    async with serving(samples=a_voice(tmp_path, "exit 0")) as client, client.get("/sample.wav?lang=tlh") as answer:
        assert answer.status == 404


async def test_failing_voice_is_reported_in_words(tmp_path: Path) -> None:
    async with serving(samples=a_voice(tmp_path, "exit 3")) as client, client.get("/sample.wav") as answer:
        assert answer.status == 503
        assert "espeak-ng" in (await answer.json())["error"]
    with pytest.raises(SampleFailed):
        await Samples(str(tmp_path / "missing")).spoken("en")


def test_every_sample_has_a_voice_and_a_sentence() -> None:
    assert all(len(said) > 1 and all(said) for said in SENTENCES.values())


def words(site: Path, code: str) -> set[str]:
    return set(re.findall(r'^  "([\w.]+)":', (site / f"words_{code}.js").read_text(encoding="utf-8"), re.M))


def test_console_serves_each_file_at_its_own_path() -> None:
    paths = {route.path for route in operator_api.console_files()}
    assert paths == {"/console"} | {f"/console/{file.name}" for file in CONSOLE.iterdir() if file.name != "index.html"}


SITES = pytest.mark.parametrize("site", [PAGE, ROOM, CONSOLE], ids=lambda site: site.name)
WORKLET = PAGE / "tap.js"  # asked for when somebody speaks


def html_of(site: Path) -> str:
    return (site / "index.html").read_text(encoding="utf-8")


def modules_of(site: Path) -> set[Path]:
    """The script of the page, and every module that it imports, also from another site."""
    found, left = set(), [site / f"{site.name}.js"]
    while left:
        script = left.pop().resolve()
        if script not in found:
            found.add(script)
            imported = re.findall(r'^import [^"]*from "(\.[^"]+)"', script.read_text(encoding="utf-8"), re.M)
            left += [script.parent / name for name in imported]
    return found


@SITES
def test_site_names_only_files_that_are_there_and_nothing_inline(site: Path) -> None:
    named = {WEB / name for name in re.findall(r'(?:src|href)="/((?:page|room|console)/[^"]+)"', html_of(site))}
    assert {path for path in named | modules_of(site) if not path.exists()} == set()
    for script in modules_of(site):
        assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\(", script.read_text(encoding="utf-8"))
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|https?://", html_of(site))


@SITES
def test_site_preloads_every_module_and_has_no_other(site: Path) -> None:
    html = pages.with_preloads(html_of(site))
    asked = {WEB / name for name in re.findall(r'(?:"modulepreload" href|src)="/([^"]+\.js)"', html)}
    assert asked == modules_of(site)
    assert set(site.glob("*.js")) - asked <= {WORKLET}


@SITES
def test_both_languages_have_every_text_of_a_site(site: Path) -> None:
    assert words(site, "en") == words(site, "zh")
    known = words(site, "en") | (words(PAGE, "en") if site is ROOM else set())
    asked = set(re.findall(r'data-(?:word|label|hint)="([\w.]+)"', html_of(site)))
    for script in (file.read_text(encoding="utf-8") for file in site.glob("[!w]*.js")):
        if site is CONSOLE:
            asked |= set(re.findall(r'(?:head|word|title|empty|"data-hint"|"data-label"): "([a-z][\w.]+)"', script))
            asked |= set(re.findall(r'(?:say|word|section|button|confirmed|named)\([^"`)]*"([\w.]+\.[\w.]+)"', script))
        else:
            groups = {key.partition(".")[0] for key in known}
            asked |= {key for key in re.findall(r'"(\w+\.[\w.]+)"', script) if key.partition(".")[0] in groups}
    beginnings = {key[:end] for key in known for end in range(len(key) + 1) if key[end : end + 1] in (".", "")}
    assert asked - beginnings == set()


def test_page_of_a_room_has_words_for_every_refusal_and_every_end() -> None:
    refusals = set(RoomErrorCode) - {RoomErrorCode.ALREADY_IN_ROOM}  # the page leaves the other room
    assert not [one for one in refusals if not words(ROOM, "en") & {f"room.end.{one}", f"room.error.{one}"}]
    assert {f"room.end.{reason}" for reason in RoomEnd} <= words(ROOM, "en")


def test_console_translates_every_name_of_the_server() -> None:
    wanted = {f"outcome.{one}" for one in Outcome} | {f"release.{one}" for one in Settled}
    wanted |= {f"why.turn.{one}" for one in AffinityResult} | {f"switch.{name}" for name in NAMES}
    assert wanted - words(CONSOLE, "en") == set()


READING = ("GET", "HEAD", "OPTIONS", "*")


def operators_application() -> web.Application:
    """All routes for operators, around nothing: they are only looked at."""
    nothing = cast(Any, None)
    auditor = Auditor(nothing, "here")
    stage = HttpContext("here", nothing, nothing, nothing, nothing, dict, lambda: None, auditor)
    operators = [
        *operator_chat_api.routes(Mock(), auditor, nothing),
        *operator_api.console_routes(Mock(), auditor),
        *operator_chat_api.revocation_routes(nothing, nothing, nothing, auditor),
        *room_api.operator_routes(nothing, nothing, auditor),
    ]
    return application(stage, Authenticator((), "us"), (), operators)


def test_every_route_that_changes_something_is_an_action_of_the_audit_and_the_other_way_round() -> None:
    changing = {
        (route.method, route.resource.canonical)
        for route in operators_application().router.routes()
        if route.method not in READING and route.resource is not None
    }
    assert changing == set(ACTIONS)
