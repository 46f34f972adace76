/** Words for what a reply waits for, how it ended, and how fast it came. Pure: replies and usage in, text out. */

import { paceOf } from "../../client/reply.js";
import { wordsFor } from "../elements/words.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Usage} Usage */
/** @typedef {import("../../client/frames.js").Status} Status */

/** Reasons that deserve a badge; a complete reply needs none. @type {Record<string, {label: string, kind: string}>} */
const BADGES = {
  cancelled: { label: "Stopped", kind: "stopped" },
  interrupted: { label: "Interrupted by a failure", kind: "failed" },
  timeout: { label: "Out of time", kind: "stopped" },
  length: { label: "Length limit reached", kind: "limit" },
  filtered: { label: "Filtered", kind: "failed" },
  error: { label: "Failed", kind: "failed" },
  lost: { label: "Connection lost", kind: "limit" },
};

/** Whose doing a cancellation was. @type {Record<string, string>} */
const CAUSES = {
  client: "You stopped this reply here.",
  interrupt: "Your next message stopped this reply here.",
  disconnect: "The connection was lost here.",
  drain: "The service was shut down here.",
  operator: "The operator of the service stopped this reply here.",
};

/**
 * What an accepted reply waits for before its first text.
 * @param {Status | null} status  the server's last word on it
 */
export function waitOf(status) {
  switch (status?.state) {
    case "queued":
      return queuedAt(status.queue_position ?? null);
    case "prefill":
      return `Reading${status.progress === undefined ? "" : `, ${Math.floor(status.progress * 100)} %`}`;
    case "retrying":
      return "Trying again";
    case "fallback":
      return "Trying elsewhere";
    default:
      return "Thinking";
  }
}

/** @param {number | null} position  1 is the next to start */
function queuedAt(position) {
  if (position === null) return "Waiting";
  return position > 1 ? `Waiting, ${position - 1} before you` : "Waiting, you are next";
}

/**
 * The badge for a status; null where the reply is whole, or still under way.
 * @param {string} status
 */
export function badgeOf(status) {
  return Object.hasOwn(BADGES, status) ? BADGES[status] : null;
}

/**
 * A sentence on why a reply ended early; empty where there is nothing to say.
 * @param {Reply | null} reply
 */
export function endOf(reply) {
  const done = reply?.done;
  if (done?.error) return wordsFor(done.error);
  return CAUSES[done?.cancel?.cause ?? ""] ?? "";
}

/**
 * What was measured of a reply, a few words each: time to the first text, tokens per second, tokens.
 * @param {Reply | null} reply
 * @param {Usage | null} usage
 * @returns {string[]}
 */
export function figuresOf(reply, usage) {
  const firstMs = reply?.firstTextMs ?? reply?.done?.timing.first_token_ms ?? null;
  const rate = rateOf(reply);
  const tokens = usage?.generated_tokens ?? null;
  const figures = [];
  if (firstMs !== null) figures.push(`${duration(firstMs)} to first token`);
  if (rate !== null) figures.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  if (tokens !== null) figures.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
  return figures;
}

/**
 * The server's own figures, for those who want to know where the time went; empty before the end.
 * @param {Reply | null} reply
 */
export function serverFigures(reply) {
  const done = reply?.done;
  if (done === null || done === undefined) return "";
  const { queued_ms: queued, first_token_ms: first, total_ms: total } = done.timing;
  const times = [
    queued === null ? "" : `queued ${duration(queued)}`,
    first === null ? "" : `first token ${duration(first)}`,
    `total ${duration(total)}`,
  ];
  const prompt = `prompt ${done.usage.prompt_tokens} tokens, ${done.usage.cached_tokens} of them from the cache`;
  return `Measured by the server: ${times.filter(Boolean).join(", ")}; ${prompt}.`;
}

/** @param {number} ms */
export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** Tokens per second after the first, by the server's clock: the network may hand over a whole reply at once. @param {Reply | null} reply */
function rateOf(reply) {
  const done = reply?.done;
  if (!done || done.timing.first_token_ms === null) return null;
  return paceOf({ tokens: done.usage.generated_tokens - 1, ms: done.timing.total_ms - done.timing.first_token_ms });
}
