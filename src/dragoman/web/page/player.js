// Plays translated speech, one result after another, and reports when each starts and ends. The gate is closed meanwhile.

import { mux, packetsOf } from "./ogg.js";

export class Player {
  /** `on`: started(item), ended(item). An item has `buffer` and whatever else its owner wants back. */
  constructor(on, gate) {
    Object.assign(this, { on, gate });
    this.queue = [];
    this.current = null;
  }

  /** Call this in a click: before the first one a browser plays nothing. */
  async wake() {
    this.context ??= new AudioContext();
    if (this.context.state === "suspended") await this.context.resume();
  }

  /** The sound as an AudioBuffer; raises if the browser cannot decode it. */
  async decode(sound, format) {
    this.context ??= new AudioContext();
    if (format !== "pcm16") return this.context.decodeAudioData(mux(packetsOf(sound)));
    const view = new DataView(sound.buffer, sound.byteOffset, sound.byteLength & ~1);
    const buffer = this.context.createBuffer(1, Math.max(1, view.byteLength / 2), 16000), out = buffer.getChannelData(0);
    for (let at = 0; at < view.byteLength / 2; at++) out[at] = view.getInt16(at * 2, true) / 32768;
    return buffer;
  }

  /** `most`: so many wait at most; the oldest is left out. */
  add(item, most = Infinity) {
    this.queue = [...this.queue, item].slice(-most);
    if (!this.current) this.next();
  }

  /** Play this one now. */
  insist(item) {
    this.queue.unshift(item);
    if (this.current) this.source.stop();
    else this.next();
  }

  hush() {
    this.queue = [];
    this.source?.stop();
  }

  next() {
    const item = (this.current = this.queue.shift() ?? null);
    this.source = null; // it would keep the sound that was played
    if (!item) return;
    this.source = this.context.createBufferSource();
    this.source.buffer = item.buffer;
    this.source.connect(this.context.destination);
    this.source.onended = () => {
      this.gate.ended(this.context.outputLatency);
      this.on.ended(item);
      this.next();
    };
    this.gate.started(item.buffer.duration + (this.context.outputLatency ?? 0));
    this.on.started(item);
    this.source.start();
  }
}

/** The loudest sample, 0…1. */
export function peak(buffer) {
  return buffer.getChannelData(0).reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
}
