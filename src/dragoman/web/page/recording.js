// A recording spoken at the pace of speech.

const RATE = 16000, PIECE_MS = 100, TAIL_MS = 1000;

export class Recording {
  /** Whatever the browser can decode; raises if it cannot. */
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

  /** `heard` gets pieces as time goes by, `done` is called at the end unless it was closed before. */
  play(heard, done) {
    const began = performance.now(), piece = (RATE * PIECE_MS) / 1000;
    let at = 0;
    this.timer = setInterval(() => {
      const due = Math.min(this.samples.length, ((performance.now() - began) / 1000) * RATE);
      for (; at < this.samples.length && at + piece <= due + piece / 2; at += piece) {
        heard(this.samples.subarray(at, at + piece));
      }
      if (at >= this.samples.length) {
        this.close();
        done();
      }
    }, PIECE_MS / 2);
  }

  close() {
    clearInterval(this.timer);
  }
}
