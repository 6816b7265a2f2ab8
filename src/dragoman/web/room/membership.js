// A member of a room, over any number of connections and sessions.
//
// The server sends nothing of a room before room_join, so each connection begins with it: with the number of the last entry
// that was received, the room continues behind that. The answer to room_join comes after everything that was missed; then
// every request without an answer is sent again. A sentence that was written has arrived with its answer or its caption,
// whichever is first; the server knows it by its `client_msg_id` and appends it once.

import { Session } from "../page/session.js";

const AGAIN_MS = 2000;
const TYPED = /:t([\w-]+)$/; // the end of the caption id of a sentence that was written: its client_msg_id
const UNAUTHORIZED = 4501;
const NOT_ADMITTED = { 401: "login", 403: "forbidden", 404: "ROOM_NOT_FOUND", 429: "LIMIT_EXCEEDED" };

export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class Membership {
  /**
   * `place`: { id } or { code } of the room; neither opens a new one. `me`: { name, lang, voice, listener }.
   * `on`: state(word), joined(message, again), members(message), entry(message, isNew), partial(message), over(reason, text).
   */
  constructor(place, me, on, token = null) {
    Object.assign(this, { ...place, me, on, token });
    this.asked = new Map(); // request id → { message, answered, refused }
    this.you = this.epoch = this.entering = null;
    this.cursor = undefined; // the number of the last entry that was received
    this.upTo = this.heardBefore = 0;
    this.inside = this.left = this.isTokenNew = false;
    const opening = { token: () => this.token, waits: () => !this.inside }; // only a member speaks in the room
    this.session = new Session({ ...opening, get src() { return me.lang; }, get tgt() { return me.lang; } }, {
      state: (name, detail) => this.connection(name, detail),
      message: (message) => this.receive(message),
      refused: (error) => (error.code === "SOUND_LOST" ? this.on.state("refused", error.code) : this.refused(error)),
      pressed: () => this.on.state("pressed"),
      // The room says these: caption, caption_lost and caption_partial.
      ...Object.fromEntries(["renewed", "result", "failed", "ended", "progress", "partial"].map((name) => [name, () => {}])),
    });
  }

  /** `kept`: what `keep()` gave before the page was loaded again. */
  start({ session, token = this.token, renewAt = 0 } = {}) {
    Object.assign(this, { token, renewAt });
    Object.assign(this.session, session);
    this.renewLater();
    this.session.open();
  }

  keep() {
    const { id, resumeToken, lastSeq, nextSeq } = this.session;
    return { session: { id, resumeToken, lastSeq, nextSeq }, token: this.token, renewAt: this.renewAt };
  }

  // ---- requests

  /** Resolves when the server has done it, on this connection or a later one; rejects with Refused. */
  ask(message) {
    if (this.left) return Promise.reject(new Refused("SESSION_CLOSED"));
    return new Promise((answered, refused) => {
      const request_id = message.client_msg_id ?? newId();
      this.asked.set(request_id, { message: { ...message, request_id }, answered, refused });
      if (this.inside) this.session.tell({ ...message, request_id });
    });
  }

  write(client_msg_id, text) {
    return this.ask({ type: "room_text", text, client_msg_id, lang: this.me.lang });
  }

  async change(me) {
    await this.ask({ type: "room_update", display_name: me.name, speaks: me.lang, hears: me.lang, voice: me.voice });
    Object.assign(this.me, me);
  }

  /** A piece of pcm16; `final` ends the utterance. */
  speak(pcm, final) {
    if (!this.left) this.session.say(pcm, final);
  }

  leave() {
    if (this.inside) this.session.tell({ type: "room_leave" });
    this.end("left");
  }

  // ---- connections

  connection(name, detail) {
    if (name === "open" || name === "resumed") return this.enter();
    this.inside = false;
    if (name === "over" && detail.code === UNAUTHORIZED) return this.authorize();
    if (name === "over" || name === "refused") return this.end("closed_by_server", detail.message ?? detail.reason);
    this.on.state(name);
  }

  enter() {
    const { name, lang, voice, listener } = this.me, known = this.id || this.code;
    this.entering = newId();
    this.session.tell({
      type: known ? "room_join" : "room_create", request_id: this.entering, display_name: name, speaks: lang, hears: lang,
      ...(voice && { voice }), ...(listener && { listener }),
      ...(this.id ? { room_id: this.id } : this.code ? { room_code: this.code } : { settings: {} }),
      ...(this.epoch && { log_epoch: this.epoch, last_room_seq: this.cursor }),
    });
  }

  entered() {
    this.inside = true;
    this.isTokenNew = false;
    this.cursor = Math.max(this.cursor ?? 0, this.upTo);
    for (const { message } of this.asked.values()) this.session.tell(message);
    this.session.pump();
    this.on.state("inside");
  }

  notEntered(code, message) {
    if (code === "ALREADY_IN_ROOM") this.session.tell({ type: "room_leave" }), this.enter();
    else if (code === "SCHEDULER_DEPENDENCY_DOWN") setTimeout(() => this.session.ready && this.enter(), AGAIN_MS);
    else this.end(code === "ROOM_NOT_FOUND" && this.epoch ? "gone" : code, message); // the room ended meanwhile
  }

  /** A server with a secret wants a token; the room gives one to guests. */
  async authorize() {
    if (this.isTokenNew || !(this.id || this.code)) return this.end("login");
    this.on.state("connecting");
    try {
      await this.admit();
    } catch ({ code, message }) {
      return this.end(code ?? "closed_by_server", message);
    }
    this.isTokenNew = true;
    if (!this.left) this.session.open();
  }

  /** Get a token from the room; with one that is still good, another for the same guest. */
  async admit(token) {
    const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    const place = this.id ? { room_id: this.id } : { code: this.code };
    const answer = await fetch("/api/v1/rooms/join", {
      method: "POST", headers, body: JSON.stringify({ ...place, name: this.me.name }),
    });
    const told = await answer.json();
    if (!answer.ok) throw new Refused(NOT_ADMITTED[answer.status] ?? "closed_by_server", told.error);
    this.token = told.token;
    this.renewAt = Date.now() + (told.expires_in_s * 1000) / 2;
    this.renewLater();
  }

  renewLater() {
    clearTimeout(this.renewal);
    if (!this.renewAt) return;
    this.renewal = setTimeout(() => this.inside && this.admit(this.token).catch(() => {}), this.renewAt - Date.now());
  }

  end(reason, text = "") {
    if (this.left) return;
    this.left = true;
    this.inside = false;
    clearTimeout(this.renewal);
    this.session.close("left the room");
    for (const { refused } of this.asked.values()) refused(new Refused("SESSION_CLOSED", text));
    this.asked.clear();
    this.on.over(reason, text);
  }

  // ---- what the room says

  receive(message) {
    if (this.left) return;
    switch (message.type) {
      case "room_joined":
        return this.joined(message);
      case "room_ok":
        if (message.request_id === this.entering) return this.entered();
        return this.answered(message.request_id);
      case "room_error":
        if (message.request_id === this.entering) return this.notEntered(message.code, message.message);
        return this.refused(message);
      case "room_members":
        return this.on.members(message);
      case "caption":
      case "caption_translation":
      case "caption_lost":
        return this.entry(message);
      case "caption_partial":
        return this.on.partial(message);
      case "room_expired":
        return this.end(message.reason ?? "expired", message.message);
    }
  }

  joined(message) {
    const again = this.epoch !== null;
    // Another log, with numbers of its own. For a member that is inside it goes on after this number.
    if (again && this.epoch !== message.log_epoch) this.cursor = this.inside ? message.room_seq : undefined;
    if (!again) this.heardBefore = message.room_seq;
    this.id = message.room_id;
    this.code = message.room_code;
    this.you = message.you;
    this.epoch = message.log_epoch;
    this.upTo = message.room_seq;
    this.on.joined(message, again);
  }

  entry(message) {
    this.cursor = Math.max(this.cursor ?? 0, message.room_seq);
    const written = message.type === "caption" && TYPED.exec(message.caption_id)?.[1];
    if (written) this.answered(written);
    this.on.entry(message, message.room_seq > this.heardBefore);
  }

  answered(id) {
    this.asked.get(id)?.answered();
    this.asked.delete(id);
  }

  refused({ request_id, code, message }) {
    const request = this.asked.get(request_id);
    this.asked.delete(request_id);
    if (request) request.refused(new Refused(code, message));
    else if (this.inside) this.on.state("refused", code);
    else this.end(code, message);
  }
}

/** `crypto.randomUUID` exists only on pages of https and of this machine. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
