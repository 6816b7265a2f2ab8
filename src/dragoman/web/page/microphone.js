// The microphone as 16 kHz samples. While a voice plays nearby it gives nothing: others would get the voice back as speech.

import { Resampler } from "./resampler.js";

const WANTED = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };

export class Microphone {
  /**
   * Throws the browser's error if the microphone cannot be opened.
   * `on`: samples(Float32Array), waits(yes) when `gate` closes or opens, gone() if it is lost. `device`: its id, or none.
   */
  static async open(on, gate, device = "") {
    if (!navigator.mediaDevices) throw new DOMException("no microphone without https", "SecurityError");
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { ...WANTED, ...(device && { deviceId: device }) } });
    // Not by our own stop(): unplugged, or no longer allowed.
    for (const track of stream.getTracks()) track.onended = on.gone;
    const context = new AudioContext();
    try {
      await context.audioWorklet.addModule("/page/tap.js");
      await context.resume();
      return new Microphone(stream, context, on, gate);
    } catch (error) {
      for (const track of stream.getTracks()) track.stop();
      context.close();
      throw error;
    }
  }

  constructor(stream, context, on, gate) {
    Object.assign(this, { stream, context, on, gate, waits: false });
    const resampler = new Resampler(context.sampleRate, 16000);
    const tap = new AudioWorkletNode(context, "tap");
    tap.port.onmessage = ({ data }) => this.stream && this.block(resampler.push(data));
    // A node without a destination may not be run; the tap itself is silent.
    context.createMediaStreamSource(stream).connect(tap).connect(context.destination);
  }

  block(samples) {
    const waits = this.gate.isClosed;
    if (waits !== this.waits) this.on.waits((this.waits = waits));
    if (!waits) this.on.samples(samples);
  }

  close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
    this.context.close();
  }
}
