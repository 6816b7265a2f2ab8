// From the rate of the sound card to that of the wire, as it flows: a windowed sinc, tabulated at 64 places between two
// samples, with its cut-off below half of the lower rate.

const PHASES = 64, LOBES = 12;

export class Resampler {
  constructor(from, to) {
    this.step = from / to;
    const cutoff = 0.92 * Math.min(1, to / from);
    this.half = Math.ceil(LOBES / cutoff);
    this.table = Array.from({ length: PHASES }, (_, phase) => kernel(this.half, cutoff, phase / PHASES));
    this.held = new Float32Array(2 * this.half); // what a coming sample still looks back at
    this.at = this.half; // of the next output, in `held`
  }

  /** The samples that are complete so far. */
  push(block) {
    const input = new Float32Array(this.held.length + block.length);
    input.set(this.held);
    input.set(block, this.held.length);
    const out = [];
    for (; this.at + this.half < input.length; this.at += this.step) {
      const base = Math.floor(this.at), weights = this.table[Math.floor((this.at - base) * PHASES)];
      let sum = 0;
      for (let k = 0, from = base - this.half + 1; k < weights.length; k++) sum += input[from + k] * weights[k];
      out.push(sum);
    }
    const keepFrom = Math.max(0, Math.floor(this.at) - this.half);
    this.held = input.slice(keepFrom);
    this.at -= keepFrom;
    return Float32Array.from(out);
  }
}

function kernel(half, cutoff, fraction) {
  const weights = new Float32Array(2 * half);
  let sum = 0;
  for (let k = 0; k < weights.length; k++) {
    const x = k - half + 1 - fraction, inside = x / half;
    const sinc = x === 0 ? cutoff : Math.sin(Math.PI * cutoff * x) / (Math.PI * x);
    weights[k] = Math.abs(inside) >= 1 ? 0 : sinc * (0.5 + 0.5 * Math.cos(Math.PI * inside));
    sum += weights[k];
  }
  return weights.map((weight) => weight / sum);
}
