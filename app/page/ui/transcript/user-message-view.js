import { ReplyState } from "../../client/reply.js";
import { BranchArrows } from "../replies/branch-arrows.js";
import { element } from "../elements/dom.js";
import { icon, iconButton } from "../elements/icons.js";
import { apart, withAttachments } from "../writing/attached-text.js";
import { failureView, isHopeless, isOfImages } from "../elements/words.js";
import { t } from "../words/translate.js";
import { textOf, isSubmit } from "../writing/message-text.js";

/** @typedef {import("./arrangement.js").Item} Item */
/**
 * @typedef {Pick<import("../message-actions.js").MessageActions, "sendAgain" | "edit" | "regenerate" | "continueReply" | "canContinue"
 *   | "showBranch"> & import("../replies/call-card.js").CallActions
 *   & {pictures: Pick<import("../pictures/pictures.js").Pictures, "show">}} MessageActions
 */

/** A message of the user: its text as typed, a box to edit it, and its trouble if the server did not take it. */
export class UserMessageView {
  #text = element("div", { class: "bubble", dir: "auto" });
  #attached = element("div", { class: "attached", hidden: true });
  #pictures = element("div", { class: "pictures", hidden: true });
  #trouble = element("div", { class: "trouble", hidden: true });
  #edit = iconButton("edit", t("Edit this message"), { class: "quiet edit-button", title: t("Edit"), onclick: ({ currentTarget }) => this.#open(currentTarget) });
  /** @type {EditBox | null} */ #box = null;
  #actions;
  #shownTrouble = "";
  /** @type {string | null} */ #shown = null;
  /** Which images are shown, and whether the server has their message. */
  #pictured = "";
  /** @type {HTMLElement | null} The element that gets the focus when the box is closed. */ #opener = null;
  /** @type {Item | null} */ #item = null;

  /** @param {MessageActions} actions */
  constructor(actions) {
    this.#actions = actions;
    this.arrows = new BranchArrows((messageId) => void actions.showBranch(messageId));
    const name = element("h2", { class: "visually-hidden", text: t("You") });
    const tools = element("div", { class: "tools" }, this.arrows.root, this.#edit);
    this.root = element("article", { class: "message user" }, name, this.#pictures, this.#text, this.#attached, this.#trouble, tools);
  }

  /** @param {Item} item */
  show(item) {
    this.#item = item;
    this.#showPictures(item);
    this.#showText(item.text);
    this.#edit.hidden = item.messageId === null;
    this.arrows.show(item);
    this.#showTrouble(item);
  }

  /** @param {Item} item */
  #showPictures({ attachments, messageId }) {
    const stored = messageId !== null;
    const pictured = attachments.length === 0 ? "" : JSON.stringify([stored, attachments.map(({ id }) => id)]);
    if (pictured === this.#pictured) return;
    this.#pictured = pictured;
    this.#pictures.hidden = attachments.length === 0;
    this.#pictures.replaceChildren(...this.#actions.pictures.show(attachments, { stored }));
  }

  /** @param {string} content */
  #showText(content) {
    if (content === this.#shown) return;
    this.#shown = content;
    const { text, attachments } = apart(content);
    this.#text.textContent = text;
    this.#text.hidden = text === "";
    this.#attached.hidden = attachments.length === 0;
    this.#attached.replaceChildren(...attachments.map(folded));
  }

  /** @param {Item} item */
  #showTrouble(item) {
    const refusal = item.status === ReplyState.REFUSED ? (item.reply?.error ?? null) : null;
    const trouble = refusal?.code ?? (item.status === ReplyState.WITHDRAWN ? "withdrawn" : "");
    if (trouble === this.#shownTrouble) return;
    this.#shownTrouble = trouble;
    this.#trouble.hidden = trouble === "";
    const words = refusal === null ? element("span", { text: t("Not sent.") }) : failureView(refusal);
    this.#trouble.replaceChildren(icon("alert"), words, this.#wayOut(item, refusal));
  }

  /**
   * The button that leads out of a trouble. A message whose images are not kept any more, or can't be, may be sent without
   * them; one that would be refused again as it is can be changed.
   * @param {Item} item
   * @param {import("../elements/words.js").Failure | null} refusal
   */
  #wayOut(item, refusal) {
    const link = (/** @type {string} */ text, /** @type {(event: any) => void} */ onclick) =>
      element("button", { class: "link", type: "button", text, onclick });
    if (refusal !== null && item.attachments.length > 0 && isOfImages(refusal)) {
      return link(t("Send without images"), () => this.#actions.sendAgain({ ...item, attachments: [] }, item.text));
    }
    if (refusal !== null && isHopeless(refusal)) return link(t("Change it"), ({ currentTarget }) => this.#open(currentTarget));
    return link(t("Send again"), () => this.#actions.sendAgain(item, item.text));
  }

  /** @param {HTMLElement} opener */
  #open(opener) {
    if (this.#item === null || this.#box !== null) return;
    this.#opener = opener;
    const onSend = (/** @type {string} */ text) => this.#send(text);
    this.#box = new EditBox(apart(this.#item.text).text, { onSend, onClose: () => this.#close() });
    this.root.classList.add("editing");
    this.#text.after(this.#box.root);
    this.#box.focus();
  }

  /** @param {string} text */
  #send(text) {
    if (this.#item === null) return;
    const whole = withAttachments(text, apart(this.#item.text).attachments); // its attached texts stay
    if (this.#item.messageId === null) this.#actions.sendAgain(this.#item, whole);
    else this.#actions.edit(this.#item, whole);
  }

  #close() {
    this.root.classList.remove("editing");
    this.#box?.root.remove();
    this.#box = null;
    this.#opener?.focus();
  }
}

/** An attached text, folded until it is opened. @param {import("../writing/attached-text.js").Attachment} attachment */
function folded({ name, text }) {
  const summary = element("summary", {}, icon("attach"), element("span", { text: name, dir: "auto" }));
  return element("details", { class: "attachment" }, summary, element("pre", { text, tabindex: 0, dir: "auto" }));
}

/** A box to edit a message in. Calls `onSend` with the text, and `onClose` when it is closed. */
class EditBox {
  #field = element("textarea", { "aria-label": t("Your message, edited"), rows: 1 });
  #actions;

  /**
   * @param {string} text
   * @param {{onSend: (text: string) => void, onClose: () => void}} actions
   */
  constructor(text, actions) {
    this.#actions = actions;
    this.#field.value = text;
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    const send = element("button", { class: "go", type: "submit", text: t("Send") });
    const close = element("button", { class: "plain", type: "button", text: t("Cancel"), onclick: () => actions.onClose() });
    const buttons = element("div", { class: "edit-buttons" }, close, send);
    this.root = element("form", { class: "edit", "aria-label": t("Edit your message") }, this.#field, buttons);
    this.root.addEventListener("submit", (event) => this.#submit(event));
  }

  focus() {
    this.#field.focus();
    this.#field.setSelectionRange(this.#field.value.length, this.#field.value.length);
  }

  /** @param {Event} event */
  #submit(event) {
    event.preventDefault();
    const text = textOf(this.#field.value);
    if (text === "") return;
    this.#actions.onClose();
    this.#actions.onSend(text);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (isSubmit(event)) this.#submit(event);
    if (event.key !== "Escape" || event.isComposing) return;
    // Esc stops a running reply if there is nothing else to close.
    event.preventDefault();
    this.#actions.onClose();
  }
}
