/**
 * The highlighter is a quarter of all that the page loads, and a first visit can do without: it comes when code is first
 * shown, or once the browser has nothing else to do.
 */

/** @typedef {typeof import("../../vendor/highlight.js").hljs} Highlighter */

/** @type {Highlighter | null} */ let here = null;
/** @type {Promise<Highlighter> | null} */ let coming = null;

/** The highlighter; null where it has not come yet. */
export function highlighter() {
  return here;
}

/** Has the highlighter loaded, once. A connection that is lost meanwhile rejects; the next call tries again. */
export function loadHighlighter() {
  coming ??= load();
  return coming;
}

/** Has it loaded when the browser has nothing else to do. Where that fails, the first code that is shown asks again. */
export function preloadHighlighter() {
  const whenIdle = globalThis.requestIdleCallback ?? ((/** @type {() => void} */ act) => setTimeout(act));
  whenIdle(() => void loadHighlighter().catch(() => {}));
}

async function load() {
  try {
    here = (await import("../../vendor/highlight.js")).hljs;
    return here;
  } catch (error) {
    coming = null;
    throw error;
  }
}
