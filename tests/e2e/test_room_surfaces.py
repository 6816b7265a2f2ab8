"""Rooms for operators, scripts and guests: HTTP and the command line, over a real server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dragoman.cli.main import run
from dragoman.client import Room, RoomRefused
from dragoman.domain.rooms import Role, RoomClaim
from dragoman.gateway.authentication import signed_token
from support.cluster import Cluster, running
from support.commands import Dragoman, answer
from support.raw_node import RawNode
from support.redis_servers import RedisAt
from support.rooms import FEATURES, translates
from support.waiting import wait_until

SECRET = "a secret of the test that is long enough"
TIMEOUT_S = 40.0
ROOMS = "/api/v1/rooms"


class Site:
    """One instance over HTTP, as an operator, a client or nobody."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.base, self.url = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/ws/session"

    async def ask(
        self, method: str, path: str, token: str = "", body: object = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        status, text = await self.raw(method, path, token, body, **headers)
        return status, json.loads(text)

    async def raw(
        self, method: str, path: str, token: str = "", body: object = None, **headers: str
    ) -> tuple[int, str]:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, self.base + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.text()

    async def opened(self, token: str = "", **settings: object) -> dict[str, Any]:
        status, row = await self.ask("POST", ROOMS, token, settings)
        assert status == 200, row
        return row

    async def guest(self, token: str = "", **asked: object) -> tuple[int, dict[str, Any]]:
        return await self.ask("POST", f"{ROOMS}/join", token, asked)

    def room(self, id: str, token: str = "", name: str = "Ann", speaks: str = "en", **options: Any) -> Room:
        return Room(self.url, room=id, name=name, speaks=speaks, token=token or None, **options)


def token_of(kind: Any, subject: str, tenant: str = "", claim: RoomClaim | None = None) -> str:
    return signed_token(SECRET, "dragoman", kind, subject, 86_400, tenant, room_claim=claim)


OPERATOR = token_of("operator", "olga")


@contextmanager
def cluster(redis: RedisAt, folder: Path) -> Iterator[tuple[asyncio.Runner, Cluster]]:
    with asyncio.Runner() as runner:
        standing = running(redis, folder)
        up = runner.run(standing.__aenter__())
        try:
            yield runner, up
        finally:
            runner.run(standing.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def sites(redis_server: RedisAt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """Two instances without a secret."""
    with cluster(redis_server, tmp_path_factory.mktemp("sites")) as (runner, up):
        here, there = runner.run(up.instance()), runner.run(up.instance())
        yield Site(here.port), Site(there.port)


@asynccontextmanager
async def translator(site: Site) -> AsyncIterator[None]:
    """A node that translates texts, at this instance."""
    async with aiohttp.ClientSession() as http:
        pairs = [["en", "es"], ["es", "en"]]
        node = await RawNode.dial(
            http, site.port, languages=(), work=translates, features=FEATURES, text_pairs=pairs, node_id="translator"
        )
        await wait_until(lambda: _is_listed(site, node.id), TIMEOUT_S)
        yield


async def _is_listed(site: Site, node_id: str) -> bool:
    nodes = (await site.ask("GET", "/api/v1/cluster"))[1]["nodes"]
    return any(node["node_id"] == node_id for node in nodes)


@pytest.fixture
def site(sites: tuple[Site, Site]) -> Site:
    return sites[0]


@pytest.fixture(scope="module")
def guarded_sites(redis_server: RedisAt, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """Two instances with a secret, behind a proxy on this machine."""
    with cluster(redis_server, tmp_path_factory.mktemp("guarded")) as (runner, up):
        flags: dict[str, Any] = {"security__secret": SECRET, "server__trusted_proxies": ["127.0.0.1"]}
        here, there = runner.run(up.instance(**flags)), runner.run(up.instance(**flags))
        yield Site(here.port), Site(there.port)


@pytest.fixture
def guarded(guarded_sites: tuple[Site, Site]) -> Site:
    return guarded_sites[0]


# ---------------------------------------------------------------- operators


async def test_operator_opens_lists_shows_and_closes_a_room_on_any_instance(sites: tuple[Site, Site]) -> None:
    here, there = sites
    opened = await here.opened(persistent=True, vocabulary=["Dragoman"])
    id = opened["room_id"]
    assert opened["link"] == f"/room/{id}"
    assert re.fullmatch(r"\d{6}", opened["code"])
    assert (opened["persistent"], opened["locked"], opened["members"]) == (True, False, 0)
    async with here.room(id, name="Ann", speaks="en"), there.room(id, name="Berta", speaks="es") as berta:
        await berta.write("hola")
        status, listed = await there.ask("GET", ROOMS)
        assert status == 200
        (row,) = (one for one in listed["rooms"] if one["room_id"] == id)
        assert (row["room_id"], row["members"], row["languages"], row["captions"]) == (id, 2, {"en": 1, "es": 1}, 1)
        _, shown = await there.ask("GET", f"{ROOMS}/{id}")
        assert {(one["name"], one["hears"], one["role"]) for one in shown["listed"]} == {
            ("Ann", "en", "host"),
            ("Berta", "es", "speaker"),
        }
        assert await there.ask("DELETE", f"{ROOMS}/{id}") == (200, {"closed": True})
        await wait_until(lambda: berta.ended == "An operator has closed the room.", TIMEOUT_S)
    assert id not in (await here.raw("GET", ROOMS))[1]
    assert (await here.ask("GET", f"{ROOMS}/{id}"))[1]["closed"] == "An operator has closed the room."
    assert (await here.ask("DELETE", f"{ROOMS}/{id}"))[0] == 404
    _, audit = await here.ask("GET", "/api/v1/audit")
    changes = [(one["action"], one["result"]) for one in reversed(audit["entries"]) if one["target"] == id]
    assert changes[:2] == [("room.open", "done"), ("room.close", "done")]
    assert changes[2][1].startswith("refused")


async def test_rooms_are_listed_page_by_page_and_found_by_their_code(site: Site) -> None:
    opened = [await site.opened() for _ in range(5)]
    found: list[str] = []
    after = ""
    while True:
        _, page = await site.ask("GET", f"{ROOMS}?count=2&after={after}")
        assert page["count"] >= 5
        assert len(page["rooms"]) <= 2
        found += [row["room_id"] for row in page["rooms"]]
        after = page["next"]
        if not after:
            break
    assert found == sorted(set(found))
    assert {row["room_id"] for row in opened} <= set(found)
    _, page = await site.ask("GET", f"{ROOMS}?part={opened[3]['code']}")
    assert [row["room_id"] for row in page["rooms"]] == [opened[3]["room_id"]]


async def test_transcript_has_translations_in_every_format_also_after_the_end_of_the_room(site: Site) -> None:
    opened = await site.opened()
    id, code = opened["room_id"], opened["code"]
    async with translator(site), site.room(id, speaks="en") as ann, site.room(id, name="Berta", speaks="es") as berta:
        await ann.write("good <morning>")
        async with asyncio.timeout(TIMEOUT_S):
            async for caption in berta:
                if caption.translation is not None:
                    break
    await site.ask("DELETE", f"{ROOMS}/{id}")
    status, vtt = await site.raw("GET", f"{ROOMS}/{id}/transcript?lang=es")
    assert status == 200
    assert vtt.startswith("WEBVTT\n\n1\n00:00:00.000 --> ")
    assert "<v Ann>[es] good &lt;morning&gt;\n" in vtt
    _, srt = await site.raw("GET", f"{ROOMS}/{id}/transcript?format=srt")
    assert "Ann: good <\u2060morning>" in srt
    _, txt = await site.raw("GET", f"{ROOMS}/{id}/transcript?format=txt")
    assert txt == "[00:00:00] Ann: good <morning>\n"
    _, found = await site.ask("GET", f"{ROOMS}/{id}/transcript?format=json&lang=es")
    assert (found["room_id"], found["code"], found["lang"], found["complete"]) == (id, code, "es", True)
    assert [(line["lang"], line["original"]) for line in found["lines"]] == [("es", "good <morning>")]


async def test_bad_requests_get_a_sentence(site: Site) -> None:
    id = (await site.opened())["room_id"]
    wrong: list[tuple[str, str, object, int, str]] = [
        ("POST", ROOMS, [], 400, "the body is not as expected"),
        ("POST", ROOMS, {"colour": "red"}, 400, "unknown field `colour`"),
        ("POST", ROOMS, {"persistent": "yes"}, 400, "Expected `bool`"),
        ("POST", ROOMS, {"vocabulary": ["x"] * 101}, 400, "length <= 100"),
        ("POST", f"{ROOMS}/join", {}, 400, "give one of room_id and code"),
        ("POST", f"{ROOMS}/join", {"room_id": id, "code": "123456"}, 400, "give one of room_id and code"),
        ("POST", f"{ROOMS}/join", {"room_id": "../x"}, 404, "there is no such room"),
        ("POST", f"{ROOMS}/join", {"code": "000000"}, 404, "No room has this code."),
        ("GET", f"{ROOMS}?count=0", None, 400, "count is not a number"),
        ("GET", f"{ROOMS}/nobody", None, 404, "there is no such room"),
        ("DELETE", f"{ROOMS}/nobody", None, 404, "there is no open room"),
        ("GET", f"{ROOMS}/nobody/transcript", None, 404, "there is no such room"),
        ("GET", f"{ROOMS}/{id}/transcript?format=doc", None, 400, "format is not one of vtt, srt, txt, json"),
        ("GET", f"{ROOMS}/{id}/transcript?lang=a%2Fb", None, 400, "lang is not the code of a language"),
    ]
    for method, path, body, status, sentence in wrong:
        answer = await site.ask(method, path, body=body)
        assert (answer[0], sentence in answer[1]["error"]) == (status, True), (method, path, answer)


# ---------------------------------------------------------------- guests


async def test_rooms_of_operators_need_a_token_where_a_secret_is_set(guarded: Site) -> None:
    id = (await guarded.opened(OPERATOR))["room_id"]
    for method, path in [("POST", ROOMS), ("GET", ROOMS), ("GET", f"{ROOMS}/{id}"), ("DELETE", f"{ROOMS}/{id}")]:
        assert (await guarded.ask(method, path))[0] == 401
        assert (await guarded.ask(method, path, token_of("client", "ann")))[0] == 401
    assert (await guarded.ask("GET", f"{ROOMS}/join"))[0] == 401
    assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript"))[0] == 401


async def test_page_of_a_room_needs_no_token(guarded: Site) -> None:
    opened = await guarded.opened(OPERATOR)
    for path in (opened["link"], "/room"):
        status, page = await guarded.raw("GET", path)
        assert (status, "<html" in page) == (200, True)


async def test_guest_joins_its_room_only_and_gets_its_transcript(guarded: Site) -> None:
    opened, other = await guarded.opened(OPERATOR), await guarded.opened(OPERATOR)
    status, guest = await guarded.guest(code=opened["code"], name=" Gu\x00st ")
    assert (status, guest["room_id"], guest["role"], guest["name"]) == (200, opened["room_id"], "speaker", "Gust")
    assert guest["expires_in_s"] == 3600
    with pytest.raises(RoomRefused, match="another room") as refused:
        await guarded.room(other["room_id"], guest["token"]).join()
    assert refused.value.code == "NOT_ALLOWED"
    with pytest.raises(RoomRefused, match="cannot open another one"):
        await guarded.room("", guest["token"]).join()
    async with guarded.room(opened["room_id"], guest["token"]) as room:
        assert room.role == "speaker"  # and not host, although it is the first
        await room.write("hello")
        status, txt = await guarded.raw("GET", f"{ROOMS}/{room.id}/transcript?format=txt", guest["token"])
        assert (status, txt) == (200, "[00:00:00] Ann: hello\n")
    assert (await guarded.ask("GET", f"{ROOMS}/{other['room_id']}/transcript", guest["token"]))[0] == 404


async def test_guest_renews_its_token_while_it_is_in_the_room(guarded: Site) -> None:
    id = (await guarded.opened(OPERATOR))["room_id"]
    _, guest = await guarded.guest(room_id=id)
    assert (await guarded.guest(guest["token"], room_id=id))[0] == 403
    async with guarded.room(id, guest["token"]) as room:
        status, renewed = await guarded.guest(guest["token"], room_id=id)
        assert (status, renewed["token"] != guest["token"]) == (200, True)
        async with guarded.room(id, renewed["token"], name="the same") as again:
            await wait_until(lambda: again.count == 2, TIMEOUT_S)
        room.use_token(renewed["token"])
        assert room.socket is not None
        room.socket.abort()
        await room.write("still here")
    for bad in (token_of("client", "ann"), "nonsense"):
        assert (await guarded.guest(bad, room_id=id))[0] in (401, 403)


async def test_room_without_guests_or_locked_gives_no_token(guarded: Site) -> None:
    closed, locked = await guarded.opened(OPERATOR, guests=False), await guarded.opened(OPERATOR, locked=True)
    assert await guarded.guest(room_id=closed["room_id"]) == (403, {"error": "this room is not open to guests"})
    assert await guarded.guest(room_id=locked["room_id"]) == (403, {"error": "the host has locked the room"})
    host = token_of("client", "hanna", claim=RoomClaim(locked["room_id"], Role.HOST))
    async with guarded.room(locked["room_id"], host) as room:
        assert room.role == "host"
        await room.lock(False)
        assert (await guarded.guest(room_id=locked["room_id"]))[0] == 200


async def test_listener_reads_and_does_not_write(guarded: Site) -> None:
    id = (await guarded.opened(OPERATOR))["room_id"]
    listener = token_of("client", "lea", claim=RoomClaim(id, Role.LISTENER))
    async with guarded.room(id, listener) as room:
        assert room.role == "listener"
        with pytest.raises(RoomRefused, match="not write") as refused:
            await room.write("hello")
        assert refused.value.code == "NOT_ALLOWED"


async def test_address_that_guesses_codes_is_refused_at_every_instance_and_others_are_not(
    guarded_sites: tuple[Site, Site],
) -> None:
    code = (await guarded_sites[0].opened(OPERATOR))["code"]
    guessing, other = {"X-Forwarded-For": "203.0.113.7"}, {"X-Forwarded-For": "203.0.113.8"}
    for number in range(10):
        site = guarded_sites[number % 2]
        status, _ = await site.ask("POST", f"{ROOMS}/join", body={"code": "000000"}, **guessing)
        assert status == 404
    for site in guarded_sites:
        status, answer = await site.ask("POST", f"{ROOMS}/join", body={"code": code}, **guessing)
        assert (status, answer) == (429, {"error": "Too many wrong codes: wait a minute."})
        assert (await site.ask("POST", f"{ROOMS}/join", body={"code": code}, **other))[0] == 200


async def test_removed_guest_gets_neither_into_the_room_nor_its_transcript_with_its_token(guarded: Site) -> None:
    id = (await guarded.opened(OPERATOR))["room_id"]
    async with guarded.room(id, token_of("client", "hanna", claim=RoomClaim(id, Role.HOST))) as host:
        _, guest = await guarded.guest(room_id=id, name="Ann")
        async with guarded.room(id, guest["token"]) as room:
            assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript?format=json", guest["token"]))[0] == 200
            await host.remove(room.session_id)
            await wait_until(lambda: room.ended != "", TIMEOUT_S)
        with pytest.raises(RoomRefused, match="removed you") as refused:
            await guarded.room(id, guest["token"]).join()
        assert refused.value.code == "REMOVED"
        assert (await guarded.guest(guest["token"], room_id=id))[0] == 403  # nor a new one for the same principal
        assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript?format=json", guest["token"]))[0] == 404


async def test_room_of_another_tenant_does_not_exist(guarded: Site) -> None:
    opened = await guarded.opened(token_of("operator", "otto", "acme"))
    id, code = opened["room_id"], opened["code"]
    assert opened["tenant"] == "acme"
    foreign = token_of("client", "ann")
    for named in ({"room": id}, {"code": code}):
        with pytest.raises(RoomRefused) as refused:
            await Room(guarded.url, **named, name="Ann", speaks="en", token=foreign).join()
        assert refused.value.code == "ROOM_NOT_FOUND"
    claimed = token_of("client", "ann", claim=RoomClaim(id, Role.HOST))
    for reader in (foreign, claimed):
        assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript", reader))[0] == 404
    own = token_of("client", "ann", "acme")
    async with guarded.room(id, own) as room:
        await room.write("hello")
        assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript?format=json", own))[0] == 200
    assert (await guarded.ask("GET", f"{ROOMS}/{id}/transcript", token_of("client", "bob", "acme")))[0] == 404
    _, guest = await guarded.guest(code=code)
    async with guarded.room(id, guest["token"]):
        pass


# ---------------------------------------------------------------- the command line


async def test_room_from_the_command_line(site: Site, tmp_path: Path) -> None:
    async def room(*args: str) -> str:
        status, out, err = await asyncio.to_thread(answer, tmp_path, "room", *args, "--url", site.base)
        assert status == 0, err
        return out

    out = await room("open", "--persistent", "--term", "Dragoman")
    found = re.fullmatch(rf"room  {site.base}/room/(\S+)  \(code (\d+)\)\nid    (\S+)\n", out)
    assert found is not None
    id, code, link = found[1], found[2], f"{site.base}/room/{found[1]}"
    async with site.room(id, name="A\x1b[31mnn") as ann:
        await ann.write("good \x1b[2Jmorning")
        assert code in await room("list")
        (row,) = (one for one in json.loads(await room("list", "--json")) if one["room_id"] == id)
        assert (row["room_id"], row["persistent"], row["settings"]["vocabulary"]) == (id, True, ["Dragoman"])
        shown = await room("show", code)
        assert "1 (en 1)" in shown
        assert "\x1b" not in shown
        assert await room("transcript", link) == "[00:00:00] A[31mnn: good [2Jmorning\n"
        await room("transcript", code, "--format", "vtt", "--output", "out.vtt")
        assert (tmp_path / "out.vtt").read_text().startswith("WEBVTT")
        assert "would close" in await room("close", code)
        assert ann.ended == ""
        assert await room("close", code, "--yes") == f"The room {id} is closed.\n"
        await wait_until(lambda: ann.ended != "", TIMEOUT_S)
    assert "closed: An operator" in await room("show", id)


@pytest.mark.parametrize(
    ("args", "status", "sentence"),
    [
        (("room", "show", "no room!"), 2, "is not a room"),
        (("room", "show", "000000"), 1, "No open room has the code 000000."),
        (("room", "show", "nobody"), 1, "there is no such room"),
        (("room", "transcript", "nobody", "--format", "doc"), 2, "Choose one of: vtt, srt, txt, json."),
        (("room", "transcript", "nobody", "--lang", "a b"), 1, "lang is not the code of a language"),
        (("listen", "--room", "no room!"), 2, "is not a room"),
        (("listen", "--room", "000000"), 1, "No room has this code"),
        (("listen", "--room", "nobody"), 1, "there is no such room"),
    ],
)
def test_wrong_command_is_one_sentence(
    site: Site, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], status: int, sentence: str
) -> None:
    assert run([*args, "--url", site.base]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert captured.err.count("\n") == 1


async def test_listen_prints_what_is_said_in_ones_own_language(site: Site, tmp_path: Path) -> None:
    opened = await site.opened()
    args = ("listen", "--room", f"{site.base}{opened['link']}", "--lang", "es", "--from-start", "--name", "Berta")
    async with translator(site), site.room(opened["room_id"]) as ann:
        await ann.write("before")
        with Dragoman(tmp_path, *args) as berta:
            await asyncio.to_thread(berta.until, "before")
            await wait_until(lambda: {one.display_name for one in ann.members} == {"Ann", "Berta"}, TIMEOUT_S)
            await ann.write("good \x1b[2J morning")
            await wait_until(lambda: berta.out.count("\n") == 3, TIMEOUT_S)
            berta.interrupt()
            assert await asyncio.to_thread(berta.exit_code) == 0
            before, original, translated = berta.out.splitlines()
            assert f"in room {opened['code']}" in berta.err
        await wait_until(lambda: ann.count == 1, TIMEOUT_S)
    assert before == "Ann\t[en]\tbefore"
    assert original == "Ann\t[en]\tgood \\u001b[2J morning"
    assert translated == "Ann\t\t[es] good \\u001b[2J morning"


async def test_lines_typed_on_a_terminal_are_written_into_the_room(site: Site, tmp_path: Path) -> None:
    opened = await site.opened()
    async with site.room(opened["room_id"]) as ann:
        with Dragoman(
            tmp_path, "listen", "--room", opened["code"], "--lang", "en", "--url", site.base, tty=True
        ) as bob:
            await asyncio.to_thread(bob.until, "type to write")
            bob.type("hello from bob\n")
            async with asyncio.timeout(TIMEOUT_S):
                async for caption in ann:
                    assert caption.text == "hello from bob"
                    break
            await ann.write("hello, \x1b[2Jbob")
            await asyncio.to_thread(bob.until, "hello, \\u001b[2Jbob")
            bob.interrupt()
            assert await asyncio.to_thread(bob.exit_code) == 0
            assert bob.out.count("hello from bob") == 1  # as it was typed


async def test_listen_is_a_guest_where_a_secret_is_set_and_ends_with_the_room(guarded: Site, tmp_path: Path) -> None:
    opened = await guarded.opened(OPERATOR)
    host = token_of("client", "hanna", claim=RoomClaim(opened["room_id"], Role.HOST))
    async with guarded.room(opened["room_id"], host, name="Hanna") as hanna:
        with Dragoman(tmp_path, "listen", "--room", opened["code"], "--json", "--url", guarded.base) as guest:
            await wait_until(lambda: hanna.count == 2, TIMEOUT_S)
            await hanna.write("hello")
            await hanna.close()
            assert await asyncio.to_thread(guest.exit_code) == 0
            assert [json.loads(line)["original"] for line in guest.out.splitlines()] == ["hello"]
            assert "The host has closed the room." in guest.err
