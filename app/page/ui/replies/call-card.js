import { BoundedText } from "../elements/bounded-text.js";
import { element } from "../elements/dom.js";
import { icon } from "../elements/icons.js";
import { laidOut } from "../elements/json-text.js";
import { t, language } from "../words/translate.js";

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
    const runs = state === "running";
    this.#progress.hidden = !runs || progress === null;
    this.#progress.value = progress ?? 0;
    showText(this.#message, runs ? message : "");
    showText(this.#advice, adviceOf(call));
    // A focused button that vanishes would leave the keyboard nowhere.
    if (!call.needsDecision && this.#ask.contains(document.activeElement)) this.root.focus();
    this.#ask.hidden = !call.needsDecision;
    this.#showQuestion(question);
    this.#fold.hidden = content === null && error === null;
    this.#came.textContent = content === null ? t("What went wrong") : t("Result");
    this.#result.show(content ?? error ?? "");
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

/** @typedef {import("../../client/call.js").Question} Question */
/**
 * A field of MCP's restricted schemas. The server has checked it.
 * @typedef {object} Field
 * @property {"string" | "number" | "integer" | "boolean" | "array"} type
 * @property {string} [title]
 * @property {string} [description]
 * @property {string[]} [enum]
 * @property {string[]} [enumNames]
 * @property {{const: string, title?: string}[]} [oneOf]
 * @property {{enum?: string[], anyOf?: {const: string, title?: string}[]}} [items]
 * @property {unknown} [default]
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {number} [minLength]
 * @property {number} [maxLength]
 * @property {string} [format]
 */
/** @typedef {HTMLInputElement | HTMLSelectElement} Input */

/** Formats of text for which browsers have a keyboard and a check. @type {Record<string, string>} */
const KINDS = { email: "email", uri: "url", date: "date" };

let forms = 0;

/** A question of a running tool: its words, a field for each value that it asks for, and two buttons. */
class QuestionForm {
  root = element("form", { class: "call-question" });
  /** @type {Map<string, {field: Field, input: Input}>} */ #inputs = new Map();
  #onAnswer;

  /** @param {Question} question @param {(content: string | null) => Promise<unknown>} onAnswer  null: declined */
  constructor(question, onAnswer) {
    this.#onAnswer = onAnswer;
    const { properties = {}, required = [] } = JSON.parse(question.schema);
    const words = element("p", { class: "call-asks", dir: "auto", text: question.message });
    const buttons = element("div", { class: "call-ask" });
    const no = element("button", { class: "plain", type: "button", text: t("Decline"), onclick: () => void this.#answer(null) });
    buttons.append(element("button", { class: "go", type: "submit", text: t("Answer") }), no);
    this.root.append(words, ...this.#fields(properties, new Set(required)), buttons);
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#answer(JSON.stringify(this.#content()));
    });
  }

  /** @param {Record<string, Field>} properties @param {Set<string>} required */
  #fields(properties, required) {
    forms += 1;
    return Object.entries(properties).map(([name, field], place) => {
      const input = inputOf(field, required.has(name));
      input.id = `question-${forms}-${place}`;
      this.#inputs.set(name, { field, input });
      const label = element("label", { for: input.id, dir: "auto", text: field.title ?? name });
      const row = element("div", { class: "call-field" }, label, input);
      if (field.description === undefined) return row;
      const hint = element("p", { id: `${input.id}-hint`, dir: "auto", text: field.description });
      input.setAttribute("aria-describedby", hint.id);
      row.append(hint);
      return row;
    });
  }

  /** The values that were filled in, without empty ones. */
  #content() {
    const filled = [...this.#inputs].map(([name, { field, input }]) => [name, valueOf(field, input)]);
    return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
  }

  /** @param {string | null} content */
  async #answer(content) {
    const parts = this.root.querySelectorAll("button");
    if ([...parts].some((part) => part.ariaDisabled === "true")) return;
    for (const part of parts) part.ariaDisabled = "true";
    await this.#onAnswer(content);
    for (const part of parts) part.ariaDisabled = "false";
  }
}

/** @param {Field} field @param {boolean} required @returns {Input} */
function inputOf(field, required) {
  const choices = choicesOf(field);
  if (choices !== null) return selectOf(field, choices, required);
  if (field.type === "boolean") return element("input", { type: "checkbox", checked: field.default === true });
  const value = field.default === undefined ? null : String(field.default);
  if (field.type === "string") {
    const { minLength = null, maxLength = null } = field;
    const type = KINDS[field.format ?? ""] ?? "text";
    return element("input", { type, value, required, minlength: minLength, maxlength: maxLength, dir: "auto" });
  }
  const step = field.type === "integer" ? 1 : "any";
  return element("input", { type: "number", value, required, step, min: field.minimum ?? null, max: field.maximum ?? null });
}

/** @param {Field} field @returns {[string, string][] | null}  values with their titles; null if the user writes the value */
function choicesOf(field) {
  const titled = field.oneOf ?? field.items?.anyOf;
  if (titled !== undefined) return titled.map((one) => [one.const, one.title ?? one.const]);
  const plain = field.enum ?? field.items?.enum;
  return plain === undefined ? null : plain.map((value, place) => [value, field.enumNames?.[place] ?? value]);
}

/** @param {Field} field @param {[string, string][]} choices @param {boolean} required */
function selectOf(field, choices, required) {
  const multiple = field.type === "array";
  const select = element("select", { multiple, required });
  if (!multiple) select.append(element("option", { value: "", text: "" }));
  const chosen = new Set([field.default].flat());
  for (const [value, text] of choices) select.append(element("option", { value, text, selected: chosen.has(value) }));
  return select;
}

/** @param {Field} field @param {Input} input @returns {unknown}  undefined if it is empty */
function valueOf(field, input) {
  if (field.type === "boolean") return input instanceof HTMLInputElement && input.checked;
  if (input instanceof HTMLSelectElement && input.multiple) {
    const chosen = [...input.selectedOptions].map((option) => option.value);
    return chosen.length === 0 && !input.required ? undefined : chosen;
  }
  if (input.value === "") return undefined;
  return field.type === "string" ? input.value : Number(input.value);
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
  if (call.question !== null) return t("Has a question for you");
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
  if (call.question !== null) return until(call.question.expires_at);
  return call.where === "client" ? `${t("This call waits for another program. Press Stop to give it up.")}${until(call.expiresAt, " ")}` : "";
}

/** @param {number | null} expiresAt @param {string} [before] */
function until(expiresAt, before = "") {
  if (expiresAt === null) return "";
  const time = new Date(expiresAt).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return before + t("Waiting for you until {time}.", { time });
}
