"""`dragoman bench abuse`: what healthy clients notice of attacks, one attack after the other.

The latency of healthy clients is measured before each attack and during it; the ratio of the two p99 is the cost of
the attack. After it, nothing that it created may be left. The answers are checked, and no healthy client may lose
anything.

A p99 of some seconds is one utterance of a hundred, and other load of the machine can triple it. So an attack whose
ratio is above 3 is run twice more, and the median of the three counts.

The allocator keeps part of the memory of a peak, once. A leak grows with every run. So an attack after which the
instances have 10 % more memory than before is run again, and the last run counts.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from rich.table import Table

from dragoman.embedded.binary import ServerBinary
from dragoman.instance.process import raise_file_limit
from dragoman.tools.bench.abuse.attack import Attack, Scale
from dragoman.tools.bench.abuse.attacker import ATTACKS
from dragoman.tools.bench.abuse.environment import SECRET, AbuseEnvironment, State, environment
from dragoman.tools.bench.environment import Servers
from dragoman.tools.bench.environment import running as running_redis
from dragoman.tools.processes import CannotRun
from dragoman.tools.report import OnStep, Report, number, table

SPARE_FILES = 2500
KINDS = ("speech", "chat", "room")
MIB = 1 << 20
# Of both instances, over a whole run. The allocator keeps some of what it had at the peak: 10,000 sockets are 100 MiB.
GROWTH_MIB = 64
MAX_KEYS = 5
MAX_RATIO = 3.0  # times the p99 of before
GROWTH = 1.1  # times the memory of before
TRIES = 3  # of what seems to cost more, or to keep memory


@dataclass(frozen=True, slots=True)
class Settings:
    seconds: float = 4.0
    warmup_s: float = 3.0
    per_s: float = 25.0
    scale: Scale = field(default_factory=Scale)
    give_way: bool = False  # the attacker has what nobody else wants: of a machine that is busy with others, nothing
    only: tuple[str, ...] = ()

    @property
    def attacks(self) -> Sequence[Attack]:
        return [attack for attack in ATTACKS if not self.only or attack.name in self.only]


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one attack."""

    attack: Attack
    rounds: int
    answers: Mapping[str, int]
    before: Mapping[str, Any]
    during: Mapping[str, Any]
    left: Sequence[str]
    rss_before: int
    rss_after: int

    @property
    def wrong(self) -> list[str]:
        sentences = [f"{self.attack.name}: {what}" for what in self.attack.wrong(Counter(self.answers))]
        sentences += [f"{self.attack.name}: {what} left" for what in self.left]
        if self.keeps_memory:
            kept = f"{self.rss_before / MIB:.0f} → {self.rss_after / MIB:.0f} MiB"
            sentences.append(f"{self.attack.name}: memory was not freed, {kept}")
        return sentences

    @property
    def is_costly(self) -> bool:
        return any(self.ratio(kind) > MAX_RATIO for kind in KINDS)

    @property
    def keeps_memory(self) -> bool:
        return self.rss_after > self.rss_before * GROWTH

    def ratio(self, kind: str) -> float:
        return float(self.during[kind]["p99_ms"] / self.before[kind]["p99_ms"])


def middle(tries: Sequence[Finding]) -> Finding:
    """What they found together; of the times, those of the try in the middle."""
    chosen = {kind: sorted(tries, key=lambda found: found.ratio(kind))[len(tries) // 2] for kind in KINDS}
    return replace(
        tries[0],
        rounds=sum(found.rounds for found in tries),
        answers=sum((Counter(found.answers) for found in tries), Counter()),
        before={kind: found.before[kind] for kind, found in chosen.items()},
        during={kind: found.during[kind] for kind, found in chosen.items()},
        left=[what for found in tries for what in found.left],
        rss_before=tries[-1].rss_before,
        rss_after=tries[-1].rss_after,
    )


def steps(settings: Settings) -> int:
    return len(settings.attacks) + 1


def run(settings: Settings, binary: ServerBinary, on_step: OnStep) -> Report:
    if not raise_file_limit(settings.scale.strangers + SPARE_FILES):
        raise CannotRun("That many connections take more open files than the system allows (ulimit -Hn).")
    shown: dict[str, object] = asdict(settings) | {"redis": str(binary)}
    report = Report(shown)
    with running_redis("single", binary) as servers, TemporaryDirectory(prefix="dragoman-bench-") as folder:
        uvloop.run(_run(report, settings, servers, Path(folder), on_step))
    return report


async def _run(report: Report, settings: Settings, servers: Servers, folder: Path, on_step: OnStep) -> None:
    async with environment(servers, folder) as running:
        on_step("healthy clients")
        await _open(running, settings)
        if settings.give_way:
            await running.attacker.call("give_way")
        first = await running.state()
        findings = []
        for attack in settings.attacks:
            on_step(attack.title)
            tries = [await _one(running, settings, attack, first)]
            while (tries[0].is_costly or tries[-1].keeps_memory) and len(tries) < TRIES:
                tries.append(await _one(running, settings, attack, first))
            findings.append(middle(tries))
        healthy = await running.healthy_clients.call("rest")
        last, _ = await running.settle(first)
        wrong = [f"{key} left in Redis" for key in running.leaked_keys()[:MAX_KEYS]]
        if logged := running.errors_in_the_log():
            wrong.append(f"an instance logged: {logged}")
        conclude(report, findings, healthy, (first, last), wrong)


async def _open(running: AbuseEnvironment, settings: Settings) -> None:
    config = running.instances[0].settings
    await running.healthy_clients.call(
        "open",
        urls=[one.url for one in running.instances],
        secret=SECRET,
        issuer=config.security.issuer,
        chat_issuer=config.chat.issuer,
    )
    await running.wait_for_the_node()
    await running.healthy_clients.call("begin", per_s=settings.per_s)
    await asyncio.sleep(settings.warmup_s)


async def _one(running: AbuseEnvironment, settings: Settings, attack: Attack, first: State) -> Finding:
    rss = (await running.state()).rss_bytes
    await running.healthy_clients.call("mark")
    await asyncio.sleep(settings.seconds)
    before = await running.healthy_clients.call("look")
    await running.healthy_clients.call("mark")
    try:
        attacked = await running.attack(attack.name, settings.seconds, settings.scale)
    except CannotRun as error:
        raise CannotRun(f"The attack {attack.name} did not work: {error}") from error
    during = await running.healthy_clients.call("look")
    state, left = await running.settle(first)
    return Finding(attack, attacked["rounds"], attacked["answers"], before, during, left, rss, state.rss_bytes)


# -- what is concluded ---------------------------------------------------------------------------


def conclude(
    report: Report,
    findings: Sequence[Finding],
    healthy: Mapping[str, Any],
    states: tuple[State, State],
    wrong_inside: Sequence[str] = (),
) -> None:
    """`states` are those before the first attack and after the last; `wrong_inside` is what the running found."""
    first, last = states
    for found in findings:
        name = found.attack.name
        for kind in KINDS:
            report.figures[f"{name}_{kind}_p99_before_ms"] = found.before[kind]["p99_ms"]
            report.figures[f"{name}_{kind}_p99_ms"] = found.during[kind]["p99_ms"]
            report.ratios[f"{name}_{kind}_p99"] = found.ratio(kind)
        report.figures[f"{name}_rounds"] = found.rounds
        report.figures[f"{name}_rss_mib"] = (found.rss_after - found.rss_before) / MIB
    for kind in KINDS:
        report.ratios[f"worst_{kind}_p99"] = max(found.ratio(kind) for found in findings)
    report.figures["rss_before_mib"], report.figures["rss_after_mib"] = first.rss_bytes / MIB, last.rss_bytes / MIB
    report.figures["healthy_utterances"] = healthy["utterances"]
    report.figures["healthy_messages"] = healthy["messages"]
    report.figures["healthy_sentences"] = healthy["sentences"]
    report.figures["healthy_lost"], report.figures["healthy_slowed"] = healthy["lost"], healthy["slowed"]
    wrong = [what for found in findings for what in found.wrong]
    wrong += [f"healthy clients: {what}" for what in healthy["failures"]]
    wrong += [f"healthy clients: {healthy['lost']} lost"] if healthy["lost"] else []
    wrong += [f"{left} left at the end" for left in last.more_than(first)]
    grown = (last.rss_bytes - first.rss_bytes) / MIB
    wrong += [f"{grown:.0f} MiB more memory than before"] if grown > GROWTH_MIB else []
    wrong += wrong_inside
    report.figures["wrong"] = len(wrong)
    report.settings["answers"] = {found.attack.name: dict(found.answers) for found in findings}
    report.settings["wrong"] = wrong
    report.tables = [answer_table(findings), cost_table(findings)]
    report.notes = [_summary(report, healthy), *(f"Wrong: {what}" for what in wrong)]


def _summary(report: Report, healthy: Mapping[str, Any]) -> str:
    figures = report.figures
    return (
        f"Healthy clients: {healthy['utterances']:,} utterances, {healthy['messages']:,} messages and "
        f"{healthy['sentences']:,} sentences in a room, {healthy['lost']} lost. "
        f"Memory of both instances: {figures['rss_before_mib']:.0f} MiB before, {figures['rss_after_mib']:.0f} after."
    )


def answer_table(findings: Sequence[Finding]) -> Table:
    rows = [[found.attack.title, f"{found.rounds:,}", ", ".join(sorted(found.answers))] for found in findings]
    return table("Answers to the attacks", ["", "rounds", "answers"], rows)


def cost_table(findings: Sequence[Finding]) -> Table:
    rows = [
        [
            found.attack.title,
            *(text for kind in KINDS for text in _compared(found, kind)),
            f"{found.rss_before / MIB:.0f} → {found.rss_after / MIB:.0f}",
        ]
        for found in findings
    ]
    columns = ["p99 before → during, ms", *(head for kind in KINDS for head in (kind, "ratio")), "MiB"]
    return table("Latency of healthy clients", columns, rows)


def _compared(found: Finding, kind: str) -> tuple[str, str]:
    before, during = found.before[kind]["p99_ms"], found.during[kind]["p99_ms"]
    return f"{number(before)} → {number(during)}", number(found.ratio(kind), " ×")
