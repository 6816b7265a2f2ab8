"""How fast a client may send. Pure: the time is an argument."""

from dragoman.protocol.codes import BackpressureAction


class Throttle:
    """When the next piece of audio of a session may be sent.

    - PAUSE stops everything until its time has passed.
    - BUSY and SLOW_DOWN allow one piece every `slow_s`. They end `lasts_s` after the last of them, because a server
      repeats them for as long as they apply.
    - Otherwise `per_s` pieces a second may be sent: a server closes connections that send more than 200 messages a
      second.
    - After an empty final chunk the next chunk is delayed by `after_final_s`: a server counts a chunk that follows a
      final one closely as part of the same utterance.
    """

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
        """The server sent `backpressure`."""
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
        """Seconds until the next piece may be sent; 0: now."""
        if now < self._paused_until:
            return self._paused_until - now
        at = self._sent_at + self._interval_s
        if now < self._slow_until:
            at = min(self._sent_at + self._slow_s, self._slow_until)
        return max(0.0, at - now)


class RateLimit:
    """When the next chat frame may be sent: `per_s` on average, `burst` at once."""

    def __init__(self, per_s: float = 200.0, burst: int = 100) -> None:
        self._interval_s = 1 / per_s
        self._burst_s = burst * self._interval_s
        self._earned_at = float("-inf")  # when the average allows the last frame that was sent

    def wait_s(self, now: float) -> float:
        """Seconds until the next frame may be sent; 0: now."""
        return max(0.0, self._earned_at + self._interval_s - self._burst_s - now)

    def sent(self, now: float) -> None:
        self._earned_at = max(self._earned_at, now) + self._interval_s
