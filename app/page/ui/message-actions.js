import { ReplyState } from "../client/reply.js";
import { MOST_IMAGES } from "./writing/attachments.js";

/** @typedef {import("./transcript/arrangement.js").Item} Item */

/** A new message, an edit or a regeneration ends the running reply: the user wants the answer now. */
const INTERRUPT = /** @type {const} */ ("interrupt");
/** The most tools of one message. */
const MOST_TOOLS = 128;
/** What the ids of a message's images take in a frame, and the words around them. */
const IMAGES_BYTES = 67 * (MOST_IMAGES + 1);

/** The user's actions in the shown conversation: sending, editing, regenerating, stopping, deciding about calls. */
export class MessageActions {
  #parts;
  /** The images of messages. */
  pictures;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {import("./settings/conversation-settings.js").ConversationSettings} parts.settings
   * @param {() => import("./screen.js").Screen} parts.screen
   * @param {import("./talking.js").Talking} parts.talking
   * @param {import("./pictures/pictures.js").Pictures} parts.pictures
   * @param {() => void} parts.onSent  the user asked for a reply: the button that was pressed leaves the page
   */
  constructor(parts) {
    this.#parts = parts;
    this.pictures = parts.pictures;
  }

  /** @param {string} content @param {import("../client/frames.js").Attachment[]} [attachments]  images of the message */
  send(content, attachments = []) {
    this.#parts.client.send({ ...this.#about(null), content, attachments });
    this.#sent();
  }

  /**
   * Sends a message that was not taken again, or another in its place. It stays what it was: a new message or an edit.
   * @param {Item} item
   * @param {string} content
   */
  sendAgain({ reply, attachments }, content) {
    if (reply !== null) this.#parts.screen().current.drop(reply);
    if (!reply?.replaces) return this.send(content, attachments);
    this.#parts.client.edit({ ...this.#about(reply.replaces), messageId: reply.replaces, content, attachments });
    return this.#sent();
  }

  /**
   * @param {Item} item
   * @param {string} content
   */
  edit({ messageId, attachments }, content) {
    if (messageId === null) return;
    this.#parts.client.edit({ ...this.#about(messageId), messageId, content, attachments }); // its images stay
    this.#sent();
  }

  /** @param {Item} item */
  regenerate({ messageId }) {
    if (messageId === null) return;
    this.#parts.client.regenerate({ ...this.#about(messageId), messageId });
    this.#sent();
  }

  /** @param {Item} item */
  continueReply({ messageId, interprets }) {
    if (messageId === null) return;
    const { tools, ...about } = this.#about(messageId);
    this.#parts.client.continueReply({ ...about, ...(interprets === null ? { tools } : {}), messageId });
    this.#sent();
  }

  /** Whether the conversation's model can continue a cut reply. Live translations can always be continued. @param {Item} item */
  canContinue({ interprets }) {
    return interprets !== null || (this.#parts.settings.model?.features?.includes("continue") ?? false);
  }

  /** @param {string} messageId  another version of a shown message, whose branch is shown then */
  async showBranch(messageId) {
    const { conversationId } = this.#parts.screen().current;
    const shown = await this.#parts.notices.answer(this.#parts.client.showBranch({ conversationId, messageId }));
    if (shown !== null) this.#parts.screen().showVersion(messageId);
  }

  stop() {
    const [reply] = this.#parts.screen().running;
    if (reply === undefined) return;
    void this.#parts.notices.answer(this.#parts.client.cancel({ conversationId: reply.conversationId, seenOff: this.#keptOf(reply) }));
  }

  /** Code points that are kept of a reply that is stopped now; undefined: all. @param {import("../client/reply.js").Reply} reply */
  #keptOf(reply) {
    const spoken = this.#parts.talking.cut(reply);
    if (spoken !== null) return spoken.seenOff;
    // A reply with calls is kept whole: only its calls are stopped.
    return reply.state === ReplyState.CALLING ? undefined : this.#parts.screen().shownChars(reply);
  }

  /**
   * Allows or denies a call with the shown arguments.
   * @param {import("../client/call.js").Call} call
   * @param {"allow" | "deny"} decision
   */
  decide({ callId, argsSha256 }, decision) {
    const { conversationId } = this.#parts.screen().current;
    return this.#parts.notices.answer(this.#parts.client.toolDecision({ conversationId, callId, argsSha256, decision }));
  }

  /** The most bytes of an image for the conversation's model; 0 if it takes no images, null before that is known. */
  get imageLimit() {
    const limits = this.#parts.client.ready?.limits;
    const { model } = this.#parts.settings;
    if (limits === undefined || model === null) return null;
    return model.features?.includes("images") ? limits.max_image_bytes : 0;
  }

  /** The limits of a message beside its images and the tools that it offers; null before they are known. */
  get limits() {
    const limits = this.#parts.client.ready?.limits ?? null;
    if (limits === null) return null;
    const { length } = JSON.stringify(this.#tools(null) ?? []);
    return { ...limits, max_frame_bytes: limits.max_frame_bytes - length - IMAGES_BYTES };
  }

  /** Shows the end, where the reply will be. */
  #sent() {
    this.#parts.screen().toEnd();
    this.#parts.onSent();
  }

  /** The tools that are offered: all of the server's, if the model can call them. @param {string | null} messageId  as for the model */
  #tools(messageId) {
    const { client, settings } = this.#parts;
    const calls = settings.modelInPlaceOf(messageId)?.features?.some((feature) => feature === "tools" || feature === "tools.auto");
    const tools = (calls && client.ready?.tools) || [];
    const where = /** @type {const} */ ("server");
    return tools.length === 0 ? undefined : tools.slice(0, MOST_TOOLS).map(({ name }) => ({ name, where }));
  }

  /** @param {string | null} messageId  the message or reply that gets another version; null for a new message */
  #about(messageId) {
    const { conversationId } = this.#parts.screen().current;
    const tools = this.#tools(messageId);
    const [running] = this.#parts.screen().running;
    const seenOff = running && this.#keptOf(running);
    return { conversationId, onBusy: INTERRUPT, seenOff, tools, params: this.#parts.settings.params };
  }
}
