// A speech session: audio out, results in, over any number of connections.
//
// Chunks are numbered from 1 and kept: after a resume the server says which it has (`audio_seq`), and the later ones are
// sent again. The messages of the server are numbered as well; one that was handled before is ignored. If a session
// cannot be resumed, a new one is opened.

import { decode, encode } from "./base64.js";
import { Link } from "./link.js";
import { Throttle } from "./throttle.js";

const VERSION = "dragoman-page 1";
const KEEP_BYTES = 2 << 20; // more than a server collects before it cuts
const BUFFERED_BYTES = 256 << 10; // what may wait in the socket
const HEARTBEAT_MS = 5000;
const ANSWER_MS = 10000;
const FINISH_MS = 6000; // a second more than a server waits for the last results

export class Session {
  /**
   * `opening`: src, tgt, token(); waits(): true while audio must not be sent yet.
   * `on`: state(word, detail), partial, result, failed, ended, refused, progress, pressed, renewed; message(message) for others.
   */
  constructor(opening, on) {
    this.opening = opening;
    this.on = on;
    this.throttle = new Throttle();
    this.playing = this.finishing = null;
    this.dropped = false; // something that was never sent
    this.endsUtterances = false; // the server finds pauses: it wants the silence as well
    this.forget();
    this.link = new Link("/ws/session", {
      open: () => this.hello(),
      message: (data) => this.receive(data),
      ask: () => this.ready && this.heartbeat(),
      down: () => this.down(),
      over: (code, reason) => this.over(code, reason),
    });
  }

  open() {
    this.on.state("connecting");
    this.link.start();
  }

  /** Close the session and the connection. */
  close(reason = "done") {
    if (this.ready) this.tell({ type: "session_close", session_id: this.id, reason });
    this.gone();
  }

  gone() {
    this.ready = false;
    clearInterval(this.beat);
    clearTimeout(this.timer);
    clearTimeout(this.answer);
    clearTimeout(this.patience);
    this.link.stop();
  }

  /** Send what is left, wait for the results, then close. */
  finish(reason) {
    if (this.nextSeq === 1) return this.close(reason);
    this.finishing = { reason, told: false };
    this.wait();
    this.pump();
  }

  wait() {
    clearTimeout(this.patience);
    this.patience = setTimeout(() => this.gone(), FINISH_MS);
  }

  /** A piece of pcm16; `final` cuts behind it. */
  say(pcm, final = false) {
    const chunk = { seq: this.nextSeq++, audio: pcm, final, at: Date.now() };
    this.kept.push(chunk);
    this.keptBytes += pcm.length;
    while (this.keptBytes > KEEP_BYTES) this.drop();
    this.pump();
  }

  drop() {
    const { seq, audio } = this.kept.shift();
    this.keptBytes -= audio.length;
    if (seq <= this.sentSeq || this.dropped) return;
    this.dropped = true;
    this.on.refused({ code: "SOUND_LOST" });
  }

  ttsStarted(result) {
    if (!result.group_id || !result.trace_id) return;
    const { session_id, trace_id, group_id } = result;
    this.playing = { type: "tts_started", session_id, trace_id, group_id, ts_start_ms: Date.now() };
    if (this.ready) this.tell(this.playing);
  }

  ttsEnded(result) {
    if (!result.group_id || !result.trace_id) return;
    const { session_id, trace_id, group_id } = result;
    this.playing = null;
    if (this.ready) this.tell({ type: "tts_play_ended", session_id, trace_id, group_id, ts_end_ms: Date.now() });
  }

  // ---- a connection

  forget() {
    Object.assign(this, { id: "", resumeToken: "", lastSeq: 0, nextSeq: 1, sentSeq: 0, kept: [], keptBytes: 0 });
    this.ready = false;
  }

  hello() {
    const token = this.opening.token?.();
    const hello = this.resumeToken
      ? { type: "session_resume", session_id: this.id, resume_token: this.resumeToken, last_seq: this.lastSeq }
      : {
          type: "session_init", client_version: VERSION, platform: "web", mode: "one_way", resume: true,
          src_lang: this.opening.src, tgt_lang: this.opening.tgt, enable_streaming_asr: true,
          audio_format: "pcm16", sample_rate: 16000, vad: "server", previews: true, utterance_end: true,
        };
    this.tell(token ? { ...hello, token } : hello);
    this.answer = setTimeout(() => this.link.drop(), ANSWER_MS);
  }

  acked(ack) {
    clearTimeout(this.answer);
    const resumed = this.resumeToken !== "" && ack.session_id === this.id;
    this.binary = ack.use_binary_frame === true;
    this.endsUtterances = ack.vad === "server" || (resumed && this.endsUtterances);
    if (resumed) {
      this.resumeToken = ack.resume_token ?? this.resumeToken;
      this.sentSeq = ack.audio_seq ?? 0;
      this.kept = this.kept.filter((chunk) => chunk.seq > this.sentSeq);
      this.keptBytes = this.kept.reduce((size, chunk) => size + chunk.audio.length, 0);
      // Without a hole, also if the page was loaded again meanwhile.
      this.nextSeq = this.kept.reduce((seq, chunk) => (chunk.seq = seq) + 1, this.sentSeq + 1);
    } else {
      this.id = ack.session_id;
      this.resumeToken = ack.resume_token ?? "";
      this.lastSeq = ack.seq ?? 0;
    }
    this.ready = true;
    if (this.finishing) this.finishing.told = false;
    clearInterval(this.beat);
    this.beat = setInterval(() => this.heartbeat(), HEARTBEAT_MS);
    if (this.playing && resumed) this.tell(this.playing);
    this.on.state(resumed ? "resumed" : "open", ack.session_id);
    if (this.dropped) this.on.refused({ code: "SOUND_LOST" }); // to be back is not to have lost nothing
    this.dropped = false;
    this.pump();
  }

  down() {
    this.ready = false;
    clearInterval(this.beat);
    clearTimeout(this.answer);
    clearTimeout(this.timer);
    if (this.id && !this.resumeToken) this.lost();
    this.on.state("reconnecting");
  }

  over(code, reason) {
    this.ready = false;
    clearInterval(this.beat);
    clearTimeout(this.answer);
    clearTimeout(this.timer);
    this.on.state("over", { code, reason });
  }

  /** It cannot be resumed. Audio that was never sent goes into the next session. */
  lost() {
    const unsent = this.kept.filter((chunk) => chunk.seq > this.sentSeq);
    if (this.finishing && !unsent.length) return this.gone();
    this.forget();
    this.playing = null;
    this.on.renewed();
    for (const { audio, final } of unsent) this.say(audio, final);
  }

  heartbeat() {
    this.tell({ type: "client_heartbeat", session_id: this.id, timestamp: Date.now(), last_seq: this.lastSeq });
  }

  tell(message) {
    this.link.send(JSON.stringify(message));
  }

  // ---- audio out

  pump() {
    clearTimeout(this.timer);
    while (this.ready && !this.opening.waits?.()) {
      const chunk = this.kept.find((one) => one.seq > this.sentSeq);
      if (!chunk) return this.goodbye();
      const now = performance.now();
      const wait = this.link.buffered > BUFFERED_BYTES ? 50 : this.throttle.wait(now);
      if (wait > 0) {
        this.timer = setTimeout(() => this.pump(), wait);
        return;
      }
      this.link.send(this.binary ? this.frame(chunk) : this.json(chunk));
      this.sentSeq = chunk.seq;
      this.throttle.sent(now, chunk.final && chunk.audio.length === 0);
    }
  }

  goodbye() {
    if (!this.finishing || this.finishing.told) return;
    this.finishing.told = true;
    this.tell({ type: "session_close", session_id: this.id, reason: this.finishing.reason });
    this.wait();
  }

  json({ seq, audio, final, at }) {
    const payload = encode(audio);
    return JSON.stringify({
      type: "audio_chunk", session_id: this.id, seq, is_final: final, payload, client_timestamp_ms: at,
    });
  }

  /** [kind][length of the id][seq u32][ms u32]([final][0])[id][audio], little-endian; a final without audio is short. */
  frame({ seq, audio, final, at }) {
    const id = new TextEncoder().encode(this.id), fixed = audio.length ? 12 : 10;
    const bytes = new Uint8Array(fixed + id.length + audio.length), view = new DataView(bytes.buffer);
    bytes[0] = audio.length ? 1 : 2;
    bytes[1] = id.length;
    view.setUint32(2, seq, true);
    view.setUint32(6, at % 2 ** 32, true);
    if (audio.length) bytes[10] = final ? 1 : 0;
    bytes.set(id, fixed);
    bytes.set(audio, fixed + id.length);
    return bytes;
  }

  // ---- what the server says

  receive(data) {
    const message = JSON.parse(data);
    if (message.type === "session_init_ack") return this.acked(message);
    if (message.type === "error" && !this.ready) return this.notOpened(message);
    if (message.seq != null && message.type !== "asr_partial") {
      if (message.seq <= this.lastSeq) return;
      this.lastSeq = message.seq;
    }
    this.heard(message);
  }

  notOpened(error) {
    clearTimeout(this.answer);
    if (this.resumeToken && error.code !== "INVALID_SESSION") return this.link.drop();
    if (this.resumeToken) {
      this.lost();
      if (this.link.wanted) this.hello();
      return;
    }
    this.link.stop();
    this.on.state("refused", error);
  }

  heard(message) {
    switch (message.type) {
      case "asr_partial":
        return this.on.partial(message);
      case "translation_result":
        return this.result(message);
      case "utterance_end":
        return this.on.ended(message);
      case "ui_event":
        return this.on.progress(message);
      case "session_close_ack":
        return this.finishing && this.gone();
      case "backpressure":
        this.throttle.press(message.action, message.resume_after_ms, performance.now());
        return this.on.pressed(message);
      case "error":
        if (message.code === "INVALID_SESSION") return this.link.drop(); // coming back shows whether it can be had back
        if (message.details?.utterance_index != null) return this.on.failed(message.details.utterance_index, message);
        return this.on.refused(message);
      default:
        return this.on.message?.(message);
    }
  }

  result({ tts_audio, ...result }) {
    this.on.result({ ...result, sound: tts_audio ? decode(tts_audio) : null });
  }
}
