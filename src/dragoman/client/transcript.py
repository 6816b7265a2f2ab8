"""The results of a session in the order they were spoken, whatever order they arrived in.

    transcript = Transcript()
    async for event in session:
        transcript.add(event)
        show(transcript.lines)

The first event of an utterance creates its line, which keeps its position. The first result of an index counts, as in
the web client; one that arrived late is marked `backfilled`. A session that replaces a lost one is appended below it.
"""

from bisect import insort
from dataclasses import dataclass, field

from dragoman.client.events import Ended, Event, Failed, Partial, Result


@dataclass(slots=True, order=True)
class Line:
    """One utterance."""

    session: int  # 0: the first session, 1: the one that replaced it …
    index: int
    text_asr: str = field(default="", compare=False)  # partial, then final
    text_translated: str = field(default="", compare=False)
    backfilled: bool = field(default=False, compare=False)
    failure: Failed | None = field(default=None, compare=False)
    result: Result | None = field(default=None, compare=False)
    ended: str = field(default="", compare=False)  # "empty" or "skipped": no result and no failure follows
    job_id: str = field(default="", compare=False)

    @property
    def done(self) -> bool:
        """Whether a result, a failure or an end is known."""
        return self.result is not None or self.failure is not None or bool(self.ended)


class Transcript:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._line_of: dict[tuple[int, int], Line] = {}
        self._sessions: dict[str, int] = {}

    def add(self, event: Event) -> Line | None:
        """Returns the line that changed; None if the event changes none."""
        match event:
            case Partial(session_id=session_id, index=index, text=text):
                line = self._line(session_id, index)
                if line.done:
                    return None
                line.text_asr = text
            case Result(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.result is not None:
                    return None
                line.result, line.failure, line.backfilled = event, None, event.backfilled
                line.text_asr, line.text_translated = event.text_asr, event.text_translated
            case Failed(session_id=session_id, index=index):
                line = self._line(session_id, index)
                if line.done:
                    return None
                line.failure = event
            case Ended(session_id=session_id, index=index, state=state):
                if not self._changes(session_id, index, state):
                    return None
                line = self._line(session_id, index)
                line.ended = state
            case _:
                return None
        line.job_id = event.job_id or line.job_id
        return line

    def _changes(self, session_id: str, index: int, state: str) -> bool:
        """Whether the end of an utterance changes the transcript: it was skipped, or its line is not done yet."""
        line = self._line_of.get((self._sessions.get(session_id, -1), index))
        return state == "skipped" if line is None else not line.done

    def _line(self, session_id: str, index: int) -> Line:
        session = self._sessions.setdefault(session_id, len(self._sessions))
        line = self._line_of.get((session, index))
        if line is None:
            line = self._line_of[session, index] = Line(session, index)
            insort(self.lines, line)
        return line
