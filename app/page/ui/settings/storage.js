/** The browser's lasting storage; null if the user's settings forbid it. */
export function lastingStorage() {
  return allowed(() => globalThis.localStorage);
}

/** The browser's storage for this tab; null if the user's settings forbid it. */
export function sessionStorage() {
  return allowed(() => globalThis.sessionStorage);
}

/** @param {() => Storage} open */
function allowed(open) {
  try {
    return open();
  } catch (error) {
    if (error instanceof DOMException && error.name === "SecurityError") return null;
    throw error;
  }
}
