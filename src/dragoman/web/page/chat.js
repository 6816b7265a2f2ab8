// One user's chat over any number of connections: no message is lost, none is sent twice, the order is kept.
//
// A message without the receipt `saved` is sent again after every reconnect, and when a receipt is overdue, in order,
// with the same clientMsgId. The next message is sent when the one before was accepted. A message that arrives twice is
// shown once and acknowledged again.

import { Link } from "./link.js";

const AGAIN_MS = 5000; // without a word about what was sent
const UNSAVED_MS = 20000; // accepted, and no word since: the server is asked what became of it
const BUSY_FIRST_MS = 300, BUSY_LONGEST_MS = 5000;
const PING_MS = 15000;
const RETRIED = ["server_busy", "internal_error"];
const FINAL = ["kicked", "session_invalid"];
const BEFORE_CLOSING = ["auth_timeout", "token_expired"]; // by a code that says stay away; but nobody asked to leave

export class Chat {
  /**
   * `on`: state(word), message(message), receipt(sent), over(reason), translation(translation). `unsent`: messages that
   * an earlier chat could not send. `lang`: that of the account: it writes in it, and wants messages in it; "" for any.
   */
  constructor(account, on, unsent = [], lang = "") {
    this.lang = lang;
    this.account = account;
    this.on = on;
    this.sent = new Map(unsent.map((one) => [one.clientMsgId, one]));
    this.seen = new Set();
    this.lastRead = new Map(); // by sender: said again after a reconnect, it may have been lost
    this.ready = false;
    this.link = new Link("/ws", {
      before: () => this.prepare(),
      open: () => this.authenticate(),
      message: (data) => this.heard(JSON.parse(data)),
      ask: () => this.tell({ type: "PING" }),
      down: () => this.down(),
      over: (_, reason) => this.end(reason || "closed"),
    });
  }

  start() {
    this.on.state("connecting");
    this.link.start();
  }

  stop() {
    this.rest();
    this.link.stop();
    this.on.state("offline");
  }

  authenticate() {
    this.tell({ type: "AUTH", token: this.account.current, ...(this.lang && { translate: this.lang }) });
  }

  /** From now on; without a language on a new connection. */
  translateInto(lang) {
    this.lang = lang;
    if (!this.ready) return;
    if (lang) this.authenticate();
    else this.link.drop();
  }

  /** The answer is a `translation`. */
  translate(serverMsgId) {
    if (this.lang && this.ready) this.tell({ type: "TRANSLATE", serverMsgId, lang: this.lang });
  }

  send(to, body) {
    const sent = {
      clientMsgId: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`,
      to, body, at: Date.now(), serverMsgId: null, failed: null, told: false, sentAt: -Infinity, tries: 0,
      accepted: false, saved: false, delivered: false, read: false,
    };
    this.sent.set(sent.clientMsgId, sent);
    this.pump();
    return sent;
  }

  get unsent() {
    return [...this.sent.values()].filter((one) => !one.saved);
  }

  /** Send a refused message again. */
  again(sent) {
    Object.assign(sent, { failed: null, told: false, sentAt: -Infinity, tries: 0 });
    this.on.receipt(sent);
    this.pump();
  }

  read(message) {
    const last = this.lastRead.get(message.from);
    if (!last || BigInt(message.serverMsgId) > BigInt(last.serverMsgId)) this.lastRead.set(message.from, message);
    if (this.ready) this.confirm("read", message);
  }

  // ---- a connection

  async prepare() {
    try {
      await this.account.token(this.expired);
      this.expired = false;
    } catch (denied) {
      if (denied.code === 40100) this.end("session_invalid");
      throw denied;
    }
  }

  welcome() {
    this.ready = true;
    this.refused = 0;
    for (const sent of this.unsent) Object.assign(sent, { told: false, sentAt: -Infinity });
    this.pings = setInterval(() => this.ping(), PING_MS);
    for (const message of this.lastRead.values()) this.confirm("read", message);
    this.on.state("online");
    this.pump();
  }

  /** Renew the token before it expires: the connection outlives it. */
  async ping() {
    const before = this.account.current;
    try {
      const token = await this.account.token();
      this.tell(token === before ? { type: "PING" } : { type: "REAUTH", token });
    } catch {
      this.tell({ type: "PING" });
    }
  }

  down() {
    this.rest();
    this.on.state("reconnecting");
  }

  rest() {
    this.ready = false;
    clearInterval(this.pings);
    clearTimeout(this.timer);
  }

  end(reason) {
    this.rest();
    this.link.stop();
    this.on.over(reason);
  }

  tell(message) {
    this.link.send(JSON.stringify(message));
  }

  // ---- sending

  pump() {
    clearTimeout(this.timer);
    if (!this.ready) return;
    const now = performance.now();
    const open = this.unsent.filter((one) => !one.failed);
    const sent = open.find((one) => !one.told || now >= one.sentAt + UNSAVED_MS);
    if (!sent) {
      const first = Math.min(...open.map((one) => one.sentAt));
      if (open.length) this.timer = setTimeout(() => this.pump(), Math.max(first + UNSAVED_MS - now, 50));
      return;
    }
    const wait = sent.sentAt + (sent.busy ? busyWait(sent.tries) : AGAIN_MS) - now;
    if (wait <= 0) {
      sent.sentAt = now;
      sent.busy = false;
      sent.tries++;
      const lang = this.lang && { lang: this.lang };
      this.tell({ type: "SINGLE_CHAT", clientMsgId: sent.clientMsgId, to: sent.to, body: sent.body, ...lang });
      this.on.receipt(sent);
    }
    this.timer = setTimeout(() => this.pump(), Math.max(wait, 50));
  }

  confirm(ackType, { serverMsgId, from }) {
    this.tell({ type: "ACK", ackType, serverMsgId, to: from });
  }

  // ---- what the server says

  heard(frame) {
    switch (frame.type) {
      case "AUTH_OK":
        return this.ready || this.welcome();
      case "AUTH_FAIL":
        return this.unknown(frame.reason);
      case "PING":
        return this.tell({ type: "PONG" });
      case "SINGLE_CHAT":
        return this.arrived(frame);
      case "ACK":
        return frame.ackType === "accepted" || frame.ackType === "saved" ? this.taken(frame) : this.receipt(frame);
      case "TRANSLATION":
        return this.on.translation(frame);
      case "ERROR":
        return this.refusal(frame);
    }
  }

  unknown(reason) {
    if (reason === "session_invalid" || this.refused) return this.end(reason);
    this.refused = 1;
    this.expired = true;
    this.link.drop();
  }

  arrived(frame) {
    const message = { ...frame, serverMsgId: String(frame.serverMsgId), from: String(frame.from) };
    this.confirm("delivered", message);
    if (this.seen.has(message.serverMsgId)) return;
    this.seen.add(message.serverMsgId);
    this.on.message(message);
  }

  taken({ ackType, clientMsgId, serverMsgId, body }) {
    const sent = this.sent.get(clientMsgId);
    if (!sent) return;
    Object.assign(sent, { serverMsgId: String(serverMsgId), told: true, accepted: true, body: body ?? sent.body });
    if (ackType === "saved") sent.saved = true;
    this.on.receipt(sent);
    this.pump();
  }

  /** `delivered` and `read` count for every earlier message to the same receiver. */
  receipt({ ackType, from, serverMsgId }) {
    for (const sent of this.sent.values()) {
      if (sent.to !== String(from) || !sent.serverMsgId || BigInt(sent.serverMsgId) > BigInt(serverMsgId)) continue;
      if (sent.read || (sent.delivered && ackType === "delivered")) continue;
      sent.delivered = true;
      if (ackType === "read") sent.read = true;
      this.on.receipt(sent);
    }
  }

  refusal({ reason, clientMsgId }) {
    if (FINAL.includes(reason)) return this.end(reason);
    if (reason === "token_expired") this.expired = true;
    if (BEFORE_CLOSING.includes(reason)) return this.link.drop();
    const sent = this.sent.get(clientMsgId);
    if (!sent) return;
    if (RETRIED.includes(reason)) sent.busy = true;
    else Object.assign(sent, { failed: reason, saved: false });
    this.on.receipt(sent);
    this.pump();
  }
}

function busyWait(tries) {
  return Math.min(BUSY_LONGEST_MS, BUSY_FIRST_MS * 2 ** Math.min(tries, 8));
}
