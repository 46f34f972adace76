/** The state of a call in plain words. Pure: calls in, text out. */

import { language, t } from "../words/translate.js";

/** @typedef {import("../../client/call.js").Call} Call */

const ELSEWHERE = t("Waits for another program");

/** @type {Record<string, string>} */
const SETTLED = {
  denied: t("Not allowed"),
  cancelled: t("Stopped"),
  expired: t("Nobody answered in time"),
  lost: t("Interrupted: nobody knows whether it was carried out"),
};

/** A call's state in a few words. @param {Call} call */
export function stateOf(call) {
  if (call.needsDecision) return t("Needs your permission");
  if (call.question !== null) return t("Has a question for you");
  if (call.state === "done") return call.content === null ? t("Failed") : t("Done");
  if (Object.hasOwn(SETTLED, call.state)) return SETTLED[call.state];
  if (call.where === "client") return call.needs === "approval" ? `${t("Allowed.")} ${ELSEWHERE}` : ELSEWHERE;
  if (call.state === "waiting") return t("About to run");
  return call.progress === null ? t("Running") : t("Running, {percent} %", { percent: Math.floor(call.progress * 100) });
}

/** What the reader can do about a waiting call; empty if there is nothing to say. @param {Call} call */
export function adviceOf(call) {
  if (!call.open) return "";
  if (call.needsDecision) return until(call.expiresAt);
  if (call.question !== null) return until(call.question.expires_at);
  return call.where === "client" ? `${t("This call waits for another program. Press Stop to give it up.")}${until(call.expiresAt, " ")}` : "";
}

/** @param {number | null} expiresAt @param {string} [before] */
function until(expiresAt, before = "") {
  if (expiresAt === null) return "";
  const time = new Date(expiresAt).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return before + t("Waiting for you until {time}.", { time });
}
