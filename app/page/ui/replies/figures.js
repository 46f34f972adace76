/** Words for what a reply waits for, how it ended and how fast it came. Pure: replies and usage in, text out. */

import { wordsFor } from "../elements/words.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Usage} Usage */
/** @typedef {import("../../client/frames.js").Status} Status */

/** The fewest tokens, and the shortest time, from which a pace is computed: less would be chance. */
const PACE_TOKENS = 20;
const PACE_MS = 500;

/** Reasons that deserve a badge; a complete reply needs none. @type {Record<string, {label: string, kind: string}>} */
const BADGES = {
  cancelled: { label: t("Stopped"), kind: "stopped" },
  interrupted: { label: t("Interrupted"), kind: "failed" },
  timeout: { label: t("Timed out"), kind: "stopped" },
  length: { label: t("Length limit reached"), kind: "limit" },
  filtered: { label: t("Filtered"), kind: "failed" },
  error: { label: t("Failed"), kind: "failed" },
  lost: { label: t("Connection lost"), kind: "limit" },
};

/** Words for who cancelled a reply. @type {Record<string, string>} */
const CAUSES = {
  client: t("You stopped this reply here."),
  interrupt: t("Your next message stopped this reply here."),
  disconnect: t("The connection was lost here."),
  drain: t("The server restarted here."),
  operator: t("The operator of the service stopped this reply here."),
};

/**
 * Words for what an accepted reply waits for before its first text.
 * @param {Status | null} status  its newest status
 */
export function waitOf(status) {
  switch (status?.state) {
    case "queued":
      if (status.queue_position === undefined) return t("Waiting");
      return status.queue_position > 1 ? t("{count} ahead of you", { count: status.queue_position - 1 }) : t("Waiting, you are next");
    case "prefill":
      return status.progress === undefined ? t("Reading") : t("Reading, {percent} %", { percent: Math.floor(status.progress * 100) });
    case "retrying":
      return t("Trying again");
    case "fallback":
      return t("Trying elsewhere");
    default:
      return t("Thinking");
  }
}

/**
 * The badge for a status; null if the reply is complete, or still under way.
 * @param {string} status
 */
export function badgeOf(status) {
  return Object.hasOwn(BADGES, status) ? BADGES[status] : null;
}

/**
 * A sentence on why a reply ended early; empty if there is nothing to say.
 * @param {Reply | null} reply
 */
export function endOf(reply) {
  const done = reply?.done;
  if (done?.error) return wordsFor(done.error);
  return CAUSES[done?.cancel?.cause ?? ""] ?? "";
}

/**
 * A reply's figures, as the server measured them, a few words each: time to the first text, tokens per second, tokens.
 * @param {Reply | null} reply
 * @param {Usage | null} usage
 * @returns {string[]}
 */
export function figuresOf(reply, usage) {
  const firstMs = reply?.done?.timing.first_token_ms ?? null;
  const rate = rateOf(reply);
  const tokens = usage?.generated_tokens ?? null;
  const figures = [];
  if (firstMs !== null) figures.push(t("{time} to first token", { time: duration(firstMs) }));
  if (rate !== null) figures.push(t("{rate} tokens/s", { rate: rate < 10 ? rate.toFixed(1) : Math.round(rate) }));
  if (tokens !== null) figures.push(tokens === 1 ? t("1 token") : t("{count} tokens", { count: tokens }));
  return figures;
}

/** @param {number} ms */
function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Tokens per second after the first, by the server's clock, since the network may deliver a whole reply at once. @param {Reply | null} reply */
function rateOf(reply) {
  const done = reply?.done;
  if (!done || done.timing.first_token_ms === null) return null;
  const [tokens, ms] = [done.usage.generated_tokens - 1, done.timing.total_ms - done.timing.first_token_ms];
  return tokens >= PACE_TOKENS && ms >= PACE_MS ? (tokens / ms) * 1000 : null;
}
