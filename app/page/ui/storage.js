/** The browser's lasting storage; null where the user's settings forbid it. */
export function lastingStorage() {
  try {
    return globalThis.localStorage;
  } catch (error) {
    if (error instanceof DOMException && error.name === "SecurityError") return null;
    throw error;
  }
}
