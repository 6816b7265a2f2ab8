// When the next piece of audio may be sent. PAUSE stops everything for its time; BUSY and SLOW_DOWN allow one piece every
// half second, until two seconds after the last of them. After an empty final the next piece waits a little: the server
// counts a piece that follows a final closely as part of it.

const SLOW_MS = 500, LASTS_MS = 2000, AFTER_FINAL_MS = 100, INTERVAL_MS = 10;

export class Throttle {
  sentAt = -Infinity;
  pausedUntil = -Infinity;
  slowUntil = -Infinity;

  press(action, resumeAfterMs, now) {
    const until = now + (resumeAfterMs ?? LASTS_MS);
    if (action === "PAUSE") this.pausedUntil = Math.max(this.pausedUntil, until);
    else if (action === "BUSY" || action === "SLOW_DOWN") this.slowUntil = Math.max(this.slowUntil, until);
  }

  sent(now, emptyFinal) {
    this.sentAt = now;
    if (emptyFinal) this.pausedUntil = Math.max(this.pausedUntil, now + AFTER_FINAL_MS);
  }

  /** 0: now. */
  wait(now) {
    if (now < this.pausedUntil) return this.pausedUntil - now;
    const at = now < this.slowUntil ? Math.min(this.sentAt + SLOW_MS, this.slowUntil) : this.sentAt + INTERVAL_MS;
    return Math.max(0, at - now);
  }
}
