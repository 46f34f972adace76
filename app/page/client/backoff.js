/** The wait before the next attempt to connect: it doubles up to a cap, and half of it is random. */
export class Backoff {
  #attempts = 0;
  #baseMs;
  #capMs;
  #random;

  /** @param {{baseMs?: number, capMs?: number, random?: () => number}} [options] */
  constructor({ baseMs = 400, capMs = 20_000, random = Math.random } = {}) {
    this.#baseMs = baseMs;
    this.#capMs = capMs;
    this.#random = random;
  }

  /** Attempts since the last success. */
  get attempts() {
    return this.#attempts;
  }

  /** The delay before the next attempt, in milliseconds: between half and all of `min(cap, base * 2^n)`. */
  next() {
    const whole = Math.min(this.#capMs, this.#baseMs * 2 ** this.#attempts);
    this.#attempts += 1;
    return whole / 2 + (whole / 2) * this.#random();
  }

  reset() {
    this.#attempts = 0;
  }
}
