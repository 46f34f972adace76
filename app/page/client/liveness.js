/** So long the other side may say nothing while something is awaited of it, before it is asked for a sign of life. */
const QUIET_MS = 2_500;
/** So long after it was asked it is told that none came, */
const TELL_MS = 2_000;
/** and so long after that the connection is given up. A slow network may take as long for one answer. */
const GIVE_UP_MS = 2_000;

/**
 * @typedef {object} LivenessOptions
 * @property {() => void} ask              has the other side say something
 * @property {() => boolean} awaits        whether something is awaited of it now: an answer, more of a reply
 * @property {(quiet: boolean) => void} onQuiet  nothing came for a while; or something came again
 * @property {() => void} onSilent         nothing came for so long that nothing will
 */

/**
 * Notices that the other side of a connection says nothing: a browser may take minutes to. While nothing is awaited it asks
 * once a beat, so that a thousand idle pages cost next to nothing; while something is, it takes seconds.
 */
export class Liveness {
  #options;
  #beatMs = 0;
  #heardAt = 0;
  /** Whether it was asked, and nothing was heard since. */
  #asked = false;
  #quiet = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  /** When that timer is due; Infinity where there is none. */
  #dueAt = Infinity;

  /** @param {LivenessOptions} options */
  constructor(options) {
    this.#options = options;
  }

  /** A connection stands. @param {number} beatMs */
  begin(beatMs) {
    this.end();
    this.#beatMs = beatMs;
    this.heard();
  }

  /** It stands no more. */
  end() {
    this.#arm(Infinity);
    this.#asked = this.#quiet = false;
  }

  /** Something came. */
  heard() {
    this.#heardAt = performance.now();
    const wasAsked = this.#asked;
    this.#asked = false;
    if (this.#quiet) this.#options.onQuiet((this.#quiet = false));
    if (wasAsked) this.#arm(this.#patienceMs);
    else this.said();
  }

  /** Something was said, or heard, that may be waited upon. */
  said() {
    // Most frames change nothing: the timer that is set looks anew when it is due.
    if (!this.#asked && performance.now() + this.#patienceMs < this.#dueAt) this.#arm(this.#patienceMs);
  }

  /** Asks for a sign of life now, where there is reason to doubt the connection. */
  doubt() {
    if (this.#asked) return;
    this.#asked = true;
    this.#options.ask();
    this.#arm(Math.min(TELL_MS, this.#beatMs));
  }

  get #patienceMs() {
    return this.#options.awaits() ? Math.min(QUIET_MS, this.#beatMs) : this.#beatMs;
  }

  #due() {
    this.#dueAt = Infinity;
    if (this.#quiet) return this.#options.onSilent();
    if (this.#asked) return this.#tell();
    const leftMs = this.#heardAt + this.#patienceMs - performance.now();
    return leftMs > 0 ? this.#arm(leftMs) : this.doubt();
  }

  #tell() {
    this.#quiet = true;
    this.#arm(Math.min(GIVE_UP_MS, this.#beatMs));
    this.#options.onQuiet(true);
  }

  /** @param {number} ms */
  #arm(ms) {
    clearTimeout(this.#timer);
    this.#dueAt = performance.now() + ms;
    if (ms !== Infinity) this.#timer = setTimeout(() => this.#due(), ms);
  }
}
