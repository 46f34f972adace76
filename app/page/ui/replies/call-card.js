import { BoundedText } from "../elements/bounded-text.js";
import { QuestionForm } from "./question-form.js";
import { adviceOf, stateOf } from "./call-words.js";
import { element } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { laidOut } from "../elements/json-text.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/call.js").Call} Call */
/** @typedef {Pick<import("../message-actions.js").MessageActions, "decide" | "answer">} CallActions */

/** One call of a tool: its name, arguments, state and result, and two buttons if it asks for permission. */
export class CallCard {
  #state = element("span", { class: "call-state" });
  #args = new BoundedText(t("Arguments"));
  #progress = element("progress", { max: 1, "aria-label": t("Progress"), hidden: true });
  #message = element("p", { class: "call-message", dir: "auto", hidden: true });
  #advice = element("p", { class: "call-advice", hidden: true });
  #ask = element("div", { class: "call-ask", hidden: true });
  #question = element("div", { hidden: true });
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
    const parts = [head, this.#args.root, this.#progress, this.#message, this.#advice, this.#ask, this.#question, this.#fold];
    const label = t("Call of {name}", { name: call.name });
    this.root = element("div", { class: "call", role: "group", "aria-label": label, tabindex: -1 }, ...parts);
  }

  /** @param {Call} call */
  show(call) {
    this.#call = call;
    const { state, argsSha256, content, error, progress, message, question } = call;
    const key = JSON.stringify([state, argsSha256, content?.length, error, progress, message, question?.sha256]);
    if (key === this.#key) return;
    this.#key = key;
    this.root.dataset.state = call.needsDecision || question !== null ? "asks" : state === "done" && content === null ? "failed" : state;
    this.#state.textContent = stateOf(call);
    const args = laidOut(call.args);
    this.#args.root.hidden = args === "{}";
    this.#args.show(args);
    this.#showCourse(call);
    this.#showAsk(call.needsDecision);
    this.#showQuestion(question);
    this.#showResult(call);
  }

  /** @param {Call} call */
  #showCourse(call) {
    const runs = call.state === "running";
    this.#progress.hidden = !runs || call.progress === null;
    this.#progress.value = call.progress ?? 0;
    showText(this.#message, runs ? call.message : "");
    showText(this.#advice, adviceOf(call));
  }

  /** @param {boolean} asks */
  #showAsk(asks) {
    // A focused button that vanishes would leave the keyboard nowhere.
    if (!asks && this.#ask.contains(document.activeElement)) this.root.focus();
    this.#ask.hidden = !asks;
  }

  /** Shows a question. While the same one is open, what the user has filled in stays. @param {Call["question"]} question */
  #showQuestion(question) {
    if ((question?.sha256 ?? "") === (this.#question.dataset.of ?? "")) return;
    if (this.#question.contains(document.activeElement)) this.root.focus();
    this.#question.dataset.of = question?.sha256 ?? "";
    this.#question.hidden = question === null;
    const answer = (/** @type {string | null} */ content) => this.#actions.answer(this.#call, content);
    this.#question.replaceChildren(...(question === null ? [] : [new QuestionForm(question, answer).root]));
  }

  /** @param {Call} call */
  #showResult({ content, error }) {
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
