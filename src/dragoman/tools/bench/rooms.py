"""`dragoman bench rooms`: one speaker, eight languages, a thousand readers on two instances, beside socket.io and NATS.

    write   speech ends; or with --text, the writer sends a sentence
    heard   a node has the utterance             recognised   it sends the sentence
    assign  a text node has the job of one language
    result  the node sends the translation       last         the last reader of all languages has it

Each round measures every system once, at the same rate, with the same messages to as many sockets; a ratio is the
median of the rounds' ratios, with the smallest and the largest. A *delivery* is one message on one reader's socket. Its
CPU time is everything that the server processes use meanwhile, divided by the deliveries: in Dragoman also text jobs,
the log and upkeep, which the peers do not have. The time of the nodes is measured there and subtracted.

Then the rate grows by half until it is not sustained: the last message arrives late, or not at all.

Redis commands are those of INFO commandstats, commands inside scripts included, without the commands that the idle
instances send. *Calls* are commands that clients send, counted by MONITOR outside of the measurement.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.store.link import Address
from dragoman.tools.bench.environment import UNLIMITED, Servers, environment, running
from dragoman.tools.bench.measure import Case, Quantities, in_turns, percentile
from dragoman.tools.bench.rooms_load import (
    ASR_S,
    KINDS,
    LANGUAGES,
    NODES,
    RECOGNISERS,
    SPOKEN,
    WORK_S,
    WRITTEN,
    original,
    translation,
)
from dragoman.tools.bench.rooms_peers import INSTALLERS, NATS, NPM_PACKAGES, peer
from dragoman.tools.processes import CannotRun, LoadProcess, cpu_s
from dragoman.tools.report import OnStep, Report, described, figure_rows, number, table

SYSTEMS = {"dragoman": "Dragoman", "socketio": "socket.io", "nats": "NATS"}
MODULE = "dragoman.tools.bench.rooms_load"
INSTANCES = 2
READER_PROCESSES = 2
SPARE_FILES = 500
OPEN_TIMEOUT_S = 300.0
IDLE_S = 1.0
PROBED_CAPTIONS = 4
GROWTH, MAX_STEPS, MAX_STEP_S = 1.5, 10, 3.0
LATE_S = 1.0  # after the last result: a rate at which the last message arrives later is not sustained
RATIOS = {"cpu_us_per_delivery": "cpu", "last_reader_p99_ms": "last_reader_p99"}


@dataclass(frozen=True, slots=True)
class Settings:
    readers: int = 1000
    rate: float = 2.0
    seconds: float = 20.0
    warmup_s: float = 2.0
    rounds: int = 5
    peers: bool = True
    max: bool = True
    text: bool = False  # captions are written


@dataclass(frozen=True, slots=True)
class Bench:
    """The context of the cases."""

    servers: Servers
    settings: Settings
    samples: dict[str, list[Quantities]] = field(default_factory=dict)  # by system, one per round


def systems(settings: Settings) -> list[str]:
    return [name for name in SYSTEMS if settings.peers or name == "dragoman"]


def steps(settings: Settings) -> int:
    return len(systems(settings)) * (settings.rounds + settings.max) + (len(INSTALLERS) if settings.peers else 0)


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.readers + SPARE_FILES):
        raise CannotRun(f"{settings.readers:,} readers take more open files than the system allows (ulimit -Hn).")
    about = {
        "languages": LANGUAGES,
        "nodes": NODES,
        "node_ms": WORK_S * 1e3,
        "instances": INSTANCES,
        "asr_ms": ASR_S * 1e3,
    }
    sizes = {"original_bytes": len(original(1)), "translation_bytes": len(translation(1, LANGUAGES[0]))}
    peers = {**NPM_PACKAGES, "nats-server": NATS} if settings.peers else {}
    report = Report(described(settings, redis=str(binary), **about, **sizes, peers=peers))
    not_measured = install(on_step) if settings.peers else {}
    with running("single", binary) as servers:
        uvloop.run(_run(report, Bench(servers, settings), not_measured, on_step))
    return report


def install(on_step: OnStep) -> dict[str, str]:
    """Why a peer cannot be measured, by its name."""
    not_measured: dict[str, str] = {}
    for name, installer in INSTALLERS.items():
        on_step(f"installing {SYSTEMS[name]}")
        try:
            installer()
        except CannotRun as why:
            not_measured[name] = str(why)
    return not_measured


async def _run(report: Report, bench: Bench, not_measured: dict[str, str], on_step: OnStep) -> None:
    settings = bench.settings
    measured = [name for name in systems(settings) if name not in not_measured]
    found = await in_turns([_case(name) for name in measured], bench, settings.rounds, on_step)
    for name, why in found.left_out.items():
        not_measured[name] = why.partition(": ")[2]
        bench.samples.pop(name, None)
    report.figures = found.figures
    if settings.max:
        cases = [_max_case(name) for name in measured if name not in not_measured]
        most = await in_turns(cases, bench, 1, on_step)
        report.figures |= most.figures
        not_measured |= {name: why.partition(": ")[2] for name, why in most.left_out.items()}
    conclude(report, bench.samples, not_measured)


def _peer(name: str) -> str:
    return "" if name == "dragoman" else SYSTEMS[name]


def _case(name: str) -> Case[Bench]:
    async def measured(bench: Bench) -> Quantities:
        settings = bench.settings
        async with audience(name, bench) as room:
            found = dict(room.joined)
            if name == "dragoman":
                found["redis_calls_per_caption"] = await room.probe_calls()
            await room.run(max(int(settings.warmup_s * settings.rate), 1), settings.rate)
            found |= await room.measure(max(int(settings.seconds * settings.rate), 1), settings.rate)
        bench.samples.setdefault(name, []).append(found)
        return found

    return Case(name, SYSTEMS[name], measured, _peer(name))


def _max_case(name: str) -> Case[Bench]:
    async def climbed(bench: Bench) -> Quantities:
        seconds = min(bench.settings.seconds, MAX_STEP_S)
        async with audience(name, bench) as room:
            rate, sustained = bench.settings.rate * GROWTH, {"captions_per_s": 0.0}
            for _ in range(MAX_STEPS):
                try:
                    found = await room.measure(max(int(seconds * rate), 2), rate)
                except NotSustained:
                    break
                sustained = {"captions_per_s": rate, "cpu_us_per_delivery": found["cpu_us_per_delivery"]}
                sustained["last_reader_p99_ms"] = found["last_reader_p99_ms"]
                rate *= GROWTH
        return sustained

    return Case(f"{name}_max", f"as many captions as {SYSTEMS[name]} sustains", climbed, _peer(name))


# -- one system with its readers -------------------------------------------------------------------


class NotSustained(CannotRun):
    """Messages arrived late or not at all, or a caption was refused."""


@dataclass(slots=True)
class Audience:
    """A room full of readers."""

    servers: Servers
    pids: Sequence[int]
    writer: LoadProcess
    readers: Sequence[LoadProcess]
    text: bool
    joined: Quantities = field(default_factory=dict)
    _next: int = 0

    async def run(self, captions: int, rate: float) -> "Timeline":
        first, self._next = self._next, self._next + captions
        for one in self.readers:
            await one.call("expect", first=first, captions=captions)
        limit_s = captions / rate + OPEN_TIMEOUT_S
        written = await self.writer.call("write", limit_s, first=first, captions=captions, rate=rate)
        found = [await one.call("result", captions=captions) for one in self.readers]
        if written["failed"].startswith('{"type":"room_error"'):
            raise NotSustained("the writer was refused")
        for failed in (written["failed"], *(one["failed"] for one in found)):
            if failed:
                raise CannotRun(f"A client received what it should not have: {failed}")
        if doubled := sum(one["doubled"] for one in found):
            raise CannotRun(f"{doubled} messages arrived more than once")
        if missing := sum(one["missing"] for one in found):
            raise NotSustained(f"{missing} messages did not arrive")
        if not written["complete"]:
            raise NotSustained("the text nodes did not get every job in time")
        return Timeline(written, found)

    async def measure(self, captions: int, rate: float) -> Quantities:
        idle_commands = await self._idle_commands_per_s()
        self._redis("CONFIG", "RESETSTAT")
        before, began = self._cpu_s(), monotonic()
        timeline = await self.run(captions, rate)
        took_s = monotonic() - began
        jobs = {} if self.text else {"recognize_jobs_per_utterance": timeline.written["recognise_jobs"] / captions}
        cpu, redis_cpu = (new - old for old, new in zip(before, self._cpu_s(), strict=True))
        if timeline.late_s() > LATE_S:
            raise NotSustained("messages arrived late")
        commands = max(self._commands() - idle_commands * took_s, 0.0)
        return {
            "cpu_us_per_delivery": cpu / timeline.deliveries * 1e6,
            "redis_cpu_us_per_delivery": redis_cpu / timeline.deliveries * 1e6,
            "redis_commands_per_caption": commands / captions,
            "idle_redis_commands_per_s": idle_commands,
            "deliveries": float(timeline.deliveries),
            **jobs,
            **timeline.quantities(),
        }

    async def probe_calls(self) -> float:
        """Calls of one caption; MONITOR slows Redis, so these are not measured otherwise."""
        async with monitored(self.servers) as idle:
            await asyncio.sleep(IDLE_S)
        began = monotonic()
        async with monitored(self.servers) as busy:
            await self.run(PROBED_CAPTIONS, 4.0)
        return max(len(busy) - len(idle) / IDLE_S * (monotonic() - began), 0.0) / PROBED_CAPTIONS

    async def _idle_commands_per_s(self) -> float:
        self._redis("CONFIG", "RESETSTAT")
        await asyncio.sleep(IDLE_S)
        return self._commands() / IDLE_S

    def _commands(self) -> float:
        lines = self._redis("INFO", "commandstats").splitlines()
        calls = (line.partition("calls=")[2].partition(",")[0] for line in lines if line.startswith("cmdstat_"))
        return float(sum(map(int, calls)))

    def _redis(self, *command: str) -> str:
        return str(self.servers.nodes[0].call(*command))

    def _cpu_s(self) -> tuple[float, float]:
        return sum(map(cpu_s, self.pids)), self.servers.cpu_s()


@asynccontextmanager
async def audience(name: str, bench: Bench) -> AsyncIterator[Audience]:
    """The servers of one system, and its readers in their room."""
    settings = {**UNLIMITED, "rooms.captions_per_minute": 0, "rooms.audio_seconds_per_minute": 0}
    text = bench.settings.text
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-bench-")))
        count = 1 + READER_PROCESSES
        # They start while the servers do.
        writer, *readers = (stack.enter_context(LoadProcess(MODULE, folder / f"{n}.log")) for n in range(count))
        if name == "dragoman":
            async with environment(bench.servers, INSTANCES, (), settings=settings) as one:
                pids = [instance.pid for instance in one.instances]
                room = await _open(name, one.urls, Audience(bench.servers, pids, writer, readers, text), bench.settings)
                for instance in one.instances:
                    await instance.wait_for_nodes(NODES if text else NODES + RECOGNISERS)
                yield room
        else:
            async with peer(name, bench.servers) as other:
                yield await _open(
                    name, other.urls, Audience(bench.servers, other.pids, writer, readers, text), bench.settings
                )


async def _open(name: str, urls: list[str], room: Audience, settings: Settings) -> Audience:
    system = name if name != "dragoman" else WRITTEN if settings.text else SPOKEN
    opened = await room.writer.call("open_writer", OPEN_TIMEOUT_S, system=system, urls=urls)
    shares = [settings.readers // READER_PROCESSES] * READER_PROCESSES
    shares[0] += settings.readers % READER_PROCESSES
    for at, one in enumerate(room.readers):
        await one.call("open", OPEN_TIMEOUT_S, system=system, urls=urls, first=sum(shares[:at]), count=shares[at])
    if name != "dragoman":
        await _join(room, "")
        return room
    async with monitored(room.servers) as calls:
        began = monotonic()
        await _join(room, opened["room"])
        took_s = monotonic() - began
    room.joined = {"join_s": took_s, "join_redis_calls": len(calls) / settings.readers}
    return room


async def _join(room: Audience, room_id: str) -> None:
    await asyncio.gather(*(one.call("join", OPEN_TIMEOUT_S, room=room_id) for one in room.readers))


@asynccontextmanager
async def monitored(servers: Servers) -> AsyncIterator[list[bytes]]:
    """The commands that clients send to Redis meanwhile, without those inside scripts."""
    redis = Address.parse(servers.urls[0])
    reader, writer = await asyncio.open_connection(redis.host, redis.port)
    writer.write(b"MONITOR\r\n")
    await reader.readline()
    calls: list[bytes] = []

    async def read() -> None:
        while line := await reader.readline():
            if b" lua] " not in line[:60]:
                calls.append(line)

    reading = asyncio.create_task(read())
    try:
        yield calls
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        writer.close()


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each caption was written, assigned, translated and received; times by caption and kind of message."""

    written: Mapping[str, Any]
    received: Sequence[Mapping[str, Any]]  # by process

    @property
    def deliveries(self) -> int:
        return sum(one["received"] for one in self.received)

    def _over_processes(self, name: str, choose: Callable[[list[float]], float]) -> list[float]:
        """0 of a process: none of its readers gets this message."""
        columns = zip(*(one[name] for one in self.received), strict=True)
        return [choose([at for at in column if at] or [0.0]) for column in columns]

    def late_s(self) -> float:
        """From the last result to the last arrival."""
        return max(self._over_processes("last", max)) - float(max(self.written["sent"]))

    def quantities(self) -> Quantities:
        written, heard, recognised = (self.written[name] for name in ("written", "heard", "recognised"))
        assigned, sent = self.written["assigned"], self.written["sent"]
        first, last = self._over_processes("first", min), self._over_processes("last", max)
        stages: dict[str, list[float]] = {"heard": [], "original_last": [], "last_reader": []}
        by_language: dict[str, list[float]] = {"assign": [], "result_to_first": [], "translation": []}
        for at, when in enumerate(written):
            stages["heard"].append(heard[at] - when)
            stages["original_last"].append(last[at * KINDS] - recognised[at])
            asr_s = recognised[at] - heard[at]
            kinds = [k for k in range(at * KINDS + 1, (at + 1) * KINDS) if last[k]]  # read by somebody
            stages["last_reader"].append(max(last[k] - sent[k] for k in kinds))
            for k in kinds:
                by_language["result_to_first"].append(first[k] - sent[k])
                if assigned[k]:
                    by_language["assign"].append(assigned[k] - recognised[at])
                    by_language["translation"].append(last[k] - when - asr_s - (sent[k] - assigned[k]))
        found: Quantities = {}
        for name, taken in (stages | by_language).items():
            if taken:
                taken.sort()
                found |= {
                    f"{name}_p50_ms": percentile(taken, 0.5) * 1e3,
                    f"{name}_p99_ms": percentile(taken, 0.99) * 1e3,
                }
        return found


# -- results ---------------------------------------------------------------------------------------


Figures = Mapping[str, float]


def conclude(report: Report, samples: Mapping[str, Sequence[Quantities]], not_measured: Mapping[str, str]) -> None:
    report.settings["not_measured"] = dict(not_measured)
    report.figures = {name.removeprefix("dragoman_"): value for name, value in report.figures.items()}
    report.ratios = ratios(samples)
    is_text = bool(report.settings.get("text"))
    report.tables += [systems_table(report.figures), stages_table(report.figures, text=is_text)]
    if report.ratios:
        report.tables.insert(1, ratios_table(report.ratios))
    report.notes += notes(report.figures)
    for name, why in not_measured.items():
        report.notes.append(f"{SYSTEMS[name.removesuffix('_max')]}: not measured; {why.rstrip('.')}.")
    report.notes.append(verdict(report.ratios))


def ratios(samples: Mapping[str, Sequence[Quantities]]) -> dict[str, float]:
    """Ours over a peer's, round by round: the median, and the smallest and largest."""
    found: dict[str, float] = {}
    for name in (name for name in INSTALLERS if name in samples):
        for quantity, short in RATIOS.items():
            pairs = zip(samples["dragoman"], samples[name], strict=False)
            each = [ours[quantity] / theirs[quantity] for ours, theirs in pairs if theirs[quantity]]
            if each:
                key = f"{short}_vs_{name}"
                found |= {key: median(each), f"{key}_min": min(each), f"{key}_max": max(each)}
    return found


def systems_table(figures: Figures) -> Table:
    names = ["cpu_us_per_delivery", "last_reader_p50_ms", "last_reader_p99_ms"]
    names += ["max_captions_per_s", "max_cpu_us_per_delivery"]
    columns = ["", "CPU µs", "last p50 ms", "last p99 ms", "max captions/s", "CPU µs at max"]
    rows = figure_rows(figures, {title: _prefix(name) for name, title in SYSTEMS.items()}, names)
    return table("CPU of the servers per delivery; from the result to the last reader", columns, rows)


def ratios_table(found: Figures) -> Table:
    rows = [
        [title, *(interval(found, f"{short}_vs_{name}") for short in RATIOS.values())]
        for name, title in SYSTEMS.items()
        if name in INSTALLERS
    ]
    return table("Dragoman's share of it, median (smallest–largest)", ["", "CPU", "last p99"], rows)


def interval(found: Figures, name: str) -> str:
    if name not in found:
        return "–"
    return f"{found[name]:.2f} × ({found[f'{name}_min']:.2f}–{found[f'{name}_max']:.2f})"


def _prefix(name: str) -> str:
    return "" if name == "dragoman" else f"{name}_"


STAGES = {
    "end of speech → job at the recogniser": "heard",
    "recognised → original at the last reader": "original_last",
    "recognised → job at the text node": "assign",
    "result → translation at its first reader": "result_to_first",
    "result → translations at the last reader": "last_reader",
    "end of speech → translation at its last reader, without the nodes": "translation",
}


def stages_table(figures: Figures, *, text: bool) -> Table:
    """A written caption is recognised when it is written."""
    named = {
        title.replace("recognised", "write").replace("end of speech", "write") if text else title: name
        for title, name in STAGES.items()
        if not (text and name == "heard")
    }
    rows = figure_rows(figures, {title: f"{name}_" for title, name in named.items()}, ("p50_ms", "p99_ms"))
    return table("Dragoman, by stage", ["", "p50 ms", "p99 ms"], rows)


def notes(figures: Figures) -> list[str]:
    jobs = figures.get("recognize_jobs_per_utterance")
    return [
        *([f"{number(jobs)} recognise jobs per utterance; target 1.00."] if jobs is not None else []),
        f"A caption takes {number(figures.get('redis_commands_per_caption'))} Redis commands, "
        f"{number(figures.get('redis_calls_per_caption'))} of them calls of instances; the others run inside scripts.",
        f"All readers joined within {number(figures.get('join_s'))} s, with "
        f"{number(figures.get('join_redis_calls'))} Redis calls each.",
    ]


def verdict(found: Figures) -> str:
    cpu = [found[name] for name in ("cpu_vs_socketio", "cpu_vs_nats") if name in found]
    if not cpu:
        return "There is no peer to compare with."
    aims = {f"CPU of a delivery {max(cpu):.2f} × the better peer": max(cpu) <= 1.0}
    if (ratio := found.get("last_reader_p99_vs_socketio")) is not None:
        aims[f"last reader p99 {ratio:.2f} × socket.io"] = ratio <= 1.0
    parts = [f"{words} ({'met' if met else 'missed'})" for words, met in aims.items()]
    return f"Targets, at most 1.00 ×: {'; '.join(parts)}."
