import { countCodePoints } from "../../client/code-points.js";
import { ReplyState } from "../../client/reply.js";
import { BranchArrows } from "./branch-arrows.js";
import { CallCard } from "./call-card.js";
import { Columns } from "./columns.js";
import { copyButton } from "../elements/copy-button.js";
import { element } from "../elements/dom.js";
import { icon, iconButton } from "../elements/icons.js";
import { failureView } from "../elements/words.js";
import { badgeOf, endOf, figuresOf, waitOf } from "./figures.js";
import { MarkdownView } from "./markdown.js";
import { ThoughtFold } from "./thoughts.js";
import { t } from "../words/translate.js";

/** @typedef {import("../transcript/arrangement.js").Item} Item */

/** @type {Set<string>} */
const UNDER_WAY = new Set([ReplyState.SENDING, ReplyState.WAITING, ReplyState.STREAMING]);

/** A reply: its reasoning, text and calls, how it ended, its figures, and arrows to its other versions. */
export class ReplyView {
  /** Code points of the reply that are on the screen. */
  shownChars = 0;
  #body = element("div", { class: "prose" });
  #calls = element("div", { class: "calls" });
  /** @type {Map<string, CallCard>} */ #cards = new Map();
  #waiting = element("p", { class: "waiting" });
  #foot = element("div", { class: "foot" });
  #markdown = new MarkdownView(this.#body);
  /** @type {Columns | null} The view of a translation beside its source. */ #columns = null;
  #thought = new ThoughtFold();
  /** The text that was shown last. */
  #text = "";
  #footKey = "";
  #actions;

  /** @param {import("../transcript/user-message-view.js").MessageActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.arrows = new BranchArrows((messageId) => void actions.showBranch(messageId));
    const name = element("h2", { class: "visually-hidden", text: t("Reply") });
    const content = element("div", { class: "said" }, this.#thought.root, this.#body, this.#calls, this.#waiting);
    this.root = element("article", { class: "message reply" }, name, content, this.#foot);
  }

  /** @param {Item} item */
  show(item) {
    const underWay = UNDER_WAY.has(item.status);
    this.root.dataset.status = item.reply?.stopping ? "stopping" : item.status;
    this.root.setAttribute("aria-busy", String(underWay));
    this.#text = item.text;
    this.shownChars = countCodePoints(item.text);
    if (item.interprets !== null) this.#showBeside(item, item.interprets);
    else {
      this.#thought.show(item.thought.text, { thinking: underWay && item.thought.growing, ms: item.thought.ms });
      this.#markdown.show(item.text);
    }
    this.#showCalls(item.calls);
    const begun = item.source !== "" || item.text !== "" || !this.#thought.root.hidden || item.calls.length > 0;
    this.#waiting.hidden = begun || !underWay;
    this.#waiting.textContent = waitingFor(item);
    this.arrows.show(item);
    this.#showFoot(item, underWay);
  }

  /** @param {Item} item @param {import("../../client/frames.js").Languages} interprets */
  #showBeside({ text, source, alignment }, interprets) {
    if (this.#columns === null) {
      this.#columns = new Columns();
      this.#body.replaceWith(this.#columns.root);
    }
    this.#columns.show({ text, source, alignment, interprets });
  }

  /** @param {import("../../client/call.js").Call[]} calls */
  #showCalls(calls) {
    const ids = new Set(calls.map(({ callId }) => callId));
    for (const [callId, card] of this.#cards) {
      if (ids.has(callId)) continue;
      card.root.remove();
      this.#cards.delete(callId);
    }
    for (const call of calls) this.#cardOf(call).show(call);
  }

  /** @param {import("../../client/call.js").Call} call */
  #cardOf(call) {
    let card = this.#cards.get(call.callId);
    if (card === undefined) {
      this.#cards.set(call.callId, (card = new CallCard(call, this.#actions)));
      this.#calls.append(card.root);
    }
    return card;
  }

  /**
   * @param {Item} item
   * @param {boolean} underWay
   */
  #showFoot(item, underWay) {
    const open = underWay || item.status === ReplyState.CALLING;
    const figures = open ? [] : figuresOf(item.reply, item.usage);
    const goesOn = item.cut && this.#actions.canContinue(item);
    const key = JSON.stringify([open, item.status, item.messageId, goesOn, figures, endOf(item.reply)]);
    if (key === this.#footKey) return;
    this.#footKey = key;
    this.#foot.hidden = open;
    this.#foot.replaceChildren(...this.#footParts(item, figures));
    if (!goesOn) return;
    const onclick = () => this.#actions.continueReply(item); // the counterpart of Stop
    this.#foot.append(element("button", { class: "onward", type: "button", onclick }, icon("onward"), t("Continue")));
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
    if (badge?.kind === "failed" && why !== "") {
      const failure = item.reply?.done?.error;
      parts.push(element("div", { class: "why" }, failure ? failureView(failure) : why));
    }
    if (figures.length > 0) {
      parts.push(element("span", { class: "figures" }, ...figures.map((text) => element("span", { text }))));
    }
    if (item.text !== "") parts.push(copyButton(t("Copy the reply"), () => this.#text));
    if (item.messageId !== null) {
      const title = t("Regenerate this reply");
      parts.push(iconButton("again", title, { class: "quiet again", title, onclick: () => this.#actions.regenerate(item) }));
    }
    return parts;
  }
}

/** Words for what a reply without text waits for. @param {Item} item */
function waitingFor({ status, reply }) {
  if (reply?.stopping) return t("Stopping");
  if (status === ReplyState.SENDING) return reply?.sent === false ? t("Waiting for the connection") : t("Sending");
  return waitOf(reply?.status ?? null);
}
