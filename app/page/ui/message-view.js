import { countCodePoints } from "../client/code-points.js";
import { ReplyState } from "../client/reply.js";
import { copyButton } from "./copy-button.js";
import { element, icon } from "./dom.js";
import { badgeOf, endOf, figuresOf, serverFigures, waitOf } from "./figures.js";
import { MarkdownView } from "./markdown.js";

/** @typedef {import("./transcript.js").Item} Item */

/** @type {Set<string>} */
const UNDER_WAY = new Set([ReplyState.SENDING, ReplyState.WAITING, ReplyState.STREAMING]);

/** A message of the user: plain text, as typed; and what became of it where the server did not take it. */
export class UserMessageView {
  #text = element("div", { class: "bubble", dir: "auto" });
  #trouble = element("div", { class: "trouble", hidden: true });
  #onRetry;
  #told = "";

  /** @param {{onRetry: (item: Item) => void}} actions */
  constructor({ onRetry }) {
    this.#onRetry = onRetry;
    const name = element("h2", { class: "visually-hidden", text: "You" });
    this.root = element("article", { class: "message user" }, name, this.#text, this.#trouble);
  }

  /** @param {Item} item */
  show(item) {
    if (this.#text.textContent !== item.text) this.#text.textContent = item.text;
    const trouble = troubleOf(item);
    if (trouble === this.#told) return;
    this.#told = trouble;
    this.#trouble.hidden = trouble === "";
    this.#trouble.replaceChildren(icon("alert"), element("span", { text: trouble }), this.#retryButton(item));
  }

  /** @param {Item} item */
  #retryButton(item) {
    const button = element("button", { class: "link", type: "button", text: "Send again" });
    button.addEventListener("click", () => this.#onRetry(item));
    return button;
  }
}

/** @param {Item} item */
function troubleOf({ status, reply }) {
  if (status === ReplyState.REFUSED && reply?.error) return `${reply.error.message} (${reply.error.code})`;
  return status === ReplyState.WITHDRAWN ? "Not sent." : "";
}

/** A reply: Markdown that grows, its end, and its figures. */
export class ReplyView {
  /** Code points of the reply that are on the screen. */
  shownChars = 0;
  #body = element("div", { class: "prose", dir: "auto" });
  #waiting = element("p", { class: "waiting" });
  #foot = element("div", { class: "foot" });
  #markdown = new MarkdownView(this.#body);
  #text = "";
  #footKey = "";

  constructor() {
    const name = element("h2", { class: "visually-hidden", text: "Reply" });
    this.root = element("article", { class: "message reply" }, name, this.#body, this.#waiting, this.#foot);
  }

  /** @param {Item} item */
  show(item) {
    const underWay = UNDER_WAY.has(item.status);
    this.root.dataset.status = item.reply?.stopping ? "stopping" : item.status;
    this.root.setAttribute("aria-busy", String(underWay));
    if (item.text !== this.#text) this.#show(item.text);
    this.#waiting.hidden = item.text !== "" || !underWay;
    this.#waiting.textContent = waitingFor(item);
    this.#showFoot(item, underWay);
  }

  /** @param {string} text */
  #show(text) {
    this.#text = text;
    this.#markdown.show(text);
    this.shownChars = countCodePoints(text);
  }

  /**
   * @param {Item} item
   * @param {boolean} underWay
   */
  #showFoot(item, underWay) {
    const figures = underWay ? [] : figuresOf(item.reply, item.usage);
    const key = JSON.stringify([underWay, item.status, figures, endOf(item.reply)]);
    if (key === this.#footKey) return;
    this.#footKey = key;
    this.#foot.hidden = underWay;
    this.#foot.replaceChildren(...this.#footParts(item, figures));
  }

  /**
   * @param {Item} item
   * @param {string[]} figures
   */
  #footParts(item, figures) {
    const badge = badgeOf(item.status);
    const why = endOf(item.reply);
    const parts = [];
    if (badge !== null) parts.push(element("span", { class: `badge ${badge.kind}`, text: badge.label, title: why || null }));
    if (badge?.kind === "failed" && why !== "") parts.push(element("span", { class: "why", text: why }));
    if (figures.length > 0) parts.push(figureList(figures, serverFigures(item.reply)));
    if (this.#text !== "") parts.push(copyButton("Copy the reply", () => this.#text));
    return parts;
  }
}

/**
 * @param {string[]} figures
 * @param {string} more
 */
function figureList(figures, more) {
  const parts = figures.map((figure) => element("span", { text: figure }));
  return element("span", { class: "figures", title: more || null }, ...parts);
}

/** What a reply without text is waiting for, in words. @param {Item} item */
function waitingFor({ status, reply }) {
  if (reply?.stopping) return "Stopping";
  if (status === ReplyState.SENDING) return reply?.sentAt === null ? "Waiting for the connection" : "Sending";
  return waitOf(reply?.status ?? null);
}
