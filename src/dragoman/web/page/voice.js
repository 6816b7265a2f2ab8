// A stream of 16 kHz samples in pieces, and whether somebody speaks.
//
// A server that finds pauses gets everything, in pieces of 60 ms. Another one takes the absence of audio for a pause, so
// it gets only speech, in pieces of 200 ms; after `HANG_MS` of silence the page ends the utterance, which is quicker than
// that server's own time limit. The noise floor follows the room.

const RATE = 16000;
const FRAME = 320; // 20 ms
const CHUNK_FRAMES = 10, STREAM_FRAMES = 3;
const PRE_ROLL = 15; // frames from before it was certain that somebody speaks
const CERTAIN = 3;
const HANG_MS = 800;
const QUIETEST_DB = -52, ABOVE_FLOOR_DB = 9;

export class Voice {
  /** `on`: chunk(bytes, final), level(0…1, speaking). `streams()`: whether the server finds the pauses. */
  constructor(on, streams = () => false) {
    Object.assign(this, { on, streams });
    this.isOpen = false; // a piece was given that is not the last of its utterance
    this.rest = new Float32Array(0);
    this.floor = -60;
    this.loud = 0;
    this.quiet = 0;
    this.speaking = false;
    this.frames = [];
  }

  push(samples) {
    const input = new Float32Array(this.rest.length + samples.length);
    input.set(this.rest);
    input.set(samples, this.rest.length);
    let at = 0;
    for (; at + FRAME <= input.length; at += FRAME) this.frame(input.subarray(at, at + FRAME));
    this.rest = input.slice(at);
  }

  /** The input has ended, or pauses: what is open is an utterance. */
  end() {
    if (this.isOpen || this.speaking) this.cut();
    this.frames = [];
    this.on.level(0, false);
  }

  frame(samples) {
    const db = loudness(samples);
    this.floor = db < this.floor ? Math.max(-80, db * 0.3 + this.floor * 0.7) : Math.min(-35, this.floor + 0.02);
    const loud = db > Math.max(QUIETEST_DB, this.floor + ABOVE_FLOOR_DB);
    this.loud = loud ? this.loud + 1 : 0;
    this.quiet = loud ? 0 : this.quiet + 1;
    this.frames.push(pcm16(samples));
    if (this.streams()) this.stream();
    else if (!this.speaking) this.listen();
    else if (this.quiet * FRAME * 1000 >= HANG_MS * RATE) this.cut();
    else if (this.frames.length >= CHUNK_FRAMES) this.flush(false);
    this.on.level(Math.max(0, Math.min(1, (db + 60) / 55)), this.speaking);
  }

  stream() {
    this.speaking = this.loud > 0 || (this.speaking && this.quiet * FRAME * 1000 < HANG_MS * RATE);
    if (this.frames.length >= STREAM_FRAMES) this.flush(false);
  }

  listen() {
    if (this.loud >= CERTAIN) this.speaking = true;
    else if (this.frames.length > PRE_ROLL) this.frames.shift();
  }

  cut() {
    this.flush(true);
    this.speaking = false;
    this.loud = this.quiet = 0;
  }

  flush(final) {
    const bytes = new Uint8Array(this.frames.length * FRAME * 2);
    this.frames.forEach((frame, number) => bytes.set(frame, number * FRAME * 2));
    this.frames = [];
    this.isOpen = !final;
    this.on.chunk(bytes, final);
  }
}

function loudness(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  return 10 * Math.log10(sum / samples.length + 1e-10);
}

function pcm16(samples) {
  const bytes = new Uint8Array(samples.length * 2), view = new DataView(bytes.buffer);
  samples.forEach((sample, at) => view.setInt16(at * 2, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return bytes;
}
