"""Secrets replaced under a running server of two workers: nobody is thrown out, and what an old one signed is over when
it is gone. And what never listens."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from dragoman.domain.revocation import name_of
from dragoman.protocol.codes import Close
from support.chat import ChatSpeaker
from support.cluster import Speaker
from support.commands import Dragoman, answer, serve
from support.raw_node import SAMPLES
from support.waiting import wait_until

OLD = "the-old-secret-which-is-long-enough-for-hs256"
NEW = "the-new-secret-which-is-long-enough-for-hs256"
WORKERS = 2
TRIES = 8  # connections, so that each worker gets some
TIMEOUT_S = 30.0


def minted(folder: Path, secret: str, *args: str) -> str:
    """What `dragoman token` makes with this secret."""
    code, out, err = answer(folder / "mint", "token", *args, env={"DRAGOMAN_SECURITY__SECRET": secret})
    assert code == 0, err
    return out.strip()


class RunningServer:
    """A server whose secrets stand in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "secrets"
        self.changes = 0
        self.file.write_text(OLD)
        settings = ("--workers", str(WORKERS), "--set", f"security.secret_file={self.file}")
        self.server = serve(folder, *settings).until("Dragoman is ready after")
        self.base = self.server.base

    async def put(self, *secrets: str) -> None:
        """Put these into the file, and wait until every worker has said so."""
        fresh = self.folder / "fresh"
        fresh.write_text("\n".join(secrets) + "\n")
        fresh.replace(self.file)
        self.changes += WORKERS
        await wait_until(lambda: len(self.told()) == self.changes, TIMEOUT_S)
        assert self.told()[-1]["accepted"] == [name_of(secret) for secret in secrets]

    def told(self) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.server.err.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "secrets changed"]

    @asynccontextmanager
    async def connected(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://{self.base}{path}") as ws:
            yield ws

    async def code_at(self, path: str, first: Mapping[str, object]) -> int | None:
        """The close code with which this first message is answered; None if it is not."""
        async with self.connected(path) as ws:
            await ws.send_str(json.dumps(first))
            while (frame := await ws.receive(TIMEOUT_S)).type is aiohttp.WSMsgType.TEXT:
                if json.loads(frame.data)["type"] in ("session_init_ack", "AUTH_OK", "node_register_ack"):
                    return None
            return ws.close_code


INIT = {"type": "session_init", "client_version": "t", "platform": "web", "src_lang": "en", "tgt_lang": "es"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = RunningServer(tmp_path)
    with made.server:
        yield made


@pytest.mark.timeout(180)
async def test_secret_rotation_disconnects_no_client(server: RunningServer) -> None:
    folder, base = server.folder, server.base
    node_env = {"DRAGOMAN_NODE_TOKEN": minted(folder, OLD, "node", "--node-id", "n")}
    node_args = ("node", "--url", f"ws://{base}/ws/node", "--node-id", "n", "--languages", "en,es", "--delay-ms", "5")
    olds = {kind: minted(folder, OLD, kind, "--subject", "ann") for kind in ("client", "operator")}
    old_chat = minted(folder, OLD, "client", "--user-id", "42")
    with Dragoman(folder / "node", *node_args, env=node_env) as node:
        node.until(" as n: ")
        async with server.connected("/ws/session") as ws, server.connected("/ws") as chat_ws:
            speaker, writer = Speaker(ws), ChatSpeaker(42, chat_ws)
            await speaker.init(token=olds["client"], resume=True)
            await writer.auth(old_chat)
            await _still_heard(speaker, writer, 0)

            await server.put(OLD, NEW)  # every instance accepts the new one before anybody signs with it
            await _still_heard(speaker, writer, 1)
            await server.put(NEW, OLD)
            await _still_heard(speaker, writer, 2)
            news = {kind: minted(folder, NEW, kind, "--subject", "ann") for kind in ("client", "operator")}
            for token in (olds["client"], news["client"]):
                assert await _codes(server, "/ws/session", INIT | {"token": token}) == {None}

            await server.put(NEW)
            await _still_heard(speaker, writer, 3)
            await _the_old_is_over(server, olds, old_chat)
            assert await _codes(server, "/ws/session", INIT | {"token": news["client"]}) == {None}
            assert (await _status(base, news["operator"])) == {200}
            await _still_heard(speaker, writer, 4)
    assert OLD not in server.server.err + server.server.out
    assert NEW not in server.server.err + server.server.out


async def _still_heard(speaker: Speaker, writer: ChatSpeaker, index: int) -> None:
    """Both go on by the connections they have had from the beginning."""
    await speaker.utterance(index)
    await speaker.result(index)
    name = await writer.chat(43, f"message {index}")
    await writer.expect("ACK", clientMsgId=name, ackType="saved")


async def _codes(server: RunningServer, path: str, first: Mapping[str, object]) -> set[int | None]:
    return set(await asyncio.gather(*(server.code_at(path, first) for _ in range(TRIES))))


async def _the_old_is_over(server: RunningServer, olds: dict[str, str], old_chat: str) -> None:
    node = minted(server.folder, OLD, "node", "--node-id", "m")
    refused = {int(Close.UNAUTHORIZED)}
    assert await _codes(server, "/ws/session", INIT | {"token": olds["client"]}) == refused
    assert await _codes(server, "/ws/session", INIT | {"token": old_chat}) == refused
    assert await _codes(server, "/ws/node", SAMPLES["node_register"] | {"token": node, "node_id": "m"}) == refused
    assert await _codes(server, "/ws", {"type": "AUTH", "token": old_chat}) == refused
    assert await _status(server.base, olds["operator"]) == {401}


async def _status(base: str, operator: str) -> set[int]:
    async def one() -> int:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {operator}"}) as http,
            http.get(f"http://{base}/api/v1/stats") as told,
        ):
            return told.status

    return set(await asyncio.gather(*(one() for _ in range(TRIES))))


# -- what never listens ----------------------------------------------------------------------------


def test_exposed_check_reports_what_a_running_server_answers_without_a_token(
    server: RunningServer, tmp_path: Path
) -> None:
    args = (
        "config",
        "check",
        "--exposed",
        "--url",
        f"http://{server.base}",
        "--set",
        "server.trusted_proxies=192.0.2.9",
    )
    server.file.chmod(0o600)
    code, out, err = answer(tmp_path / "check", *args, "--set", f"security.secret_file={server.file}")
    assert code == 1
    assert "1 of 16 requirements" in err, out + err
    lines = [line.split(":")[0] for line in out.splitlines()[1:]]
    assert [line for line in lines if line.startswith("problem")] == ["problem  url tls"]
    assert lines[-3:] == ["ok       url server", "ok       url operators", "ok       url origin"]
