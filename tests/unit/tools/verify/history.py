"""A run in which all went well, written down as clients, nodes and stores would have; and what can be spoiled in it.

Two nodes work the jobs of one session one after another, and of several at once; a turn stays on one node; results go
out as they come. Everything is drawn from one generator, so a history can be had again.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from dragoman.archive import Status, Stored
from dragoman.store import inbox
from dragoman.store.chat import entries
from dragoman.tools.verify import pieces
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.check import Verdict, judge
from dragoman.tools.verify.facts import Facts, JobFact, SessionFact, Tolerated
from dragoman.tools.verify.recordings import Kind, NodeEvent
from dragoman.tools.verify.speech_ledger import Answer, Given, SessionLedger, SpeechLedger

BEGIN, END = 1000.0, 2000.0
NODES = ("n1", "n2")
SLOTS = 64
USERS = (1001, 1002, 1003)


@dataclass
class History:
    chat: ChatLedger = field(default_factory=ChatLedger)
    speech: SpeechLedger = field(default_factory=SpeechLedger)
    events: list[NodeEvent] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)

    def verdict(self, tolerated: Tolerated | None = None, before: Facts | None = None) -> Verdict:
        return judge(self.chat, self.speech, self.events, self.facts, tolerated, before=before)

    def kinds(self, tolerated: Tolerated | None = None) -> set[str]:
        return {finding.kind for finding in self.verdict(tolerated).findings}

    @property
    def sessions(self) -> list[SessionLedger]:
        return list(self.speech.sessions.values())

    def event(self, kind: Kind, session: str, index: int) -> NodeEvent:
        return next(one for one in self.events if (one.kind, one.session, one.index) == (kind, session, index))

    def swap(self, old: NodeEvent, *new: NodeEvent) -> None:
        at = self.events.index(old)
        self.events[at : at + 1] = new


def flawless_history(seed: int = 1, sessions: int = 3, turns: int = 6, messages: int = 12) -> History:
    rng = Random(seed)
    history = History()
    for at, node in enumerate(NODES):
        common = {"node": node, "pid": 100 + at, "slots": SLOTS}
        history.events.append(NodeEvent(BEGIN - 2, Kind.BEGAN, **common))  # type: ignore[arg-type]
        url = f"ws://127.0.0.1:{5010 + at}/ws/node"
        history.events.append(NodeEvent(BEGIN - 2, Kind.REGISTERED, url=url, **common))  # type: ignore[arg-type]
        history.events.append(NodeEvent(END, Kind.ALIVE, **common))  # type: ignore[arg-type]
    jobs, facts = dict[str, JobFact](), dict[str, SessionFact]()
    for number in range(sessions):
        spoken = SessionLedger(f"s-{number}", f"speaker {number}", number % 2 == 1, BEGIN)
        history.speech.sessions[spoken.id] = spoken
        _speak(history, spoken, turns, rng, jobs)
        count = len([job for job in jobs.values() if job.session == spoken.id])
        facts[spoken.id] = SessionFact(count, count)
    rows = _chat(history.chat, messages, rng)
    history.facts = Facts(
        rows=rows,
        shards=[entries.ShardStatus(accepted=len(rows), saved=len(rows)), entries.ShardStatus()],
        inboxes={"a": inbox.InboxCounts(added=7, done=7), "b": inbox.InboxCounts(added=3, done=2, dead=1)},
        jobs=jobs,
        sessions=facts,
    )
    history.events.sort(key=lambda event: event.at)
    return history


def _speak(history: History, spoken: SessionLedger, turns: int, rng: Random, jobs: dict[str, JobFact]) -> None:
    now, piece = BEGIN + rng.random(), 0
    busy_until: dict[str, float] = defaultdict(float)
    ends = list[tuple[float, int, str, str]]()
    for turn in range(turns):
        silent, node = rng.random() < 0.2, rng.choice(NODES)
        for _ in range(1 if spoken.numbered else rng.choice((1, 1, 3))):
            index = len([job for job in jobs.values() if job.session == spoken.id])
            count = rng.randint(1, 4)
            numbers = [-n if silent else n for n in range(piece + 1, piece + count + 1)]
            piece += count
            _give(spoken, numbers, now, index)
            now += rng.uniform(0.3, 0.8)
            ended = max(now, busy_until[node]) + rng.uniform(0.05, 1.5)
            busy_until[node] = ended
            text, job = pieces.text(numbers), f"job-{spoken.id}-{index}"
            _recordings(history, node, (now, ended), job, spoken.id, index, f"t-{spoken.id}-{turn}", text, silent)
            outcome = "empty" if silent else "ok"
            jobs[job] = JobFact(job, spoken.id, index, "RELEASED", outcome, "", 1, node, now, ended + 0.005)
            if not silent:
                ends.append((ended + 0.01, index, job, text))
    highest = -1
    for at, index, job, text in sorted(ends):
        spoken.seen[index] = at
        spoken.answers.append(Answer(index, at, job, index < highest, text))
        highest = max(highest, index)


def _give(spoken: SessionLedger, numbers: Sequence[int], now: float, index: int) -> None:
    if spoken.numbered:
        spoken.given.append(Given(tuple(numbers), now, index))
    else:
        spoken.given += [Given((number,), now) for number in numbers]


def _recordings(
    history: History,
    node: str,
    span: tuple[float, float],
    job: str,
    session: str,
    index: int,
    turn: str,
    text: str,
    silent: bool,
) -> None:
    given = NodeEvent(
        span[0],
        Kind.GIVEN,
        node,
        100 + NODES.index(node),
        slots=SLOTS,
        job=job,
        attempt=1,
        session=session,
        index=index,
        turn=turn,
    )
    history.events.append(given)
    history.events.append(changed(given, at=span[0] + 0.001, kind=Kind.STARTED, pieces=text))
    history.events.append(changed(given, at=span[1], kind=Kind.ENDED, outcome="empty" if silent else "ok"))


def changed(event: NodeEvent, **fields: object) -> NodeEvent:
    known = {name: getattr(event, name) for name in NodeEvent.__struct_fields__}
    return NodeEvent(**{**known, **fields})


def _chat(ledger: ChatLedger, messages: int, rng: Random) -> list[Stored]:
    rows = list[Stored]()
    seqs: dict[int, int] = defaultdict(int)
    for number in range(1, messages + 1):
        sender, to = rng.sample(USERS, 2)
        name, id, conversation = f"{sender}-{number}", 9000 + number, sender * 10_000 + to
        ledger.sent(sender, name, to, f"message {number}")
        ledger.accepted(sender, name, id)
        ledger.saved(sender, name, id)
        ledger.arrived(to, sender, name, id)
        ledger.acknowledged(to, id)
        seqs[conversation] += 1
        row = Stored(
            id, conversation, seqs[conversation], sender, to, "TEXT", f"message {number}", name, Status.SAVED, 1, 1
        )
        rows.append(row)
    return rows


def with_facts(history: History, **fields: object) -> None:
    history.facts = replace(history.facts, **fields)  # type: ignore[arg-type]
