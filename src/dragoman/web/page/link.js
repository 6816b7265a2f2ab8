// One WebSocket after another to this host, whichever instance answers. The close code says whether to reconnect.
//
// Waits double with full jitter, so that the clients of a dead instance do not reconnect at the same moment. Only a
// connection that lasted resets them.

const FIRST_MS = 250, LONGEST_MS = 5000, STEADY_MS = 5000;
const PATIENCE_MS = 10000; // to connect
const SILENCE_MS = 25000; // of a server that is asked every few seconds
const ASKED_MS = 10000; // of one that was asked just now

export class Link {
  /** `on`: open(), message(data), ask() to get any answer, down(), over(code, reason); optional: before() connecting. */
  constructor(path, on) {
    this.url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    this.on = on;
    this.failures = 0;
    this.wanted = false;
    this.socket = this.dialling = null;
    this.hurry = () => this.wanted && !this.socket && this.dial();
  }

  get buffered() {
    return this.socket?.bufferedAmount ?? 0;
  }

  start() {
    if (this.wanted) return;
    this.wanted = true;
    this.failures = 0;
    addEventListener("online", this.hurry);
    this.dial();
  }

  /** Close for good, without further callbacks. */
  stop() {
    this.wanted = false;
    removeEventListener("online", this.hurry);
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = this.dialling = null;
    socket?.close(1000);
  }

  /** Drop this connection and open another. */
  drop() {
    const socket = this.socket;
    socket?.close(1000);
    if (socket) this.lost(socket, 1006, "");
  }

  send(data) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(data);
    return true;
  }

  /** Connect only when the first message is ready: a server does not wait long for it. */
  async dial() {
    clearTimeout(this.timer);
    const mine = (this.dialling = {});
    let prepared = true;
    try {
      await this.on.before?.();
    } catch {
      prepared = false;
    }
    if (this.dialling !== mine) return; // stopped, or another dials
    this.dialling = null;
    if (prepared) this.connect();
    else this.later();
  }

  connect() {
    const socket = (this.socket = new WebSocket(this.url));
    socket.binaryType = "arraybuffer";
    this.watch(socket, PATIENCE_MS, () => this.drop());
    socket.onopen = () => {
      if (socket !== this.socket) return;
      this.openedAt = performance.now();
      this.listen(socket);
      this.on.open();
    };
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      this.listen(socket);
      this.on.message(event.data);
    };
    socket.onclose = (event) => this.lost(socket, event.code, event.reason);
  }

  /** A hidden tab sends nothing for a minute: a silent server is asked once more before the connection is dropped. */
  listen(socket) {
    this.watch(socket, SILENCE_MS, () => {
      this.watch(socket, ASKED_MS, () => this.drop());
      this.on.ask();
    });
  }

  watch(socket, patience, silent) {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => socket === this.socket && silent(), patience);
  }

  lost(socket, code, reason) {
    if (socket !== this.socket) return;
    this.socket = null;
    clearTimeout(this.silence);
    if (this.openedAt && performance.now() - this.openedAt >= STEADY_MS) this.failures = 0;
    this.openedAt = 0;
    if (code >= 4500 && code <= 4999) {
      this.stop();
      this.on.over(code, reason);
      return;
    }
    this.later();
  }

  later() {
    const wait = Math.random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(this.failures++, 16));
    this.timer = setTimeout(() => this.wanted && this.dial(), wait);
    this.on.down();
  }
}
