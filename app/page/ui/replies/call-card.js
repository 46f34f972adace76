import { BoundedText } from "../elements/bounded-text.js";
import { element } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { laidOut } from "../elements/json-text.js";
import { t, language } from "../words/translate.js";

/** @typedef {import("../../client/call.js").Call} Call */
/** @typedef {Pick<import("../message-actions.js").MessageActions, "decide">} CallActions */

/** One call of a tool: its name, arguments, state and result, and two buttons if it asks for permission. */
export class CallCard {
  #state = element("span", { class: "call-state" });
  #args = new BoundedText(t("Arguments"));
  #progress = element("progress", { max: 1, "aria-label": t("Progress"), hidden: true });
  #message = element("p", { class: "call-message", dir: "auto", hidden: true });
  #advice = element("p", { class: "call-advice", hidden: true });
  #ask = element("div", { class: "call-ask", hidden: true });
  #came = element("summary");
  #result = new BoundedText(t("Result"));
  #fold = element("details", { class: "call-result", hidden: true }, this.#came, this.#result.root);
  #actions;
  /** @type {Call} */ #call;
  #deciding = false;
  #key = "";

  /** @param {Call} call @param {CallActions} actions */
  constructor(call, actions) {
    this.#call = call;
    this.#actions = actions;
    const name = element("code", { class: "call-name", text: call.name });
    const head = element("div", { class: "call-head" }, icon("tool"), name, this.#state);
    this.#ask.append(this.#button("allow", t("Allow")), this.#button("deny", t("Deny")));
    const parts = [head, this.#args.root, this.#progress, this.#message, this.#advice, this.#ask, this.#fold];
    const label = t("Call of {name}", { name: call.name });
    this.root = element("div", { class: "call", role: "group", "aria-label": label, tabindex: -1 }, ...parts);
  }

  /** @param {Call} call */
  show(call) {
    this.#call = call;
    const { state, argsSha256, content, error, progress, message } = call;
    const key = JSON.stringify([state, argsSha256, content?.length, error, progress, message]);
    if (key === this.#key) return;
    this.#key = key;
    this.root.dataset.state = call.needsDecision ? "asks" : state === "done" && content === null ? "failed" : state;
    this.#state.textContent = stateOf(call);
    const args = laidOut(call.args);
    this.#args.root.hidden = args === "{}";
    this.#args.show(args);
    const runs = state === "running";
    this.#progress.hidden = !runs || progress === null;
    this.#progress.value = progress ?? 0;
    showText(this.#message, runs ? message : "");
    showText(this.#advice, adviceOf(call));
    // A focused button that vanishes would leave the keyboard nowhere.
    if (!call.needsDecision && this.#ask.contains(document.activeElement)) this.root.focus();
    this.#ask.hidden = !call.needsDecision;
    this.#fold.hidden = content === null && error === null;
    this.#came.textContent = content === null ? t("What went wrong") : t("Result");
    this.#result.show(content ?? error ?? "");
  }

  /** @param {"allow" | "deny"} decision @param {string} text */
  #button(decision, text) {
    return element("button", { class: decision === "allow" ? "go" : "plain", type: "button", text, onclick: () => void this.#decide(decision) });
  }

  /**
   * Only the server tells what becomes of the call, since somebody else may have decided first.
   * @param {"allow" | "deny"} decision
   */
  async #decide(decision) {
    if (this.#deciding) return;
    this.#setDeciding(true);
    await this.#actions.decide(this.#call, decision);
    this.#setDeciding(false);
  }

  /** @param {boolean} deciding */
  #setDeciding(deciding) {
    this.#deciding = deciding;
    for (const button of this.#ask.children) button.setAttribute("aria-disabled", String(deciding));
  }
}

/** @param {HTMLElement} line @param {string} words */
function showText(line, words) {
  line.hidden = words === "";
  line.textContent = words;
}

/** The state of a call in plain words. Pure: calls in, text out. */

const ELSEWHERE = t("Waits for another program");

/** @type {Record<string, string>} */
const SETTLED = {
  denied: t("Not allowed"),
  cancelled: t("Stopped"),
  expired: t("Nobody answered in time"),
  lost: t("Interrupted: nobody knows whether it was carried out"),
};

/** A call's state in a few words. @param {Call} call */
function stateOf(call) {
  if (call.needsDecision) return t("Needs your permission");
  if (call.state === "done") return call.content === null ? t("Failed") : t("Done");
  if (Object.hasOwn(SETTLED, call.state)) return SETTLED[call.state];
  if (call.where === "client") return call.needs === "approval" ? `${t("Allowed.")} ${ELSEWHERE}` : ELSEWHERE;
  if (call.state === "waiting") return t("About to run");
  return call.progress === null ? t("Running") : t("Running, {percent} %", { percent: Math.floor(call.progress * 100) });
}

/** What the reader can do about a waiting call; empty if there is nothing to say. @param {Call} call */
function adviceOf(call) {
  if (!call.open) return "";
  if (call.needsDecision) return until(call.expiresAt);
  return call.where === "client" ? `${t("This call waits for another program. Press Stop to give it up.")}${until(call.expiresAt, " ")}` : "";
}

/** @param {number | null} expiresAt @param {string} [before] */
function until(expiresAt, before = "") {
  if (expiresAt === null) return "";
  const time = new Date(expiresAt).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return before + t("Waiting for you until {time}.", { time });
}
