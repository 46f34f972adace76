// @ts-nocheck: TypeScript's library does not know the scope that this runs in.
/** Beside the page's own thread: gathers what the microphone hears into pieces of 20 ms. A file of its own, which the browser loads. */

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
