/** How long the other side may be silent while it owes something. Then it is pinged. */
const QUIET_MS = 2_500;
/** How long after the ping its silence is reported, */
const REPORT_MS = 2_000;
/** and how long after that the connection is given up. One answer may take that long on a slow network. */
const GIVE_UP_MS = 2_000;

/**
 * @typedef {object} LivenessOptions
 * @property {() => void} ask              pings the other side
 * @property {() => boolean} awaits        whether it owes something now: an answer, or more of a reply
 * @property {(quiet: boolean) => void} onQuiet  nothing came for a while, or something came again
 * @property {() => void} onSilent         nothing came for so long that the connection is given up
 */

/**
 * Notices that the other side of a connection is silent, which browsers may take minutes for. An idle connection is pinged
 * once a heartbeat, so a thousand idle pages cost next to nothing. While something is owed, silence is noticed in seconds.
 */
export class Liveness {
  #options;
  #beatMs = 0;
  #heardAt = 0;
  /** Whether it was pinged, and nothing came since. */
  #pinged = false;
  #quiet = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;
  /** When that timer is due; Infinity if there is none. */
  #dueAt = Infinity;

  /** @param {LivenessOptions} options */
  constructor(options) {
    this.#options = options;
  }

  /** Begins with an open connection. @param {number} beatMs */
  begin(beatMs) {
    this.end();
    this.#beatMs = beatMs;
    this.heard();
  }

  /** Ends: the connection is closed. */
  end() {
    this.#arm(Infinity);
    this.#pinged = this.#quiet = false;
  }

  /** Takes that something came. */
  heard() {
    this.#heardAt = performance.now();
    const wasPinged = this.#pinged;
    this.#pinged = false;
    if (this.#quiet) this.#options.onQuiet((this.#quiet = false));
    if (wasPinged) this.#arm(this.#patienceMs);
    else this.said();
  }

  /** Takes that something was sent or received, so that an answer may be owed now. */
  said() {
    // Most frames change nothing: the current timer checks again when it is due.
    if (!this.#pinged && performance.now() + this.#patienceMs < this.#dueAt) this.#arm(this.#patienceMs);
  }

  /** Pings now, if there is reason to doubt the connection. */
  doubt() {
    if (this.#pinged) return;
    this.#pinged = true;
    this.#options.ask();
    this.#arm(Math.min(REPORT_MS, this.#beatMs));
  }

  get #patienceMs() {
    return this.#options.awaits() ? Math.min(QUIET_MS, this.#beatMs) : this.#beatMs;
  }

  #due() {
    this.#dueAt = Infinity;
    if (this.#quiet) return this.#options.onSilent();
    if (this.#pinged) {
      this.#quiet = true;
      this.#arm(Math.min(GIVE_UP_MS, this.#beatMs));
      return this.#options.onQuiet(true);
    }
    const leftMs = this.#heardAt + this.#patienceMs - performance.now();
    return leftMs > 0 ? this.#arm(leftMs) : this.doubt();
  }

  /** @param {number} ms */
  #arm(ms) {
    clearTimeout(this.#timer);
    this.#dueAt = performance.now() + ms;
    if (ms !== Infinity) this.#timer = setTimeout(() => this.#due(), ms);
  }
}
