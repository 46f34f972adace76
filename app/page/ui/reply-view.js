import { countCodePoints } from "../client/code-points.js";
import { ReplyState } from "../client/reply.js";
import { BranchArrows } from "./branch-arrows.js";
import { copyButton } from "./copy-button.js";
import { element, icon } from "./dom.js";
import { failureView } from "./failure-view.js";
import { badgeOf, endOf, figuresOf, serverFigures, waitOf } from "./figures.js";
import { MarkdownView } from "./markdown.js";
import { ThoughtFold, splitThought } from "./thoughts.js";

/** @typedef {import("./arrangement.js").Item} Item */

/** @type {Set<string>} */
const UNDER_WAY = new Set([ReplyState.SENDING, ReplyState.WAITING, ReplyState.STREAMING]);

/** A reply: Markdown that grows, what was thought before it, its end, its figures, and the way to other versions of it. */
export class ReplyView {
  /** Code points of the reply that are on the screen. */
  shownChars = 0;
  #body = element("div", { class: "prose", dir: "auto" });
  #waiting = element("p", { class: "waiting" });
  #foot = element("div", { class: "foot" });
  #markdown = new MarkdownView(this.#body);
  #thought = new ThoughtFold();
  /** What was shown last: the text with its thoughts, whether it grew, and the answer in it. */
  #shown = { text: "", growing: false, answer: "" };
  #footKey = "";
  #actions;

  /** @param {import("./user-message-view.js").MessageActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.arrows = new BranchArrows(actions.onBranch);
    const name = element("h2", { class: "visually-hidden", text: "Reply" });
    this.root = element("article", { class: "message reply" }, name, this.#thought.root, this.#body, this.#waiting, this.#foot);
  }

  /** @param {Item} item */
  show(item) {
    const underWay = UNDER_WAY.has(item.status);
    this.root.dataset.status = item.reply?.stopping ? "stopping" : item.status;
    this.root.setAttribute("aria-busy", String(underWay));
    if (item.text !== this.#shown.text || underWay !== this.#shown.growing) this.#show(item.text, underWay);
    this.#waiting.hidden = this.#shown.answer !== "" || !this.#thought.root.hidden || !underWay;
    this.#waiting.textContent = waitingFor(item);
    this.arrows.show(item);
    this.#showFoot(item, underWay);
  }

  /**
   * @param {string} text
   * @param {boolean} growing
   */
  #show(text, growing) {
    const { thought, ended, answer } = splitThought(text, { growing });
    this.#shown = { text, growing, answer };
    this.#thought.show(thought, { thinking: growing && !ended });
    this.#markdown.show(answer);
    this.shownChars = countCodePoints(text);
  }

  /**
   * @param {Item} item
   * @param {boolean} underWay
   */
  #showFoot(item, underWay) {
    const figures = underWay ? [] : figuresOf(item.reply, item.usage);
    const key = JSON.stringify([underWay, item.status, item.messageId, figures, endOf(item.reply)]);
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
    /** @type {HTMLElement[]} */ const parts = [this.arrows.root];
    if (badge !== null) parts.push(element("span", { class: `badge ${badge.kind}`, text: badge.label, title: why || null }));
    if (badge?.kind === "failed" && why !== "") parts.push(whyFailed(item, why));
    if (figures.length > 0) parts.push(figureList(figures, serverFigures(item.reply)));
    if (this.#shown.answer !== "") parts.push(copyButton("Copy the reply", () => this.#shown.answer));
    if (item.messageId !== null) parts.push(this.#again(item));
    return parts;
  }

  /** @param {Item} item */
  #again(item) {
    const label = "Make this reply anew";
    const button = element("button", { class: "quiet again", type: "button", "aria-label": label, title: label }, icon("again"));
    button.addEventListener("click", () => this.#actions.onRegenerate(item));
    return button;
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

/**
 * @param {Item} item
 * @param {string} why
 */
function whyFailed({ reply }, why) {
  const failure = reply?.done?.error;
  return element("div", { class: "why" }, failure ? failureView(failure) : why);
}

/** What a reply without text is waiting for, in words. @param {Item} item */
function waitingFor({ status, reply }) {
  if (reply?.stopping) return "Stopping";
  if (status === ReplyState.SENDING) return reply?.sentAt === null ? "Waiting for the connection" : "Sending";
  return waitOf(reply?.status ?? null);
}
