import { ReplyState } from "../client/reply.js";
import { offeredTools } from "./writing/offered-tools.js";

/** @typedef {import("./transcript/arrangement.js").Item} Item */

/** A new message, an edit or a regeneration ends the running reply: whoever asks wants the answer now. */
const INTERRUPT = /** @type {const} */ ("interrupt");

/** The user's actions in the shown conversation: sending, editing, regenerating, stopping, deciding about calls. */
export class Speaking {
  #client;
  #notices;
  #settings;
  #screen;
  #talking;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./elements/notices.js").Notices} parts.notices
   * @param {import("./settings/conversation-settings.js").ConversationSettings} parts.settings
   * @param {() => import("./screen.js").Screen} parts.screen
   * @param {import("./talking.js").Talking} parts.talking
   */
  constructor({ client, notices, settings, screen, talking }) {
    this.#client = client;
    this.#notices = notices;
    this.#settings = settings;
    this.#screen = screen;
    this.#talking = talking;
  }

  /** @param {string} content @param {import("../client/frames.js").Attachment[]} [attachments]  images of the message */
  send(content, attachments = []) {
    this.#client.send({ ...this.#about(null), content, attachments });
    this.#screen().toEnd();
  }

  /**
   * Sends a message that was not taken again, or another in its place. It stays what it was: a new message or an edit.
   * @param {Item} item
   * @param {string} content
   */
  sendAgain({ reply, attachments }, content) {
    if (reply !== null) this.#screen().current.drop(reply);
    if (reply?.replaces) this.#client.edit({ ...this.#about(reply.replaces), messageId: reply.replaces, content, attachments });
    else this.send(content, attachments);
  }

  /**
   * @param {Item} item
   * @param {string} content
   */
  edit({ messageId, attachments }, content) {
    if (messageId === null) return;
    this.#client.edit({ ...this.#about(messageId), messageId, content, attachments }); // its images stay
    this.#screen().toEnd();
  }

  /** @param {Item} item */
  regenerate({ messageId }) {
    if (messageId === null) return;
    this.#client.regenerate({ ...this.#about(messageId), messageId });
    this.#screen().toEnd();
  }

  /** @param {Item} item */
  continueReply({ messageId, interprets }) {
    if (messageId === null) return;
    const { tools, ...about } = this.#about(messageId);
    this.#client.continueReply({ ...about, ...(interprets === null ? { tools } : {}), messageId });
    this.#screen().toEnd();
  }

  /** Whether the conversation's model can continue a cut reply. Live translations can always be continued. @param {Item} item */
  canContinue({ interprets }) {
    return interprets !== null || (this.#settings.model?.features?.includes("continue") ?? false);
  }

  /** @param {string} messageId  another version of a shown message, whose branch is shown then */
  async showBranch(messageId) {
    const { conversationId } = this.#screen().current;
    const shown = await this.#notices.answer(this.#client.showBranch({ conversationId, messageId }));
    if (shown !== null) this.#screen().showVersion(messageId);
  }

  stop() {
    const [reply] = this.#screen().running;
    if (reply === undefined) return;
    void this.#notices.answer(this.#client.cancel({ conversationId: reply.conversationId, seenOff: this.#keptOf(reply) }));
  }

  /** Code points that are kept of a reply that is stopped now; undefined: all. @param {import("../client/reply.js").Reply} reply */
  #keptOf(reply) {
    const spoken = this.#talking.cut(reply);
    if (spoken !== null) return spoken.seenOff;
    // A reply with calls is kept whole: only its calls are stopped.
    return reply.state === ReplyState.CALLING ? undefined : this.#screen().shownChars(reply);
  }

  /**
   * Allows or denies a call with the shown arguments.
   * @param {import("../client/call.js").Call} call
   * @param {"allow" | "deny"} decision
   */
  decide({ callId, argsSha256 }, decision) {
    const { conversationId } = this.#screen().current;
    return this.#notices.answer(this.#client.toolDecision({ conversationId, callId, argsSha256, decision }));
  }

  /**
   * Answers the question of a running call; null declines.
   * @param {import("../client/call.js").Call} call
   * @param {string | null} content
   */
  async answer({ callId, question }, content) {
    if (question === null) return;
    const { conversationId } = this.#screen().current;
    const response = content === null ? { decision: /** @type {const} */ ("deny") } : { decision: /** @type {const} */ ("allow"), args: content };
    const request = { conversationId, callId, argsSha256: question.sha256 };
    await this.#notices.answer(this.#client.toolDecision({ ...request, ...response }));
  }

  /** The most bytes of an image for the conversation's model; 0 if it takes no images, null before that is known. */
  get imageLimit() {
    const limits = this.#client.ready?.limits;
    const { model } = this.#settings;
    if (limits === undefined || model === null) return null;
    return model.features?.includes("images") ? limits.max_image_bytes : 0;
  }

  /** The tools that a message of the shown conversation offers. */
  get tools() {
    return offeredTools(this.#client.ready, this.#settings.model);
  }

  /** @param {string | null} messageId  the message or reply that gets another version; null for a new message */
  #about(messageId) {
    const { conversationId } = this.#screen().current;
    const tools = offeredTools(this.#client.ready, this.#settings.modelInPlaceOf(messageId));
    const [running] = this.#screen().running;
    const seenOff = running && this.#keptOf(running);
    return { conversationId, onBusy: INTERRUPT, seenOff, tools, params: this.#settings.params };
  }
}
