// A recording, played at the pace of speech.

const RATE = 16000, PIECE_MS = 100, TAIL_MS = 1000;

export class Recording {
  /** Any file that the browser can decode; throws if it cannot. */
  static async decode(buffer) {
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(buffer);
    const samples = new Float32Array(sound.length + (RATE * TAIL_MS) / 1000);
    for (let channel = 0; channel < sound.numberOfChannels; channel++) {
      const one = sound.getChannelData(channel);
      for (let at = 0; at < one.length; at++) samples[at] += one[at] / sound.numberOfChannels;
    }
    return new Recording(samples);
  }

  constructor(samples) {
    this.samples = samples;
  }

  /** `heard` gets one piece after another in real time; `done` is called at the end, unless it was closed before. */
  play(heard, done) {
    const began = performance.now(), piece = (RATE * PIECE_MS) / 1000, length = this.samples.length;
    let at = 0;
    this.timer = setInterval(() => {
      const due = ((performance.now() - began) / 1000) * RATE + piece / 2;
      // The last piece may be shorter than the others: its end is the end of the recording.
      for (; at < length && Math.min(at + piece, length) <= due; at += piece) {
        heard(this.samples.subarray(at, at + piece));
      }
      if (at >= length) {
        this.close();
        done();
      }
    }, PIECE_MS / 2);
  }

  close() {
    clearInterval(this.timer);
  }
}
