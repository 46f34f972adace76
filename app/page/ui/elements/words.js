import { t } from "../words/translate.js";
import { element } from "./dom.js";

/** Plain words for refusals, failures and limits, and how the page shows them. */

/** @typedef {{code: string, message: string, retryAfterMs?: number | null, retry_after_ms?: number | null}} Failure */

/** What each code of the protocol means to people. For those in LATER the time of the next try follows. @type {Record<string, string>} */
const WORDS = {
  bad_frame: t("This page is out of date. Reload it."),
  bad_params: t("The service can't do this as it was asked."),
  busy: t("A reply is still being written here. Stop it, or wait for its end."),
  conflict: t("This conversation has continued elsewhere in the meantime. Look at it again first."),
  content_too_long: t("This message is too long. Shorten it, or send it in parts."),
  context_overflow: t("This is more than the model can read at once. Shorten the message."),
  disconnected: t("The connection was lost. Try again."),
  draining: t("The service is about to restart."),
  engine_unavailable: t("The model does not answer at the moment. Try again."),
  filtered: t("The rules of this service don't allow this message. Say it in other words."),
  forbidden: t("This service does not let you do that."),
  internal: t("Something went wrong in the service. Try again."),
  invalid_image: t("The service can't use this image: it is damaged, or has too many pixels."),
  model_not_found: t("The requested model is not available. Choose another one."),
  not_connected: t("There is no connection at the moment. Try again when it is back."),
  not_found: t("This no longer exists."),
  overloaded: t("The service is busy."),
  queue_full: t("Too many messages wait here already. Let a reply come first."),
  rate_limited: t("That is more than this service takes at a time."),
  speech_unavailable: t("What was said was lost. Say it again."),
  store_full: t("Your storage is full. Delete conversations, above all those with images."),
  store_unavailable: t("The service can't keep messages at the moment."),
  unauthenticated: t("The service asks for a valid key."),
};
const UNKNOWN = t("The service could not do this.");

/** Codes that pass by themselves. */
const LATER = new Set(["draining", "overloaded", "rate_limited", "store_unavailable"]);

/** Codes that the same message would get again, however often it is sent. */
const HOPELESS = new Set(["bad_frame", "bad_params", "content_too_long", "context_overflow", "filtered", "model_not_found"]);

/** Codes that a message gets because of its images. */
const OF_IMAGES = new Set(["not_found", "store_full"]);

/** Words for why something was refused or failed. @param {Failure} failure */
export function wordsFor({ code, retryAfterMs, retry_after_ms: ms }) {
  const words = Object.hasOwn(WORDS, code) ? WORDS[code] : UNKNOWN;
  return LATER.has(code) ? `${words} ${again(retryAfterMs ?? ms ?? null)}` : words;
}

/** Whether the message has to be changed to succeed. @param {Failure} failure */
export function isHopeless({ code }) {
  return HOPELESS.has(code);
}

/** Whether a message with images may succeed without them. @param {Failure} failure */
export function isOfImages({ code }) {
  return OF_IMAGES.has(code);
}

/**
 * Words for what is left of a limit; empty while there is enough.
 * @param {import("../../client/frames.js").LimitsLeft} limits
 */
export function wordsForLimit({ name, remaining, reset_s: resetS }) {
  if (remaining > 0) return "";
  return `${t("Nothing is left of the limit on {name}.", { name: name.replaceAll("_", " ") })} ${again(resetS * 1000)}`;
}

/** @param {number | null} ms */
function again(ms) {
  if (ms === null) return t("Try again in a while.");
  const seconds = Math.max(1, Math.ceil(ms / 1000));
  if (seconds < 120) return seconds === 1 ? t("Try again in a second.") : t("Try again in {seconds} seconds.", { seconds });
  const minutes = Math.ceil(seconds / 60);
  return minutes < 120 ? t("Try again in {minutes} minutes.", { minutes }) : t("Try again in {hours} hours.", { hours: Math.ceil(minutes / 60) });
}

/** A failure in plain words, with the service's own words and its code behind them. @param {Failure} failure */
export function failureView(failure) {
  return element("div", { class: "failure" }, element("span", { text: wordsFor(failure) }), " ", detailView(failure));
}

/** The service's own words and the code, for users who report them. @param {Failure} failure */
export function detailView(failure) {
  const detail = element("span", { class: "detail-text", text: `${failure.message} (${failure.code})` });
  return element("details", { class: "detail" }, element("summary", { text: t("Details") }), detail);
}
