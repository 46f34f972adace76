/**
 * The highlighter is a quarter of all that the page loads, and a first visit does not need it. It is loaded when code is
 * first shown, or when the browser is idle.
 */

/** @typedef {typeof import("../../vendor/highlight.js").hljs} Highlighter */

/** @type {Highlighter | null} */ let here = null;
/** @type {Promise<void> | null} */ let coming = null;

/** The highlighter; null if it is not loaded yet. */
export function highlighter() {
  return here;
}

/** Loads the highlighter, once. Rejects if the network fails; the next call tries again. */
export function loadHighlighter() {
  coming ??= import("../../vendor/highlight.js").then(({ hljs }) => void (here = hljs)).catch((error) => {
    coming = null;
    throw error;
  });
  return coming;
}

/** Loads it when the browser is idle. If that fails, the first code that is shown tries again. */
export function preloadHighlighter() {
  const whenIdle = globalThis.requestIdleCallback ?? ((/** @type {() => void} */ act) => setTimeout(act));
  whenIdle(() => void loadHighlighter().catch(() => {}));
}
