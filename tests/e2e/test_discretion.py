"""What people say, hear and write, and what they prove who they are with, is nowhere but where it belongs.

Two instances at the most talkative log level, a node and a user on one, a speaker and a user on the other, so that
everything crosses; every text, audio and credential is marked. Then all output and all an operator can ask is searched.
"""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt

from dragoman.tools.processes import InstanceProcess
from support.chat import ChatSpeaker
from support.cluster import Cluster, Speaker, running
from support.raw_node import Message, RawNode
from support.redis_servers import RedisAt
from support.speech import token

MARK = "xyzzy"
SECRET = f"{MARK}-secret-that-is-long-enough-for-HS256-{MARK}"
PCM = f"{MARK}-audio-".encode() * 3000
FLAGS: dict[str, object] = {
    "security__secret": SECRET,
    "chat__registration": "open",
    "log__level": "debug",
    "chat__two_phase__enabled": True,
    "chat__two_phase__deliver_before_saved": True,
}
SAID: dict[str, Any] = {
    "manual_cut": True, "src_lang": "en", "tgt_lang": "es", "audio_format": "pcm16", "sample_rate": 16000,
    "audio": base64.b64encode(PCM).decode(),
}  # fmt: skip
ASKED = (
    "cluster", "stats", "metrics", "jobs", "sessions", "nodes", "overview", "audit", "dlq", "chat", "chat/switches",
)  # fmt: skip


def credential(typ: str, sub: str, **claims: object) -> str:
    return token(typ, sub, secret=SECRET, **claims)


def access(uid: int) -> str:
    now = int(time.time())
    claims = {"iss": "mini-im", "iat": now, "exp": now + 86_400, "uid": uid, "typ": "access", "sv": 0}
    return jwt.encode(claims, SECRET, algorithm="HS256")


async def translated(node: RawNode, job: Message) -> None:
    await node.partial(job, f"{MARK} partly heard")
    spoken = base64.b64encode(f"{MARK}-voice".encode() * 100).decode()
    await node.answer(job, text_asr=f"{MARK} heard", text_translated=f"{MARK} translated", tts_audio=spoken)


class Scenario:
    def __init__(self, cluster: Cluster, here: InstanceProcess, there: InstanceProcess) -> None:
        self.cluster, self.here, self.there = cluster, here, there
        # Not kept alive: an upgrade is the first request of its connection.
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        self.tokens = {
            "client": credential("client", "ann"),
            "node": credential("node", "n"),
            "operator": credential("operator", "olga"),
        }
        self.served: list[str] = []  # by HTTP, to operators

    async def speak(self) -> None:
        node = await RawNode.dial(
            self.http, self.there.port, languages=["en", "es"], work=translated, node_id="n", token=self.tokens["node"]
        )
        async with self.http.ws_connect(f"ws://127.0.0.1:{self.here.port}/ws/session") as ws:
            speaker = Speaker(ws)
            await speaker.init(token=self.tokens["client"], resume=True, audio_format="pcm16")
            self.tokens["resume"] = speaker.token
            for index in range(3):
                await speaker.say("utterance", **SAID, session_id=speaker.session_id, utterance_index=index)
                assert MARK in (await speaker.result(index))["text_translated"]
            await self.ask(session=speaker.session_id, job=node.jobs[0]["job_id"])

    async def write(self) -> None:
        async with (
            self.http.ws_connect(f"ws://127.0.0.1:{self.here.port}/ws") as ann_ws,
            self.http.ws_connect(f"ws://127.0.0.1:{self.there.port}/ws") as bob_ws,
        ):
            ann, bob = ChatSpeaker(1, ann_ws), ChatSpeaker(2, bob_ws)
            for one in (ann, bob):
                self.tokens[f"chat {one.uid}"] = access(one.uid)
                await one.auth(self.tokens[f"chat {one.uid}"])
            for number in range(3):
                name = await ann.chat(2, f"{MARK} body {number}", name=f"m{number}")
                await ann.saved(name)
                assert MARK in (await bob.expect("SINGLE_CHAT"))["body"]
            await self.ask("chat/messages/1/m0")

    async def log_in(self) -> None:
        login = f"http://127.0.0.1:{self.here.port}/auth/login"
        for password in (f"{MARK}-password", f"{MARK}-wrong"):
            async with self.http.post(login, json={"username": "carol", "password": password}) as told:
                data = (await told.json())["data"] or {}
                self.tokens |= {f"login {name}": value for name, value in data.items() if name.endswith("Token")}
        assert "login accessToken" in self.tokens

    async def blunder(self) -> None:
        """What goes wrong is what is logged: bad frames, bad tokens, bad requests, all of them marked."""
        forged = credential("client", "eve", exp=1)
        self.tokens["forged"] = forged
        said = (f"{MARK} no json", f'{{"type":"{MARK}"}}', f'{{"type":"session_init","token":"{MARK}"}}', "\x00" + MARK)
        for path in ("/ws/session", "/ws/node", "/ws"):
            for text in (*said, json.dumps({"type": "AUTH", "token": forged, "body": MARK})):
                async with self.http.ws_connect(f"ws://127.0.0.1:{self.here.port}{path}") as ws:
                    await ws.send_str(text)
                    await ws.send_bytes(PCM[:100])
                    await ws.close()
        for path in (f"/api/v1/cluster?token={forged}", f"/auth/verify?accessToken={forged}", f"/nothing?x={MARK}"):
            async with self.http.get(f"http://127.0.0.1:{self.here.port}{path}"):
                pass
        await self._noise(f"GET /x?token={forged} HTTP/1.1\r\nHost: h\r\n{MARK}\r\n\r\n")
        await self._noise(f"POST /auth/login HTTP/1.1\r\nHost: h\r\nContent-Length: {MARK}\r\n\r\n")
        await self._noise(f"GET /ws?token={forged} HTTP/1.1\r\nUpgrade: websocket\r\nHost: h\r\n\r\n")

    async def _noise(self, text: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.here.port)
        writer.write(text.encode())
        writer.write_eof()
        await reader.read()
        writer.close()

    async def ask(self, *paths: str, session: str = "", job: str = "") -> None:
        """Everything an operator can ask of both instances."""
        wanted = [f"/api/v1/{path}" for path in (*ASKED, *paths)] + ["/metrics"]
        wanted += [f"/api/v1/jobs/{job}"] if job else []
        wanted += [f"/api/v1/sessions?part={session}"] if session else []
        headers = {"Authorization": f"Bearer {self.tokens['operator']}"}
        for instance in (self.here, self.there):
            for path in wanted:
                async with self.http.get(f"http://127.0.0.1:{instance.port}{path}", headers=headers) as told:
                    assert told.status == 200, path
                    self.served.append(f"{path}\n{await told.text()}")

    async def change(self) -> None:
        headers = {"Authorization": f"Bearer {self.tokens['operator']}"}
        url = f"http://127.0.0.1:{self.here.port}/api/v1/chat/switches"
        async with self.http.post(url, headers=headers, json={"rollout_percent": 100}) as told:
            assert told.status == 200


def traces(text: str, credentials: dict[str, str]) -> list[str]:
    """What of it is a mark, the audio in base64, or a part of a credential that nobody could guess."""
    needles = {"a mark": MARK, "audio": base64.b64encode(PCM).decode()[40:80]}
    needles |= {f"the {name} token": value.rpartition(".")[2] for name, value in credentials.items()}
    lower = text.lower()
    return [name for name, needle in needles.items() if needle.lower() in lower]


async def test_no_speech_text_or_credential_is_in_a_log_or_an_operator_api(
    redis_server: RedisAt, tmp_path: Path
) -> None:
    async with running(redis_server, tmp_path) as cluster:
        here, there = await cluster.instance(**FLAGS), await cluster.instance(**FLAGS)
        scenario = Scenario(cluster, here, there)
        async with scenario.http:
            for step in (
                scenario.speak,
                scenario.write,
                scenario.log_in,
                scenario.blunder,
                scenario.change,
                scenario.ask,
            ):
                await step()
        logs = {log.name: log.read_text() for log in (here.log, there.log)}
    assert any('"debug"' in text for text in logs.values()), "the most talkative level"
    found: dict[str, Any] = {name: traces(text, scenario.tokens) for name, text in logs.items()}
    found |= {served.partition("\n")[0]: traces(served, scenario.tokens) for served in scenario.served}
    assert {name: what for name, what in found.items() if what} == {}


def test_search_of_the_logs_finds_what_is_logged() -> None:
    credentials = {"client": credential("client", "ann")}
    assert traces(f"said {MARK.upper()}", {}) == ["a mark"]
    assert traces(base64.b64encode(PCM).decode(), {}) == ["audio"]
    assert traces(f"Bearer {credentials['client']}", credentials) == ["the client token"]
    assert traces("an ordinary line", credentials) == []
