"""Results in the order they were spoken, whatever order they arrived in.

    transcript = Transcript()
    async for event in session:
        transcript.add(event)
        show(transcript.lines)

A line is made by the first word of its utterance and stays in its place. The first result of an index stands, as it
does in the web client; one that came late is marked `backfilled`. A session that takes the place of a lost one goes
on below it.
"""

from bisect import insort
from dataclasses import dataclass, field

from dragoman.client.events import Ended, Event, Failed, Partial, Result


@dataclass(slots=True, order=True)
class Line:
    session: int  # 0 is the first, 1 the one that took its place …
    index: int
    heard: str = field(default="", compare=False)  # partial, then final
    said: str = field(default="", compare=False)
    backfilled: bool = field(default=False, compare=False)
    failure: Failed | None = field(default=None, compare=False)
    result: Result | None = field(default=None, compare=False)
    ended: str = field(default="", compare=False)  # empty or skipped: it ended with neither of the two
    job_id: str = field(default="", compare=False)

    @property
    def settled(self) -> bool:
        return self.result is not None or self.failure is not None or bool(self.ended)


class Transcript:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._of: dict[tuple[int, int], Line] = {}
        self._sessions: dict[str, int] = {}

    def add(self, event: Event) -> Line | None:
        """The line that changed; None if the event changes none."""
        match event:
            case Partial(session_id=session_id, index=index, text=text):
                line = self._line(session_id, index)
                if line.settled:
                    return None
                line.heard = text
            case Result(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.result is not None:
                    return None
                line.result, line.failure, line.backfilled = event, None, event.backfilled
                line.heard, line.said = event.text_asr, event.text_translated
            case Failed(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.settled:
                    return None
                line.failure = event
            case Ended(session_id=session_id, index=index, state=state):
                if not self._is_news(session_id, index, state):
                    return None
                line = self._line(session_id, index)
                line.ended = state
            case _:
                return None
        line.job_id = event.job_id or line.job_id
        return line

    def _is_news(self, session_id: str, index: int, state: str) -> bool:
        """Whether an end changes a line: nothing stands for it yet, and it was skipped or something was shown of it."""
        line = self._of.get((self._sessions.get(session_id, -1), index))
        return state == "skipped" if line is None else not line.settled

    def _line(self, session_id: str, index: int) -> Line:
        session = self._sessions.setdefault(session_id, len(self._sessions))
        line = self._of.get((session, index))
        if line is None:
            line = self._of[session, index] = Line(session, index)
            insort(self.lines, line)
        return line
