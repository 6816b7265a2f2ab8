"""`dragoman bench chat --translate`: what 10,000 queued translations of chat messages do to the dispatch of speech.

    alone         utterances at a steady rate, from the cut to their `job_assign` at the node
    translating   the same, while chat users wait for 10,000 translations

One instance on SQLite. Its nodes serve speech and text; a text takes TEXT_S, so the queue lasts longer than the
measurement. Rounds are paired: the ratio is the median over the rounds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

import aiohttp
import uvloop
from rich.table import Table

from dragoman.archive import NewMessage, open_archive
from dragoman.embedded.binary import ServerBinary
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import FrameType
from dragoman.tools.bench.chat_load import chat_token
from dragoman.tools.bench.environment import SPEECH, UNLIMITED, Backend, Environment, backend, environment
from dragoman.tools.bench.instance_variants import STAMPED
from dragoman.tools.bench.measure import Case, Quantities, in_turns
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report, described, number, table

CASES = ("alone", "translating")
USERS = 50
TEXT_S = 0.1
LANG = "es"
BODY = "Shall we meet at the station at seven?"
FIRST_UID = 5_000_001
QUEUED_S = 1.0  # from the requests to the measurement
SAVED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float = 20.0
    warmup_s: float = 5.0
    rounds: int = 5
    per_s: float = 100.0
    translations: int = 10_000
    sessions: int = 100
    nodes: int = 20


@dataclass(frozen=True, slots=True)
class Bench:
    backend: Backend
    settings: Settings


def steps(settings: Settings) -> int:
    return len(CASES) * settings.rounds


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    report = Report(described(settings, redis=str(binary), text_s=TEXT_S, users=USERS))
    cases = [Case(name, f"speech, {name}", _case(name == "translating")) for name in CASES]
    with backend(binary) as servers:
        findings = uvloop.run(in_turns(cases, Bench(servers, settings), settings.rounds, on_step))
    report.figures = findings.figures
    alone, translating = (findings.samples[name] for name in CASES)
    report.ratios = {
        f"{share}_ratio": median(
            busy[f"cut_{share}_us"] / quiet[f"cut_{share}_us"] for quiet, busy in zip(alone, translating, strict=True)
        )
        for share in ("p50", "p99")
    }
    report.tables = [_table(report.figures, report.ratios)]
    return report


def _case(translating: bool) -> Callable[[Bench], Awaitable[Quantities]]:
    async def run(bench: Bench) -> Quantities:
        settings, url = bench.settings, bench.backend.new_database()
        options = {
            **UNLIMITED,
            "archive.url": url,
            "chat.translate.timeout_ms": 600_000,
            "chat.translate.per_minute": 1_000_000,
            "chat.translate.max_waiting": 2 * settings.translations,
        }
        async with environment(bench.backend.servers, 1, SPEECH, settings=options, module=STAMPED) as speech:
            await speech.add_nodes(settings.nodes, text_s=TEXT_S)
            await speech.add_sessions(settings.sessions)
            ids = await _save(url, settings.translations)
            async with askers(speech) as users:
                return await _timed(speech, users, ids if translating else [], settings)

    return run


async def _save(url: str, count: int) -> list[int]:
    """Save `count` messages whose receivers are not connected, and return their ids."""
    rows = [
        NewMessage(n + 1, f"b-{n}", FIRST_UID + n % USERS, FIRST_UID + USERS, wire.TEXT, f"{BODY} ({n})", 1, "en")
        for n in range(count)
    ]
    archive = open_archive(url)
    try:
        for first in range(0, count, SAVED_AT_ONCE):
            await archive.save(rows[first : first + SAVED_AT_ONCE])
    finally:
        await archive.close()
    return [row.id for row in rows]


async def _timed(speech: Environment, users: "list[Asker]", ids: list[int], settings: Settings) -> Quantities:
    nodes = speech.loads["nodes"]
    await speech.loads["speakers"].call("pace", per_s=settings.per_s)
    await asyncio.sleep(settings.warmup_s)
    for id in ids:
        await users[(id - 1) % USERS].ask(id)
    await asyncio.sleep(QUEUED_S)
    await nodes.call("time")
    before = sum(user.translated for user in users)
    used = await speech.measure(settings.seconds)
    translated = sum(user.translated for user in users)
    jobs = await nodes.call("times")
    await speech.finish_speech()
    if failed := [reason for user in users for reason in user.failed]:
        raise CannotRun(f"A translation failed: {failed[0]}.")
    if ids and translated == len(ids):
        raise CannotRun("The translations were finished before the measurement: ask for more with --translations.")
    found = {"per_s": used.per_s, "translated_per_s": (translated - before) / settings.seconds}
    found["queued_at_end"] = float(len(ids) - translated)
    return found | {f"cut_{share}": value for share, value in jobs["cut"].items()}


class Asker:
    """A chat user that asks for translations."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws
        self.translated = 0
        self.failed: list[str] = []

    async def ask(self, id: int) -> None:
        await self._ws.send_str(wire.translate(id, LANG).decode())

    async def read(self) -> None:
        async for data in self._ws:
            frame = wire.decode_server_frame(data.data.encode())
            if frame.type == FrameType.TRANSLATION and frame.body is not None:
                self.translated += 1
            elif frame.type in (FrameType.TRANSLATION, FrameType.ERROR):
                self.failed.append(frame.reason or "no reason")


@asynccontextmanager
async def askers(speech: Environment) -> AsyncIterator[list[Asker]]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        users = list[Asker]()
        for number in range(USERS):
            ws = await stack.enter_async_context(http.ws_connect(f"{speech.urls[0]}/ws", autoping=True))
            await ws.send_str(wire.auth(chat_token(FIRST_UID + number, **speech.chat_key)).decode())
            answer = wire.decode_server_frame((await ws.receive_str()).encode())
            if answer.type != FrameType.AUTH_OK:
                raise CannotRun(f"A chat user was refused: {answer.reason}.")
            users.append(Asker(ws))
        reading = [asyncio.create_task(user.read()) for user in users]
        try:
            yield users
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)


def _table(figures: Mapping[str, float], ratios: Mapping[str, float]) -> Table:
    rows = [
        [
            share,
            number(figures[f"alone_cut_{share}_us"]),
            number(figures[f"translating_cut_{share}_us"]),
            number(ratios[f"{share}_ratio"], " ×"),
        ]
        for share in ("p50", "p99")
    ]
    title = (
        f"From the cut to job_assign, {figures['alone_per_s']:.0f} utterances a second; "
        f"{figures['translating_translated_per_s']:.0f} translations a second meanwhile, "
        f"{figures['translating_queued_at_end']:.0f} still queued at the end"
    )
    return table(title, ["", "alone µs", "translating µs", "ratio (paired)"], rows)
