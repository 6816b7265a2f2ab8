// Whether microphones must be silent: while a voice plays in this window or another one of this browser, and shortly after.
//
// Otherwise a microphone that is on gives the voice of the machine back to the conversation as speech. A window announces
// how long its voice lasts, so one that is closed meanwhile silences nobody for longer.

const AFTER_MS = 300; // until the sound has faded in the room

export class Gate {
  constructor() {
    this.until = new Map(); // by window
    this.id = Math.random();
    this.channel = new BroadcastChannel("dragoman.voice");
    this.channel.onmessage = ({ data }) => this.until.set(data.id, data.until);
  }

  started(seconds) {
    this.announce(Date.now() + seconds * 1000);
  }

  /** `latency`: seconds until what was played is audible. */
  ended(latency = 0) {
    this.announce(Date.now() + latency * 1000);
  }

  get isClosed() {
    const now = Date.now();
    for (const [id, until] of this.until) if (until + AFTER_MS <= now) this.until.delete(id);
    return this.until.size > 0;
  }

  announce(until) {
    this.until.set(this.id, until);
    this.channel.postMessage({ id: this.id, until });
  }
}
