// Utterances and their translations, ordered by the number of the utterance, whenever they arrive.

import { has, label, say, word } from "./words.js";

export class Transcript {
  /** `on`: replay(turn). */
  constructor(list, hint, live, on) {
    Object.assign(this, { list, hint, live, on });
    this.turns = new Map();
    this.sessions = 0;
  }

  /** Start a part for a new session, whose utterances are counted from 0 again. */
  begin(src, tgt) {
    return { epoch: ++this.sessions, src, tgt };
  }

  expect(session, index) {
    this.turn(session, index);
  }

  /** An empty text: these words come to nothing. */
  partial(session, index, text) {
    const turn = this.turn(session, index);
    if (turn.settled) return;
    if (!text) return this.forget(turn);
    turn.source.textContent = text;
    this.state(turn, "partial");
    say(turn.note, "turn.translating");
    this.show(turn);
  }

  /** The turn; null: there is one of this number already, or it is empty. */
  result(session, result) {
    const turn = this.turn(session, result.utterance_index);
    if (!result.text_asr && !result.text_translated && !result.sound) return this.nothing(turn);
    if (turn.settled) return null;
    this.settle(turn, "done");
    turn.source.textContent = result.text_asr;
    turn.translation.textContent = result.text_translated;
    say(turn.note, result.sound ? "" : "turn.silent");
    if (result.backfilled) this.late(turn);
    this.live.textContent = result.text_translated;
    this.show(turn);
    return turn;
  }

  failed(session, index, code) {
    const turn = this.turn(session, index);
    if (turn.settled) return;
    this.settle(turn, "failed");
    const key = has(`error.${code}`) ? `error.${code}` : "error.other";
    say(turn.note, "turn.failed", { why: word(key, { code }) });
    this.live.textContent = turn.note.textContent;
  }

  /** The server is done with an utterance; a result or failure is shown already. */
  ended(session, index, state) {
    if (state === "empty") this.nothing(this.turn(session, index));
    if (state === "skipped") this.failed(session, index, "SKIPPED");
  }

  /** The session is lost, with every result that has not arrived. */
  abandon({ epoch }) {
    const open = [...this.turns.values()].filter((turn) => turn.epoch === epoch && !turn.settled);
    for (const turn of open) if (turn.item.dataset.state !== "empty") this.failed({ epoch }, turn.index, "SESSION_CLOSED");
  }

  sounds(turn, buffer, peak) {
    turn.item.dataset.soundMs = Math.round(buffer.duration * 1000);
    turn.item.dataset.peak = peak.toFixed(4);
    turn.replay.hidden = false;
  }

  mute(turn) {
    say(turn.note, "turn.silent");
  }

  speaking(turn, yes) {
    turn.item.classList.toggle("speaking", yes);
  }

  // ---- inside

  turn(session, index) {
    const key = `${session.epoch}:${index}`;
    let turn = this.turns.get(key);
    if (!turn) {
      turn = this.build(session, index);
      this.turns.set(key, turn);
      this.place(turn);
      this.hint.hidden = true;
    }
    return turn;
  }

  build({ epoch, src, tgt }, index) {
    const item = make("li", "turn"), source = make("p", "source"), translation = make("p", "translation");
    const marks = make("p", "marks"), note = make("span", "note"), replay = make("button", "replay");
    replay.type = "button";
    replay.hidden = true;
    say(replay, "turn.play.short");
    label(replay, "turn.play");
    source.lang = src;
    translation.lang = tgt;
    marks.append(replay, note);
    item.append(source, translation, marks);
    item.dataset.index = index;
    const turn = { epoch, index, item, source, translation, marks, note, replay, settled: false };
    this.state(turn, "pending");
    say(note, "turn.pending");
    replay.addEventListener("click", () => this.on.replay(turn));
    return turn;
  }

  place(turn) {
    const behind = (other) => other.epoch > turn.epoch || (other.epoch === turn.epoch && other.index > turn.index);
    const all = [...this.turns.values()].filter(behind);
    all.sort((a, b) => a.epoch - b.epoch || a.index - b.index);
    this.list.insertBefore(turn.item, all[0]?.item ?? null);
    this.show(turn);
  }

  forget({ epoch, index, item }) {
    item.remove();
    this.turns.delete(`${epoch}:${index}`);
  }

  late(turn) {
    const mark = make("span", "late");
    say(mark, "turn.late");
    mark.title = word("turn.late.why");
    turn.marks.prepend(mark);
    turn.item.dataset.backfilled = "true";
  }

  nothing(turn) {
    if (turn.settled) return null;
    this.state(turn, "empty");
    say(turn.note, "turn.nothing");
    return null;
  }

  settle(turn, state) {
    turn.settled = true;
    this.state(turn, state);
  }

  state(turn, word) {
    turn.item.dataset.state = word;
  }

  show(turn) {
    if (turn.item === this.list.lastElementChild) this.list.scrollTop = this.list.scrollHeight;
  }
}

export function make(tag, name) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  return element;
}
