/** Plain words for what was refused and for what is left. Pure: errors and limits in, text out. */

/** @typedef {{code: string, message: string, retryAfterMs?: number | null}} Failure */

/**
 * Why something was refused, for people. The code follows where they may have to tell it to somebody.
 * @param {Failure} failure
 */
export function wordsFor({ code, message, retryAfterMs = null }) {
  switch (code) {
    case "rate_limited":
      return `That is more than this service takes at a time. ${again(retryAfterMs)}`;
    case "filtered":
      return `The service does not take this message: ${message}`;
    case "unauthenticated":
      return "The service asks for a valid key.";
    default:
      return `${message} (${code})`;
  }
}

/**
 * What is left of a limit; empty while there is enough.
 * @param {import("../client/frames.js").LimitsLeft} limits
 */
export function wordsForLimit({ name, remaining, reset_s: resetS }) {
  if (remaining > 0) return "";
  return `Nothing is left of the limit on ${name.replaceAll("_", " ")}. ${again(resetS * 1000)}`;
}

/** @param {number | null} ms */
function again(ms) {
  if (ms === null) return "Try again in a while.";
  const seconds = Math.max(1, Math.ceil(ms / 1000));
  if (seconds < 120) return `Try again in ${seconds === 1 ? "a second" : `${seconds} seconds`}.`;
  const minutes = Math.ceil(seconds / 60);
  return minutes < 120 ? `Try again in ${minutes} minutes.` : `Try again in ${Math.ceil(minutes / 60)} hours.`;
}
