/** Zero crossings of the kernel on each side: up to its edge the passband is flat within a tenth of a decibel. */
const LOBES = 12;
/** The edge of the passband, as a share of the band of the lower rate. */
const EDGE = 0.92;

/**
 * Resamples sound, piece by piece: a windowed sinc with a kernel for each phase (Smith, Digital Audio Resampling, 2002).
 * The samples are the same however the sound is cut into pieces. Pure.
 */
export class Resampler {
  #up;
  #down;
  #cutoff;
  #half;
  /** @type {Map<number, Float64Array>} */ #kernels = new Map();
  /** The input that later samples still need. @type {Float32Array} */ #rest;
  /** The place of the next sample: an index of `#rest`, and a number of `#up`ths after it. */
  #at;
  #phase = 0;

  /** @param {{from: number, to: number}} rates  whole samples a second */
  constructor({ from, to }) {
    const common = divisor(from, to);
    this.#up = to / common;
    this.#down = from / common;
    this.#cutoff = EDGE * Math.min(1, to / from);
    this.#half = Math.ceil(LOBES / this.#cutoff);
    this.#rest = new Float32Array(this.#half);
    this.#at = this.#half;
  }

  /** @param {Float32Array} samples  -1 to 1 @returns {Int16Array} */
  take(samples) {
    const all = new Float32Array(this.#rest.length + samples.length);
    all.set(this.#rest);
    all.set(samples, this.#rest.length);
    const made = [];
    while (this.#at + this.#half < all.length) {
      made.push(pcm(this.#sampleOf(all)));
      this.#phase += this.#down;
      this.#at += Math.floor(this.#phase / this.#up);
      this.#phase %= this.#up;
    }
    const done = Math.max(0, Math.min(all.length, this.#at - this.#half + 1));
    this.#rest = all.slice(done);
    this.#at -= done;
    return Int16Array.from(made);
  }

  /** @param {Float32Array} all */
  #sampleOf(all) {
    const kernel = this.#kernelOf(this.#phase);
    const first = this.#at - this.#half + 1;
    let sum = 0;
    for (let tap = 0; tap < kernel.length; tap += 1) sum += kernel[tap] * all[first + tap];
    return sum;
  }

  /** @param {number} phase */
  #kernelOf(phase) {
    let kernel = this.#kernels.get(phase);
    if (kernel === undefined) this.#kernels.set(phase, (kernel = this.#newKernel(phase / this.#up)));
    return kernel;
  }

  /** @param {number} shift  the wanted sample's distance behind the one in the middle, 0 to 1 */
  #newKernel(shift) {
    const taps = Float64Array.from({ length: 2 * this.#half }, (_, tap) => {
      const distance = tap - this.#half + 1 - shift;
      return sinc(this.#cutoff * distance) * (0.5 + 0.5 * Math.cos((Math.PI * distance) / (this.#half + 1)));
    });
    const sum = taps.reduce((before, tap) => before + tap, 0);
    return taps.map((tap) => tap / sum);
  }
}

/** @param {number} value */
function pcm(value) {
  return Math.round(Math.max(-1, Math.min(1, value)) * 32_767);
}

/** @param {number} x */
function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

/** @param {number} a @param {number} b @returns {number} */
function divisor(a, b) {
  return b === 0 ? a : divisor(b, a % b);
}
