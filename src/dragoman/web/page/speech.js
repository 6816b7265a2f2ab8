// The speech half of the page: a source of sound, a session, and its results.

import { Gate } from "./gate.js";
import { Languages } from "./languages.js";
import { Meter } from "./meter.js";
import { Microphone } from "./microphone.js";
import { Player, peak } from "./player.js";
import { Recording } from "./recording.js";
import { Session } from "./session.js";
import { Transcript } from "./transcript.js";
import { Voice } from "./voice.js";
import { has, say } from "./words.js";

const MAX_FILE_BYTES = 64 << 20;
const BRIEFLY_MS = 4000;

export class Speech {
  /** `token()`: the token of a user who has logged in, or undefined. */
  constructor(root, token) {
    this.token = token;
    this.part = (name) => root.querySelector(`[data-part="${name}"]`);
    this.source = this.session = null;
    this.languages = new Languages(this.part("from"), this.part("to"), this.part("swap"), {
      changed: () => this.restart(),
      known: () => this.known(),
    });
    this.meter = new Meter(this.part("meter"));
    this.transcript = new Transcript(this.part("results"), this.part("hint"), this.part("live"), {
      replay: (turn) => this.replay(turn.sound),
    });
    this.gate = new Gate();
    this.player = new Player({
      started: (item) => this.played(item, true),
      ended: (item) => this.played(item, false),
    }, this.gate);
    this.listen(root);
    this.languages.watch();
  }

  listen(root) {
    this.part("speak").addEventListener("click", () => (this.source ? this.stop() : this.speak()));
    this.part("sample").addEventListener("click", () => this.sample());
    this.part("choose").addEventListener("click", () => this.part("file").click());
    this.part("file").addEventListener("change", ({ target }) => {
      if (target.files[0]) this.file(target.files[0]);
      target.value = "";
    });
    this.part("aloud").addEventListener("change", ({ target }) => target.checked || this.player.hush());
    for (const name of ["dragenter", "dragover"]) root.addEventListener(name, (event) => this.drag(event, root, true));
    for (const name of ["dragleave", "drop"]) root.addEventListener(name, (event) => this.drag(event, root, false));
    addEventListener("pagehide", () => this.session?.close("left"));
  }

  drag(event, root, over) {
    event.preventDefault();
    root.classList.toggle("dropping", over);
    const file = event.type === "drop" && event.dataTransfer.files[0];
    if (file) this.file(file);
  }

  // ---- sources

  async speak() {
    await this.from("open", async (voice) => {
      const microphone = await Microphone.open({
        samples: (samples) => voice.push(samples),
        waits: (yes) => yes && voice.end(),
        gone: () => this.unplugged(),
      }, this.gate);
      return () => microphone.close();
    });
  }

  unplugged() {
    this.stop();
    this.tell("error.unplugged", "bad");
  }

  async sample() {
    await this.recording(async () => {
      const answer = await fetch(`/sample.wav?lang=${encodeURIComponent(this.languages.src)}`);
      if (!answer.ok) throw new DOMException("", "sample");
      return answer.arrayBuffer();
    });
  }

  async file(file) {
    await this.recording(() => {
      if (file.size > MAX_FILE_BYTES) throw new DOMException("", "EncodingError");
      return file.arrayBuffer();
    });
  }

  async recording(load) {
    await this.from("playing", async (voice) => {
      const recording = await Recording.decode(await load());
      recording.play((samples) => voice.push(samples), () => this.stop());
      return () => recording.close();
    });
  }

  /** `open` starts to feed a voice, and returns the source to close. */
  async from(state, open) {
    this.stop();
    const mine = (this.source = { state, close: () => {} });
    this.button(true);
    this.connect();
    const voice = new Voice({
      chunk: (bytes, final) => this.session?.say(bytes, final),
      level: (level, speaking) => this.meter.hear(level, speaking),
    }, () => this.session?.endsUtterances);
    try {
      await this.player.wake();
      const close = await open(voice);
      mine.close = () => (close(), voice.end(), this.meter.still());
      if (this.source !== mine) mine.close();
      else this.state();
    } catch (error) {
      if (this.source === mine) this.stop();
      this.tell(has(`error.${error.name}`) ? `error.${error.name}` : "error.microphone", "bad");
    }
  }

  stop() {
    const source = this.source;
    this.source = null;
    source?.close();
    this.button(false);
    this.state();
  }

  button(on) {
    const button = this.part("speak");
    button.classList.toggle("on", on);
    button.setAttribute("aria-pressed", on);
    say(this.part("speak-word"), on ? "speech.stop" : "speech.start");
  }

  // ---- the session

  connect() {
    if (this.session) return;
    const { src, tgt } = this.languages;
    let part = this.transcript.begin(src, tgt);
    // A session that only finishes earlier speech still fills its part of the transcript, but its state is not shown.
    const current = (tell) => (...told) => this.session === session && tell(...told);
    const session = (this.session = new Session({ src, tgt, token: this.token }, {
      state: current((name, detail) => this.connection(name, detail)),
      partial: ({ utterance_index, text }) => this.transcript.partial(part, utterance_index, text),
      progress: ({ utterance_index, event }) => event === "DISPATCHED" && this.transcript.expect(part, utterance_index),
      result: (result) => this.result(part, result),
      failed: (index, error) => this.transcript.failed(part, index, error.code),
      ended: ({ utterance_index, state }) => this.transcript.ended(part, utterance_index, state),
      refused: current((error) => this.complain(error)),
      pressed: current(() => this.briefly("state.pressed", "busy")),
      renewed: () => {
        this.transcript.abandon(part);
        part = this.transcript.begin(src, tgt);
        if (this.session === session) this.tell("state.renewed", "bad");
      },
    }));
    session.open();
  }

  /** Open another session for other languages. */
  restart() {
    this.session?.finish("languages changed");
    this.session = null;
    this.broken = "";
    if (this.source) this.connect();
    this.known();
  }

  known() {
    const { served, sampled } = this.languages;
    for (const name of ["speak", "sample", "choose"]) this.part(name).disabled = !served && !this.source;
    this.part("sample").hidden = !sampled;
    if (!this.session && this.part("status").dataset.mood !== "bad") this.state();
  }

  connection(name, detail) {
    this.part("status").dataset.connection = name;
    this.broken = name === "reconnecting" ? "state.reconnecting" : name === "connecting" ? "state.connecting" : "";
    if (name === "resumed") {
      this.part("status").dataset.resumed = Number(this.part("status").dataset.resumed ?? 0) + 1;
      this.briefly("state.resumed", "good");
    } else if (name === "over" || name === "refused") {
      this.session = null;
      this.stop();
      this.refused(detail);
    } else {
      this.state();
    }
  }

  refused({ code, message, reason }) {
    const unknown = code === 4501 || /token|unauthor/i.test(message ?? "");
    if (/chat_tokens_for_speech/.test(reason ?? "")) this.tell("state.chat_only", "bad");
    else if (unknown) this.tell("state.unauthorized", "bad");
    else if (has(`error.${code}`)) this.tell(`error.${code}`, "bad");
    else this.tell("state.over", "bad");
  }

  complain({ code }) {
    this.tell(has(`error.${code}`) ? `error.${code}` : "error.other", "bad", { code });
  }

  // ---- what comes back

  /** A turn keeps its sound encoded: decoded it is many times as large, and a conversation may be long. */
  async result(part, result) {
    const turn = this.transcript.result(part, result);
    if (!turn || !result.sound) return;
    try {
      const { sound, tts_format: format, session_id, trace_id, group_id } = result;
      const buffer = await this.player.decode(sound, format);
      turn.sound = { turn, sound, format, about: { session_id, trace_id, group_id } };
      this.transcript.sounds(turn, buffer, peak(buffer));
      if (this.part("aloud").checked) this.player.add({ ...turn.sound, buffer });
    } catch {
      this.transcript.mute(turn);
    }
  }

  async replay(item) {
    this.player.insist({ ...item, buffer: await this.player.decode(item.sound, item.format) });
  }

  played({ turn, about }, begins) {
    this.transcript.speaking(turn, begins);
    if (about.session_id !== this.session?.id) return;
    if (begins) this.session.ttsStarted(about);
    else this.session.ttsEnded(about);
  }

  // ---- words

  state() {
    if (this.broken) return this.tell(this.broken, this.broken.endsWith("reconnecting") ? "bad" : "busy");
    if (this.source) return this.tell(`state.${this.source.state}`, "live");
    if (!this.languages.served) return this.tell("state.nobody", "quiet");
    return this.tell("state.idle", "quiet");
  }

  briefly(key, mood) {
    this.tell(key, mood);
    clearTimeout(this.news);
    this.news = setTimeout(() => this.state(), BRIEFLY_MS);
  }

  tell(key, mood, values) {
    const status = this.part("status");
    status.dataset.mood = mood;
    say(this.part("status-word"), key, values);
    if (mood === "bad") status.setAttribute("role", "alert");
    else status.setAttribute("role", "status");
  }
}
