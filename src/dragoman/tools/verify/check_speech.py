"""Promises to speakers: every utterance ends once, no word is lost or duplicated, results go out as they come.

An utterance ends as sent, backfilled, empty, failed or skipped. Speakers are notified of the first two and of failures.
That one was empty, its node recorded; that one was skipped follows from the window in the store, and is right only if
a later one had been out for as long as the window lasts before the result came.

First come, first sent: a result goes to its client at once when it arrives at the owner of the session, and it arrives
there when the end of its job is recorded. Two ends that one instance records on one Redis server are confirmed in the
order in which they are recorded, so their results are sent in that order. Ends on other servers of a Cluster, or
recorded by another instance, may be confirmed in another order; so may the answers of one node.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dragoman.tools.verify import pieces
from dragoman.tools.verify.facts import Finding, JobFact, Rules, SessionFact, Tolerated
from dragoman.tools.verify.recordings import Attempt, Recordings
from dragoman.tools.verify.speech_ledger import Answer, Failure, SessionLedger


@dataclass(slots=True)
class Ends:
    """How many utterances ended how."""

    sent: int = 0
    backfilled: int = 0
    empty: int = 0
    failed: int = 0
    skipped: int = 0
    lost: int = 0
    tolerated: int = 0
    twice: int = 0

    @property
    def kept(self) -> int:
        return self.sent + self.backfilled + self.empty + self.failed + self.skipped

    @property
    def promised(self) -> int:
        return self.kept + self.lost + self.tolerated + self.twice


@dataclass(frozen=True, slots=True)
class Overtaken:
    """An utterance that was sent after a later one; and the attempt and the job of each."""

    answer: Answer
    later: Answer
    mine: Attempt
    other: Attempt
    job: JobFact | None
    other_job: JobFact | None

    @property
    def of_one_node(self) -> bool:
        return (self.mine.node, self.mine.pid) == (self.other.node, self.other.pid)

    @property
    def answered_s(self) -> float:
        """How much sooner its node answered than that of the later one."""
        return (self.other.ok_at or 0.0) - (self.mine.ok_at or 0.0)

    @property
    def sent_s(self) -> float:
        """How much later it was sent."""
        return self.answer.at - self.later.at

    @property
    def arrived_s(self) -> float | None:
        """How much sooner its end was recorded than that of the later one; None if that is not known."""
        if self.job is None or self.other_job is None:
            return None
        mine, other = self.job.finished_at, self.other_job.finished_at
        return other - mine if mine is not None and other is not None else None

    @property
    def is_ordered(self) -> bool:
        """Whether both ends were confirmed in the order in which they were recorded."""
        return (
            self.job is not None and self.other_job is not None and self.job.recorded_by == self.other_job.recorded_by
        )


@dataclass(slots=True)
class SessionCheck:
    spoken: SessionLedger
    fact: SessionFact | None
    recordings: Recordings
    tolerated: Tolerated
    rules: Rules
    ends: Ends = field(default_factory=Ends)
    jobs: Mapping[str, JobFact] = field(default_factory=dict)
    read_at: float = math.inf  # when the stores were read: later utterances may be under way
    silent: set[int] = field(default_factory=set)  # utterances that ended without a word to the speaker
    _answers: dict[int, list[Answer]] = field(default_factory=lambda: defaultdict(list))
    _failures: dict[int, list[Failure]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for answer in self.spoken.answers:
            self._answers[answer.index].append(answer)
        for failure in self.spoken.failures:
            self._failures[failure.index].append(failure)

    def findings(self) -> Iterator[Finding]:
        for index in range(self._count()):
            yield from self._ends_once(index)
        yield from self._marks_are_true()
        yield from self._words()
        for late in self.spoken.late_partials:
            yield Finding("partial too late", f"{self.spoken.speaker} got {late} after the end of the utterance")
        overtaken = list(self._overtaken())
        # One sentence an utterance is enough, however many overtook it.
        yield from {one.answer.index: finding for one, finding in self._held_back(overtaken)}.values()
        yield from {one.answer.index: finding for one, finding in self._late(overtaken)}.values()

    def _count(self) -> int:
        spoken = self.spoken
        known = {index for index, at in spoken.seen.items() if at <= self.read_at}
        known |= {*self.recordings.indexes(spoken.id)}
        known |= {given.index for given in spoken.given if given.index is not None}
        cut = self.fact.next_index if self.fact is not None else 0
        return max(max(known, default=-1) + 1, cut)

    # -- each utterance ends once --------------------------------------------------------------------

    def _ends_once(self, index: int) -> Iterator[Finding]:
        answers, failures = self._answers.get(index, []), self._failures.get(index, [])
        if len(answers) + len(failures) > 1:
            self.ends.twice += 1
            got = [f"a result of {one.job}" for one in answers]
            got += [f"{one.code} of {one.job}" for one in failures]
            yield Finding("duplicated" if len(answers) > 1 else "settled twice", f"{self._who(index)} got {got}")
        elif failures:
            self.ends.failed += 1
        elif answers:
            self.ends.sent += not answers[0].backfilled
            self.ends.backfilled += answers[0].backfilled
        else:
            yield from self._ended_silently(index)

    def _ended_silently(self, index: int) -> Iterator[Finding]:
        spoken, fact = self.spoken, self.fact
        settled = fact is not None and fact.is_settled(index)
        self.silent.add(index)
        if self.recordings.was_empty(spoken.id, index) and (settled or spoken.lost_at is not None):
            self.ends.empty += 1
        elif settled and self._rightly_skipped(index):
            self.ends.skipped += 1
        elif self._may_be_lost(index):
            self.ends.tolerated += 1
        elif self._went_with_its_session:
            self.ends.failed += 1
        else:
            self.ends.lost += 1
            yield Finding("lost", f"{self._who(index)} was neither sent nor failed; {self._why(index)}")

    @property
    def _went_with_its_session(self) -> bool:
        """The session of a speaker that does not read ends when too much waits for it."""
        return self.spoken.slow and self.spoken.lost_at is not None

    def _rightly_skipped(self, index: int) -> bool:
        """A later one of its node had been out for as long as the window lasts when its result came, if it ever did.

        A result of another node starts no timeout: a job that runs elsewhere may take longer.
        """
        attempts = self.recordings.of(self.spoken.id, index)
        came = max(((at, one.node) for one in attempts if (at := one.ok_at) is not None), default=None)
        after = [(at, node) for later, at, node in self._out() if later > index]
        if came is None:
            return bool(after)
        timeout_s = self.rules.release_s - self.rules.slack_s
        return any(node == came[1] and came[0] >= at + timeout_s for at, node in after)

    def _out(self) -> Iterator[tuple[int, float, str]]:
        """Which results were sent when, and which nodes had answered them. Only a sent one starts a timeout."""
        for answer in self.spoken.answers:
            nodes = {one.node for one in self.recordings.of(self.spoken.id, answer.index) if one.ok_at is not None}
            yield from ((answer.index, answer.at, node) for node in nodes)

    def _may_be_lost(self, index: int) -> bool:
        """Its session, or its end, was written when Redis lost_spans."""
        times = [self.spoken.opened_at, *self.spoken.resumed_at]
        times += [one.at for one in self.spoken.given if one.index == index]
        for attempt in self.recordings.of(self.spoken.id, index):
            times += [*attempt.given, *(at for at, _ in attempt.ended)]
        return any(map(self.tolerated.may_be_lost, times))

    def _why(self, index: int) -> str:
        spoken, attempts = self.spoken, self.recordings.of(self.spoken.id, index)
        seen = "; ".join(_described(one) for one in attempts) or "no node was given it"
        state = "Redis does not know the session"
        if self.fact is not None:
            settled = "settled" if self.fact.is_settled(index) else "open"
            state = f"its window says {settled} (expected {self.fact.expected}, next {self.fact.next_index})"
        gone = f"; the session was lost: {spoken.lost_why}" if spoken.lost_at is not None else ""
        refused = f"; refused: {spoken.refusals[:3]}" if spoken.refusals else ""
        return f"{seen}; {state}{gone}{refused}"

    # -- words ---------------------------------------------------------------------------------------

    def _words(self) -> Iterator[Finding]:
        content = dict(self._content())
        held = Counter(piece for them in content.values() for piece in them)
        for piece, times in held.items():
            if times > 1:
                where = [index for index, them in content.items() if piece in them]
                yield Finding("duplicated", f"piece {piece} of {self.spoken.id} is in utterances {where}")
        given = {abs(piece) for one in self.spoken.given for piece in one.pieces}
        unknown = sorted(piece for piece in held if abs(piece) not in given)
        if unknown:
            yield Finding(
                "unknown origin", f"pieces {pieces.text(unknown)} of {self.spoken.id} were sent by no speaker"
            )
        yield from self._order_of_words(content)
        yield from self._numbered_as_given(content)
        recordings = {index: self.recordings.of(self.spoken.id, index) for index in content}
        began = {index for index, them in recordings.items() if any(one.pieces is not None for one in them)}
        unsaid = {*self.silent, *self._failures}
        lost = self.spoken.unanswered_pieces({index: content[index] if index in began else None for index in unsaid})
        if lost and not self._went_with_its_session and not self._pieces_may_be_lost(lost):
            again = f"; {self.spoken.missing} were too old to be sent again" if self.spoken.missing else ""
            gone = f"; the session was lost: {self.spoken.lost_why}" if self.spoken.lost_at is not None else ""
            sentence = f"pieces {pieces.text(lost)} of {self.spoken.id} are in no utterance{again}{gone}"
            yield Finding("lost", sentence)

    def _content(self) -> Iterator[tuple[int, list[int]]]:
        """The pieces of each utterance, by its answer or by its node."""
        answered = {one.index: one.pieces for one in self.spoken.answers}
        for index in sorted({*answered, *self.recordings.indexes(self.spoken.id)}):
            recorded = [one.pieces for one in self.recordings.of(self.spoken.id, index) if one.pieces is not None]
            yield index, answered.get(index) or (pieces.of_text(recorded[0]) if recorded else [])

    def _order_of_words(self, content: dict[int, list[int]]) -> Iterator[Finding]:
        last = 0
        for index, them in content.items():
            for piece in map(abs, them):
                if piece < last:
                    yield Finding("reorder", f"piece {piece} in {self._who(index)} comes after piece {last}")
                last = max(last, piece)

    def _numbered_as_given(self, content: dict[int, list[int]]) -> Iterator[Finding]:
        for one in self.spoken.given:
            if one.index is not None and content.get(one.index) and content[one.index] != list(one.pieces):
                got = pieces.text(content[one.index])
                yield Finding("altered", f"{self._who(one.index)} was sent as {one.pieces} and arrived as {got}")

    def _pieces_may_be_lost(self, lost: list[int]) -> bool:
        sent_at = [one.at for one in self.spoken.given if not set(lost).isdisjoint(one.pieces)]
        known = self._may_be_lost(-1) or any(map(self.tolerated.may_be_lost, sent_at))
        self.ends.tolerated += known
        return known

    # -- order and time ------------------------------------------------------------------------------

    def _marks_are_true(self) -> Iterator[Finding]:
        highest = -1
        for answer in self.spoken.answers:
            if answer.backfilled != (answer.index < highest):
                mark = "backfilled" if answer.backfilled else "not backfilled"
                yield Finding("reorder", f"{self._who(answer.index)} was {mark}, after utterance {highest} was sent")
            highest = max(highest, answer.index)

    def _held_back(self, overtaken: list[Overtaken]) -> Iterator[tuple[Overtaken, Finding]]:
        """Of two results, the first to arrive at the owner of the session is the first to be sent."""
        for one in overtaken:
            arrived_s, enough = one.arrived_s, 0.0 if one.is_ordered else self.rules.slack_s
            if arrived_s is not None and arrived_s > enough:
                came = f"was recorded {arrived_s:.3f} s before utterance {one.later.index}"
            elif one.answered_s > self.rules.slack_s:
                came = f"was answered by {one.mine.node} {one.answered_s:.2f} s before utterance {one.later.index}"
            else:
                continue
            if self._undisturbed(one.mine, one.mine.ok_at or 0.0, one.answer.at):
                sentence = f"{self._who(one.answer.index)} {came}, and sent {one.sent_s:.3f} s after it"
                yield one, Finding("held back", sentence)

    def _late(self, overtaken: list[Overtaken]) -> Iterator[tuple[Overtaken, Finding]]:
        for one in overtaken:
            late_s = one.sent_s - self.rules.release_s
            known = one.of_one_node and max(one.mine.given) < one.later.at
            if late_s > self.rules.slack_s and known and self._undisturbed(one.mine, one.later.at, one.answer.at):
                sentence = f"{self._who(one.answer.index)} was sent {late_s:.1f} s after its window had closed"
                yield one, Finding("late", f"{sentence}, which utterance {one.later.index} opened")

    def _overtaken(self) -> Iterator[Overtaken]:
        """Utterances sent after later ones, where both had one attempt only."""
        first = {index: several[0] for index, several in self._answers.items()}
        highest = -1
        for answer in first.values():
            if answer.index > highest:
                highest = answer.index
                continue
            mine = self.recordings.only(self.spoken.id, answer.index)
            for later in first.values():
                other = self.recordings.only(self.spoken.id, later.index)
                if later.index > answer.index and later.at <= answer.at and mine is not None and other is not None:
                    yield Overtaken(answer, later, mine, other, self.jobs.get(answer.job), self.jobs.get(later.job))

    def _undisturbed(self, one: Attempt, began: float, ended: float) -> bool:
        began -= self.rules.slack_s
        resumed = any(began <= at <= ended for at in self.spoken.resumed_at)
        lost = self.recordings.was_lost(one.node, began, ended)
        return not (resumed or lost or self.spoken.slow) and self.tolerated.undisturbed(began, ended)

    def _who(self, index: int) -> str:
        return f"utterance {index} of {self.spoken.id}"


def _described(one: Attempt) -> str:
    ended = ", ".join(outcome for _, outcome in one.ended) or "never answered"
    return f"attempt {one.attempt} on {one.node}: {ended}"
