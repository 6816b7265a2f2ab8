"""The ledger of speech: what speakers sent and received, recorded by them, session by session.

Everything is in the order in which it happened, with times of `time.monotonic`. The recordings of nodes and the stores
show what became of utterances that a speaker gets no message about (empty, skipped).
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman.tools.verify import pieces


@dataclass(frozen=True, slots=True)
class Given:
    """Pieces of audio that were sent; `index` if the client numbers its utterances itself."""

    pieces: tuple[int, ...]
    at: float
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    index: int
    at: float
    job: str
    backfilled: bool
    text: str

    @property
    def pieces(self) -> list[int]:
        """Those in the node's answer; none if it names none."""
        try:
            return pieces.of_text(self.text)
        except ValueError:
            return []


@dataclass(frozen=True, slots=True)
class Failure:
    index: int
    at: float
    job: str
    code: str
    message: str


@dataclass(slots=True)
class SessionLedger:
    id: str
    speaker: str
    numbered: bool
    opened_at: float
    given: list[Given] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # of what was sent, in the server's words
    previewed: int = 0  # partials before the cut
    late_partials: list[str] = field(default_factory=list)  # previews of utterances that had ended
    seen: dict[int, float] = field(default_factory=dict)  # indexes the server spoke of in any way, and since when
    resumed_at: list[float] = field(default_factory=list)
    missing: int = 0  # pieces that were too old to be sent again after a resume
    slow: bool = False  # it has stopped reading at some time
    lost_at: float | None = None
    lost_why: str = ""

    def promised_at(self, index: int) -> list[float]:
        """Every time its speaker was notified of an end of this utterance."""
        return [one.at for one in self.answers if one.index == index] + [
            one.at for one in self.failures if one.index == index
        ]

    def unanswered_pieces(self, silent: Mapping[int, Collection[int] | None] | None = None) -> list[int]:
        """Pieces with words that are in no answer and in no utterance that ended otherwise.

        `silent`: utterances that are known to have ended without an answer, with what they held, if that is known.
        """
        ended = {failure.index: None for failure in self.failures} | dict(silent or {})
        answered = {piece for answer in self.answers for piece in answer.pieces}
        answered |= {piece for held in ended.values() for piece in held or ()}
        missing = [(one, piece) for one in self.given for piece in one.pieces if piece > 0 and piece not in answered]
        if self.numbered:
            over = ended.keys() | {answer.index for answer in self.answers}
            return [piece for one, piece in missing if one.index not in over]
        unknown = [index for index, held in ended.items() if held is None]
        return [piece for _, piece in missing if not any(self._may_be_in(index, piece) for index in unknown)]

    def _may_be_in(self, index: int, piece: int) -> bool:
        """Whether an utterance of this index can have held the piece, by what its neighbours held: order is kept."""
        held = ((answer.index, [abs(one) for one in answer.pieces]) for answer in self.answers)
        return all(max(them) < piece if at < index else min(them) > piece for at, them in held if them)


class SpeechLedger:
    def __init__(self) -> None:
        self.sessions: dict[str, SessionLedger] = {}

    # -- written by speakers -----------------------------------------------------------------------

    def opened(self, session: str, speaker: str, *, numbered: bool) -> None:
        """Called at least once: the sending or the receiving side may be the first to know."""
        self.sessions.setdefault(session, SessionLedger(session, speaker, numbered, time.monotonic()))

    def gave(self, session: str, numbers: Sequence[int], index: int | None = None) -> None:
        self.sessions[session].given.append(Given(tuple(numbers), time.monotonic(), index))

    def mentioned(self, session: str, index: int) -> None:
        self.sessions[session].seen.setdefault(index, time.monotonic())

    def previewed(self, session: str, index: int, text: str) -> None:
        """Words of an utterance that is not cut, and may never be."""
        one = self.sessions[session]
        one.previewed += 1
        if one.promised_at(index):
            one.late_partials.append(f"{text!r} of utterance {index}")

    def answered(self, session: str, index: int, job: str, text: str, *, backfilled: bool) -> None:
        """Every time a result arrives."""
        self.mentioned(session, index)
        self.sessions[session].answers.append(Answer(index, time.monotonic(), job, backfilled, text))

    def failed(self, session: str, index: int, job: str, code: str, message: str) -> None:
        self.mentioned(session, index)
        self.sessions[session].failures.append(Failure(index, time.monotonic(), job, code, message))

    def refused(self, session: str, code: str, message: str) -> None:
        self.sessions[session].refusals.append(f"{code}: {message}")

    def resumed(self, session: str, missing: int) -> None:
        one = self.sessions[session]
        one.resumed_at.append(time.monotonic())
        one.missing += missing

    def slowed(self, session: str) -> None:
        self.sessions[session].slow = True

    def lost(self, session: str, why: str) -> None:
        """It cannot be resumed; what was not answered in it never will be."""
        one = self.sessions[session]
        one.lost_at, one.lost_why = one.lost_at or time.monotonic(), one.lost_why or why

    # -- seen by speakers --------------------------------------------------------------------------

    def outstanding(self) -> Iterator[str]:
        """What speakers still wait for, as sentences."""
        for one in self.sessions.values():
            waiting = [] if one.lost_at is not None else one.unanswered_pieces()
            if waiting:
                yield f"{one.speaker} has no answer to pieces {pieces.text(waiting)} of session {one.id}"

    def summary(self) -> str:
        all = self.sessions.values()
        counts = {
            "sessions": len(all),
            "pieces": sum(len(given.pieces) for one in all for given in one.given),
            "results": sum(len(one.answers) for one in all),
            "backfilled": sum(answer.backfilled for one in all for answer in one.answers),
            "previewed": sum(one.previewed for one in all),
            "failed": sum(len(one.failures) for one in all),
            "resumed": sum(len(one.resumed_at) for one in all),
            "lost sessions": sum(one.lost_at is not None for one in all),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items())
