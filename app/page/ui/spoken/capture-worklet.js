// @ts-nocheck: TypeScript's library does not know this script's scope.
/** Collects the microphone's sound in pieces of 20 ms, in a thread of its own. The browser loads this file by itself. */

const PIECE_S = 0.02;

class Capture extends AudioWorkletProcessor {
  #piece = new Float32Array(Math.round(sampleRate * PIECE_S));
  #filled = 0;

  /** @param {Float32Array[][]} inputs  one, of one channel, or none while nothing is connected */
  process([[channel] = []]) {
    for (const sample of channel ?? []) {
      this.#piece[this.#filled] = sample;
      this.#filled += 1;
      if (this.#filled < this.#piece.length) continue;
      this.port.postMessage(this.#piece.slice());
      this.#filled = 0;
    }
    return true;
  }
}

registerProcessor("midstream-capture", Capture);
