"""The verdict over one phase: ledgers, recordings and facts in, every broken promise out, as sentences. Pure.

Each promise is one function, here for the stores at rest and for nodes, in `chat_ledger`, `check_speech` and
`room_ledger` for the others. What Redis may lose by its durability class is counted apart, never ignored.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dragoman.tools.verify.chat_ledger import ChatLedger, Entry
from dragoman.tools.verify.check_speech import Ends, SessionCheck
from dragoman.tools.verify.facts import Facts, Finding, JobFact, Rules, Tolerated
from dragoman.tools.verify.recordings import Assignment, Attempt, Kind, NodeEvent, Recordings, assignments, max_jobs
from dragoman.tools.verify.room_ledger import RoomFact, RoomLedger, late_ends
from dragoman.tools.verify.speech_ledger import SpeechLedger

LOST = frozenset({"lost", "false saved", "not notified", "undelivered", "unanswered", "no end"})
DOUBLED = frozenset(
    {"duplicated", "duplicate", "settled twice", "sent again", "started twice", "saved twice", "two ends"}
)
OUT_OF_ORDER = frozenset({"reorder", "held back", "accepted after saved", "ts went back"})
LATE = frozenset({"late"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """`promised`: messages accepted, or saved if that is their only confirmation, utterances cut, and captions of rooms
    confirmed; `kept`: those of them that ended as promised."""

    promised: int
    kept: int
    lost: int
    tolerated_lost: int
    duplicated: int
    out_of_order: int
    late: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # worth knowing, and no broken promise

    @property
    def ok(self) -> bool:
        return not self.findings


def judge(
    chat: ChatLedger,
    speech: SpeechLedger,
    recorded: Sequence[NodeEvent],
    facts: Facts,
    tolerated: Tolerated | None = None,
    *,
    before: Facts | None = None,
    rules: Rules | None = None,
    rooms: RoomLedger | None = None,
) -> Verdict:
    """`before`: the stores at rest before this part began; without it, they are taken to have been in order."""
    tolerated, before, rules = tolerated or Tolerated(), before or Facts(), rules or Rules()
    # Silence that no node has processed is not waited for, and may be cut after the stores were read.
    late = {event.job for event in recorded if event.kind is Kind.GIVEN and event.at > facts.read_at}
    late -= {event.job for event in recorded if event.kind is Kind.GIVEN and event.at <= facts.read_at}
    seen = [event for event in recorded if not event.job or event.job not in late]
    recordings = Recordings([event for event in seen if not event.session or event.session in speech.sessions])
    found = [*_chat(chat, facts, tolerated, rules)]
    ends = Ends()
    jobs = {name: job for name, job in facts.jobs.items() if job.session in speech.sessions}
    for spoken in speech.sessions.values():
        fact = facts.sessions.get(spoken.id)
        check = SessionCheck(spoken, fact, recordings, tolerated, rules, ends, jobs, facts.read_at)
        found += check.findings()
    found += node_findings(recordings, jobs, tolerated, rules)
    found += store_findings(facts, before, speech, tolerated)
    rooms = rooms or RoomLedger()
    in_room = rooms.check(facts.room) if facts.room is not None else []
    if facts.room is not None:
        in_room += late_ends(facts.room.log, _bound_of_ends(tolerated, rules))
    found += [Finding(one.kind, one.sentence) for one in in_room]
    if not chat.promised and not ends.promised and not rooms.promised:
        found.append(Finding("nothing promised", "nothing was promised to any client, so nothing was tested"))
    verdict = _counted(chat, speech, ends, facts, before, tolerated, found)
    return replace(
        verdict,
        promised=verdict.promised + rooms.promised,
        kept=verdict.kept + rooms.kept(facts.room or RoomFact(), in_room),
        notes=(*verdict.notes, *rooms.notes(facts.room or RoomFact())),
    )


def _bound_of_ends(tolerated: Tolerated, rules: Rules) -> Callable[[int, int], float]:
    """How many ms a language may take to its end: its timeout and a poll, and longer only while something is broken."""
    offset_s = time.time() - time.monotonic()

    def bound_ms(from_ms: int, to_ms: int) -> float:
        calm = tolerated.undisturbed(from_ms / 1000 - offset_s, to_ms / 1000 - offset_s)
        return 1000 * (rules.translate_s + rules.poll_s + rules.slack_s + (0.0 if calm else rules.repair_s))

    return bound_ms


def _chat(chat: ChatLedger, facts: Facts, tolerated: Tolerated, rules: Rules) -> list[Finding]:
    def may_be_lost(entry: Entry) -> bool:
        return tolerated.may_be_lost(entry.accepted_at)

    broken = chat.check(facts.rows, facts.dead, tolerated=may_be_lost, ack_grace_s=rules.ack_grace_s)
    return [Finding(*sentence.split(": ", 1)) for sentence in broken]


def _counted(
    chat: ChatLedger,
    speech: SpeechLedger,
    ends: Ends,
    facts: Facts,
    before: Facts,
    tolerated: Tolerated,
    found: list[Finding],
) -> Verdict:
    kinds = Counter(finding.kind for finding in found)

    def count(several: frozenset[str]) -> int:
        return sum(kinds[kind] for kind in several)

    forgotten = tuple(lost_by_redis(facts, before, tolerated))
    return Verdict(
        promised=chat.promised + ends.promised,
        kept=chat.kept(facts.rows) + ends.kept,
        lost=count(LOST),
        tolerated_lost=len(chat.lost) + ends.tolerated,
        duplicated=count(DOUBLED),
        out_of_order=count(OUT_OF_ORDER),
        late=count(LATE),
        findings=tuple(found),
        notes=(*_notes(ends, speech, facts, before), *(f"forgotten by Redis: {sentence}" for sentence in forgotten)),
    )


def _notes(ends: Ends, speech: SpeechLedger, facts: Facts, before: Facts) -> list[str]:
    notes = [f"{ends.skipped} utterances were skipped"] * bool(ends.skipped)
    codes = Counter(failure.code for one in speech.sessions.values() for failure in one.failures)
    notes += [
        f"{count} utterances failed with {code}, and their speakers were notified" for code, count in codes.items()
    ]
    return notes + [f"dead letter: {letter}" for letter in facts.letters if letter not in before.letters]


def store_findings(facts: Facts, before: Facts, speech: SpeechLedger, tolerated: Tolerated) -> Iterator[Finding]:
    """`before`: the same stores at rest, before this part of the run began."""
    yield from _nothing_taken(facts)
    yield from _accounts(facts, before, tolerated)
    yield from _jobs_are_over(facts, speech, tolerated)
    if not tolerated.lost_spans:
        yield from (Finding("key leak", f"{sentence}.") for sentence in facts.leaks if sentence not in before.leaks)


def lost_by_redis(facts: Facts, before: Facts, tolerated: Tolerated) -> Iterator[str]:
    """What is wrong with accounts and keys because Redis lost_spans, in words."""
    if tolerated.lost_spans:
        yield from facts.leaks
        yield from _off_since(facts, before)


def _nothing_taken(facts: Facts) -> Iterator[Finding]:
    for node, jobs in facts.slots.items():
        yield Finding("slot leak", f"{node} has {len(jobs)} slots taken at rest, by {', '.join(sorted(jobs)[:5])}")
    for number, shard in enumerate(facts.shards):
        left = {
            "accepted": shard.accepted_len,
            "to_save": shard.to_save_len,
            "backlog": shard.backlog,
        }
        if any(left.values()):
            yield Finding("shard left", f"shard {number} has work left at rest: {left}")
    for sender, count in facts.unsaved.items():
        yield Finding("shard left", f"{count} messages of {sender} are counted as unsaved, and none is on its way")
    for instance, tally in facts.inboxes.items():
        if tally.waiting:
            yield Finding("inbox left", f"the inbox of {instance} holds {tally.waiting} entries at rest")


def _accounts(facts: Facts, before: Facts, tolerated: Tolerated) -> Iterator[Finding]:
    if not tolerated.lost_spans:
        yield from (Finding("account", sentence) for sentence in _off_since(facts, before))


def _off_since(facts: Facts, before: Facts) -> Iterator[str]:
    """Accounts that do not add up, in words; without those that were off by as much before."""
    known = dict(_balances(before))
    words = {f"the inbox of {name}": str(tally) for name, tally in facts.inboxes.items()}
    words |= {f"shard {number}": str(tally) for number, tally in enumerate(facts.shards)}
    for name, by in _balances(facts):
        if by and by != known.get(name, 0):
            yield f"{name} is {by:+d} off: {words[name]}"


def _balances(facts: Facts) -> Iterator[tuple[str, int]]:
    """By how much more was put in than came out and is there."""
    for instance, box in facts.inboxes.items():
        yield f"the inbox of {instance}", box.added - box.done - box.dead - box.waiting
    for number, shard in enumerate(facts.shards):
        yield f"shard {number}", shard.accepted - shard.saved - shard.dead - shard.backlog


def _jobs_are_over(facts: Facts, speech: SpeechLedger, tolerated: Tolerated) -> Iterator[Finding]:
    for job in facts.jobs.values():
        if not job.is_over and not _notified_and_lost(job.session, job.index, speech, tolerated):
            yield Finding(
                "no outcome", f"job {job.job} (utterance {job.index} of {job.session}) is {job.state} at rest"
            )
    for instance, jobs in facts.driven.items():
        left = [job for job in jobs if job not in facts.jobs or facts.jobs[job].is_over]
        if left and not tolerated.lost_spans:
            yield Finding("key leak", f"{instance} is noted as driving jobs that are over: {sorted(left)[:5]}")


def _notified_and_lost(session: str, index: int, speech: SpeechLedger, tolerated: Tolerated) -> bool:
    spoken = speech.sessions.get(session)
    return spoken is not None and any(map(tolerated.may_be_lost, spoken.promised_at(index)))


# -- check nodes -----------------------------------------------------------------------------------
#
# Promises that recordings of nodes prove: one job an utterance, each attempt once, slots respected, turns together.


def node_findings(
    recordings: Recordings, jobs: Mapping[str, JobFact], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    over_at = {job.job: job.finished_at for job in jobs.values() if job.finished_at is not None}
    found = list(assignments(recordings, over_at, rules.slack_s))
    yield from _one_job_each(recordings, jobs)
    yield from _started_once(recordings)
    yield from _same_audio(recordings)
    yield from _slots_are_respected(found, rules)
    yield from _turns_stay(recordings, found, tolerated, rules)
    yield from _in_time(jobs, tolerated, rules)


def _one_job_each(recordings: Recordings, jobs: Mapping[str, JobFact]) -> Iterator[Finding]:
    names: dict[tuple[str, int], set[str]] = defaultdict(set)
    for attempt in recordings.attempts.values():
        names[attempt.session, attempt.index].add(attempt.job)
    for job in jobs.values():
        names[job.session, job.index].add(job.job)
    for (session, index), several in names.items():
        if len(several) > 1:
            yield Finding("double booking", f"utterance {index} of {session} is {len(several)} jobs: {sorted(several)}")
    nodes: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in recordings.attempts.values():
        nodes[one.job, one.attempt].add(one.node)
    for (name, number), them in nodes.items():
        if len(them) > 1:
            yield Finding("double booking", f"attempt {number} of {name} was given to {' and '.join(sorted(them))}")


def _started_once(recordings: Recordings) -> Iterator[Finding]:
    times: Counter[tuple[str, int]] = Counter()
    for one in recordings.attempts.values():
        times[one.job, one.attempt] += len(one.started)
    for (job, attempt), count in times.items():
        if count > 1:
            yield Finding("started twice", f"attempt {attempt} of {job} was started {count} times")


def _same_audio(recordings: Recordings) -> Iterator[Finding]:
    audio: dict[str, set[str]] = defaultdict(set)
    for one in recordings.attempts.values():
        if one.pieces is not None:
            audio[one.job].add(one.pieces)
    for job, versions in audio.items():
        if len(versions) > 1:
            yield Finding("altered", f"attempts of {job} were given different audio: {sorted(versions)}")


def _slots_are_respected(found: list[Assignment], rules: Rules) -> Iterator[Finding]:
    """A job that is bound to its turn may come to the node before one that took its slot earlier: so it is not the
    order of coming that counts, but how many there are, and how many of those are bound to nothing."""
    for one in found:
        beyond = one.others >= one.event.slots + rules.overcommit
        if beyond or (not one.bound and one.free >= one.event.slots):
            kind = "of a turn it had a job of" if one.bound else "bound to no turn of its own"
            who = f"{one.event.node} has {one.event.slots} slots and {one.others} jobs, and was given {one.event.job}"
            yield Finding("over its slots", f"{who} ({kind}; utterance {one.event.index} of {one.event.session})")


def _turns_stay(
    recordings: Recordings, found: list[Assignment], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    for first, *others in recordings.turns():
        if first.attempt != 1:
            continue  # the node that the turn was bound to recorded nothing of it
        for one in others:
            if one.node != first.node and one.attempt == 1:
                yield from _strayed(first, one, recordings, found, tolerated, rules)


def _strayed(
    first: Attempt, one: Attempt, recordings: Recordings, found: list[Assignment], tolerated: Tolerated, rules: Rules
) -> Iterator[Finding]:
    at = min(one.given)
    port = recordings.port_of(first.node, at, rules.settle_s)
    if port is None or not tolerated.undisturbed(at - rules.settle_s, at, port):
        return
    slots = max(assignment.event.slots for assignment in found if assignment.event.node == first.node)
    # Jobs that were placed and had not reached the node yet held a slot as well: nearly full may have been full.
    if max_jobs(found, first.node, at, rules.slack_s) >= slots + rules.overcommit - 2:
        return
    where = f"utterance {one.index} of {one.session} went to {one.node}"
    yield Finding("strayed", f"{where}, its turn {one.turn} was on {first.node}, which was there and had room")


def _in_time(jobs: Mapping[str, JobFact], tolerated: Tolerated, rules: Rules) -> Iterator[Finding]:
    for job in jobs.values():
        ended = job.finished_at
        if ended is None or not tolerated.undisturbed(job.created_at, ended):
            continue
        took_s = ended - job.created_at
        if took_s > rules.job_s + rules.slack_s:
            yield Finding("late", f"job {job.job} ({job.outcome}) ended {took_s:.1f} s after it was made")
