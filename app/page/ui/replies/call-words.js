/** Where a call is, in plain words. Pure: calls in, text out. */

/** @typedef {import("../../client/call.js").Call} Call */

const ELSEWHERE = "Waits for another program";

/** @type {Record<string, string>} */
const SETTLED = {
  denied: "Not allowed",
  cancelled: "Stopped",
  expired: "Nobody answered in time",
  lost: "Interrupted: nobody knows whether it was carried out",
};

/** A call's state, a few words. @param {Call} call */
export function stateOf(call) {
  if (call.asks) return "Asks for your permission";
  if (call.state === "done") return call.content === null ? "Failed" : "Done";
  if (Object.hasOwn(SETTLED, call.state)) return SETTLED[call.state];
  if (call.where === "client") return call.needs === "approval" ? `Allowed. ${ELSEWHERE}` : ELSEWHERE;
  if (call.state === "waiting") return "About to run";
  return call.progress === null ? "Running" : `Running, ${Math.floor(call.progress * 100)} %`;
}

/** What the reader can do about a call that waits; empty where nothing is to be said. @param {Call} call */
export function adviceOf(call) {
  if (!call.open) return "";
  if (call.asks) return until(call);
  return call.where === "client" ? `This call waits for another program. Stop gives it up.${until(call, " ")}` : "";
}

/** @param {Call} call @param {string} [before] */
function until({ expiresAt }, before = "") {
  if (expiresAt === null) return "";
  const time = new Date(expiresAt).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return `${before}It waits until ${time}.`;
}
