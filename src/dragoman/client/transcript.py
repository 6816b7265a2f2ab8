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

from dragoman.client.events import Event, Failed, Partial, Result


@dataclass(slots=True, order=True)
class Line:
    session: int  # 0 is the first, 1 the one that took its place …
    index: int
    heard: str = field(default="", compare=False)  # partial, then final
    said: str = field(default="", compare=False)
    backfilled: bool = field(default=False, compare=False)
    failure: Failed | None = field(default=None, compare=False)
    result: Result | None = field(default=None, compare=False)

    @property
    def settled(self) -> bool:
        return self.result is not None or self.failure is not None


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
            case _:
                return None
        return line

    def _line(self, session_id: str, index: int) -> Line:
        session = self._sessions.setdefault(session_id, len(self._sessions))
        line = self._of.get((session, index))
        if line is None:
            line = self._of[session, index] = Line(session, index)
            insort(self.lines, line)
        return line
