"""When the next piece of audio may go out. Pure: time is an argument.

PAUSE holds everything until its time is over; BUSY and SLOW_DOWN let one piece go every `slow_s`, and count as over
`lasts_s` after the last of them, since a server repeats them while they are true. Without any of them `per_s` pieces
a second may go: servers close connections that send more than 200 messages a second. After an empty final the next
chunk is held back `after_final_s`: servers count what follows a final closely as part of it.
"""

from dragoman.protocol.codes import BackpressureAction


class Throttle:
    def __init__(
        self, per_s: float = 100.0, slow_s: float = 0.5, lasts_s: float = 2.0, after_final_s: float = 0.1
    ) -> None:
        self._interval_s = 1 / per_s
        self._slow_s = slow_s
        self._lasts_s = lasts_s
        self._after_final_s = after_final_s
        self._sent_at = float("-inf")
        self._paused_until = float("-inf")
        self._slow_until = float("-inf")

    def press(self, action: str, resume_after_ms: int | None, now: float) -> None:
        until = now + (self._lasts_s if resume_after_ms is None else resume_after_ms / 1000)
        if action == BackpressureAction.PAUSE:
            self._paused_until = max(self._paused_until, until)
        elif action in (BackpressureAction.BUSY, BackpressureAction.SLOW_DOWN):
            self._slow_until = max(self._slow_until, until)

    def sent(self, now: float, *, empty_final: bool = False) -> None:
        self._sent_at = now
        if empty_final:
            self._paused_until = max(self._paused_until, now + self._after_final_s)

    def wait_s(self, now: float) -> float:
        """0: go."""
        if now < self._paused_until:
            return self._paused_until - now
        at = self._sent_at + self._interval_s
        if now < self._slow_until:
            at = min(self._sent_at + self._slow_s, self._slow_until)
        return max(0.0, at - now)
