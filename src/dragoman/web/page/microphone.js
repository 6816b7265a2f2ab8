// The microphone as 16 kHz samples.

import { Resampler } from "./resampler.js";

const WANTED = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };

export class Microphone {
  /** Throws the browser's error if the microphone cannot be opened; calls `gone` if it is lost later. */
  static async open(heard, gone) {
    if (!navigator.mediaDevices) throw new DOMException("no microphone without https", "SecurityError");
    const stream = await navigator.mediaDevices.getUserMedia({ audio: WANTED });
    // Not by our own stop(): unplugged, or no longer allowed.
    for (const track of stream.getTracks()) track.onended = gone;
    const context = new AudioContext();
    try {
      await context.audioWorklet.addModule("/page/tap.js");
      await context.resume();
      return new Microphone(stream, context, heard);
    } catch (error) {
      for (const track of stream.getTracks()) track.stop();
      context.close();
      throw error;
    }
  }

  constructor(stream, context, heard) {
    this.stream = stream;
    this.context = context;
    const resampler = new Resampler(context.sampleRate, 16000);
    const tap = new AudioWorkletNode(context, "tap");
    tap.port.onmessage = ({ data }) => this.stream && heard(resampler.push(data));
    // A node without a destination may not be run; the tap itself is silent.
    context.createMediaStreamSource(stream).connect(tap).connect(context.destination);
  }

  close() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = null;
    this.context.close();
  }
}
