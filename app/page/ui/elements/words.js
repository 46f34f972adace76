/** Plain words for what was refused or failed, and for what is left. Pure: errors and limits in, text out. */

/** @typedef {{code: string, message: string, retryAfterMs?: number | null, retry_after_ms?: number | null}} Failure */

/** What each code of the protocol means for people; a time to come again follows where LATER has it. @type {Record<string, string>} */
const WORDS = {
  bad_frame: "This page and the service did not understand each other. Reload the page.",
  bad_params: "The service can't do this as it was asked.",
  busy: "A reply is still being written here. Stop it, or wait for its end.",
  conflict: "This conversation went on elsewhere in the meantime. Look at it again first.",
  content_too_long: "This message is too long. Shorten it, or send it in parts.",
  context_overflow: "This is more than the model can read at once. Shorten the message.",
  disconnected: "The connection was lost. Try again.",
  draining: "The service is about to restart.",
  engine_unavailable: "The model does not answer at the moment. Try again.",
  filtered: "The rules of this service don't allow this message. Say it in other words.",
  forbidden: "This service does not let you do that.",
  internal: "Something went wrong in the service. Try again.",
  model_not_found: "The model that was asked for is not here. Choose another one.",
  not_connected: "There is no connection at the moment. Try again when it is back.",
  not_found: "This is not there any more.",
  overloaded: "The service has no room at the moment.",
  queue_full: "Too many messages wait here already. Let a reply come first.",
  rate_limited: "That is more than this service takes at a time.",
  store_unavailable: "The service can't keep messages at the moment.",
  unauthenticated: "The service asks for a valid key.",
};
const UNKNOWN = "The service could not do this.";

/** Those that pass by themselves. */
const LATER = new Set(["draining", "overloaded", "rate_limited", "store_unavailable"]);

/** Those that the same message would meet again, however often it is sent. */
const HOPELESS = new Set(["bad_frame", "bad_params", "content_too_long", "context_overflow", "filtered", "model_not_found"]);

/** Why something was refused or failed, for people. @param {Failure} failure */
export function wordsFor({ code, retryAfterMs, retry_after_ms: ms }) {
  const words = Object.hasOwn(WORDS, code) ? WORDS[code] : UNKNOWN;
  return LATER.has(code) ? `${words} ${again(retryAfterMs ?? ms ?? null)}` : words;
}

/** The service's own words and the code, for those who may have to tell them to somebody. @param {Failure} failure */
export function detailOf({ code, message }) {
  return `${message} (${code})`;
}

/** Whether only another message can succeed. @param {Failure} failure */
export function isHopeless({ code }) {
  return HOPELESS.has(code);
}

/**
 * What is left of a limit; empty while there is enough.
 * @param {import("../../client/frames.js").LimitsLeft} limits
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
