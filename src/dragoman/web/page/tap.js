// Runs in the audio thread: passes blocks of the microphone to the page.

const BLOCK = 1024;

class Tap extends AudioWorkletProcessor {
  block = new Float32Array(BLOCK);
  filled = 0;

  process([channels]) {
    const heard = channels[0];
    for (let at = 0; heard && at < heard.length; ) {
      const count = Math.min(BLOCK - this.filled, heard.length - at);
      this.block.set(heard.subarray(at, at + count), this.filled);
      this.filled += count;
      at += count;
      if (this.filled === BLOCK) {
        this.port.postMessage(this.block, [this.block.buffer]);
        this.block = new Float32Array(BLOCK);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("tap", Tap);
