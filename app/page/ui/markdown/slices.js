/** Work that can wait for a moment. It is done in short tasks while the page is idle, so no key press waits for it. */

const SLICE_MS = 6;
/** How long a busy page may delay it. */
const PATIENCE_MS = 200;

/** Jobs in the order they came. */
class Slices {
  /** @type {(() => void)[]} */ #jobs = [];
  #held = 0;
  #scheduled = false;
  /** @type {(() => void)[]} */ #listeners = [];

  /** @param {() => void} job  it takes some milliseconds at most; longer work adds its rest as another job */
  add(job) {
    this.#jobs.push(job);
    this.#ask();
  }

  /** Counts a promise as work under way. @param {Promise<unknown>} promise */
  hold(promise) {
    this.#held += 1;
    const done = () => {
      this.#held -= 1;
      this.#notify();
    };
    promise.then(done, done);
  }

  /** Resolves when no work is left. @returns {Promise<void>} */
  settled() {
    return new Promise((resolve) => {
      this.#listeners.push(resolve);
      this.#notify();
    });
  }

  #ask() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const run = () => this.#run();
    if (typeof requestIdleCallback === "function") requestIdleCallback(run, { timeout: PATIENCE_MS });
    else setTimeout(run, 0);
  }

  #run() {
    this.#scheduled = false;
    const end = performance.now() + SLICE_MS;
    let done = 0;
    while (done < this.#jobs.length && (done === 0 || performance.now() < end)) this.#jobs[done++]();
    this.#jobs.splice(0, done);
    if (this.#jobs.length > 0) this.#ask();
    else this.#notify();
  }

  #notify() {
    if (this.#jobs.length > 0 || this.#held > 0) return;
    for (const listener of this.#listeners.splice(0)) listener();
  }
}

/** The page's. */
export const later = new Slices();
