// When the next piece of audio may go out. PAUSE holds everything until its time is over; BUSY and SLOW_DOWN let one
// piece go every half second, and count as over two seconds after the last of them. After an empty final the next piece
// is held back a little: a server counts what follows a final closely as part of it.

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

  /** 0: go. */
  wait(now) {
    if (now < this.pausedUntil) return this.pausedUntil - now;
    const at = now < this.slowUntil ? Math.min(this.sentAt + SLOW_MS, this.slowUntil) : this.sentAt + INTERVAL_MS;
    return Math.max(0, at - now);
  }
}
