"""What a session asks of the room it is in: how to speak there. The rooms implement it; sessions know nothing else of
them.

    first cut of a turn ─▶ begin_turn      every cut ─▶ utterance      end of a job ─▶ publish
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dragoman.domain.job_signals import End
from dragoman.protocol.peer import RoomUtterance


@dataclass(frozen=True, slots=True)
class RoomTurn:
    """How the utterances of one turn are spoken in a room. Decided at its first cut: an old node merges the audio of a
    turn by its target language."""

    room_id: str
    lang: str  # spoken
    target: str  # into which a job translates, too; '' = it only recognises
    voice: bool  # whether the translation should be spoken


@dataclass(frozen=True, slots=True)
class InRoom:
    """One utterance of such a turn. `refused`: why it is not shown in the room, and not recognised either."""

    turn: RoomTurn
    utterance: RoomUtterance
    vocabulary: tuple[str, ...] = ()
    context: str = ""
    refused: End | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """The end of the job of an utterance. `epoch`: of the session now."""

    session_id: str
    index: int
    utterance: RoomUtterance
    end: End
    epoch: int
    account: str
    highest_sent: int  # the highest index of the session that has a result


class RoomSpeech(Protocol):
    def begin_turn(self, session_id: str, src_lang: str | None) -> RoomTurn | None:
        """None: the session is in no room. `src_lang`: the spoken language, if the utterance states it."""

    def utterance(self, session_id: str, turn: RoomTurn, epoch: int, audio_ms: int) -> InRoom: ...

    def publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        """Make a caption of it, or note that it was lost. `then` is called with its end when that is in the log; with a
        failure if the room has refused it."""

    def partial(self, session_id: str, index: int, text: str) -> None: ...

    def vocabulary(self, session_id: str) -> tuple[str, ...]: ...

    def language(self, session_id: str) -> str | None:
        """That the session speaks in its room; None: it is in no room."""

    def over(self, session_id: str) -> None:
        """The session has ended, or continues on another instance."""


class NoRooms:
    """For sessions of an instance, or a test, without rooms."""

    def begin_turn(self, session_id: str, src_lang: str | None) -> RoomTurn | None:
        return None

    def utterance(self, session_id: str, turn: RoomTurn, epoch: int, audio_ms: int) -> InRoom:
        raise AssertionError("there is no room to speak in")

    def publish(self, spoken: Spoken, then: Callable[[End], object]) -> None:
        then(spoken.end)

    def partial(self, session_id: str, index: int, text: str) -> None: ...

    def vocabulary(self, session_id: str) -> tuple[str, ...]:
        return ()

    def language(self, session_id: str) -> str | None:
        return None

    def over(self, session_id: str) -> None: ...
