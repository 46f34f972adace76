import { ReplyState } from "../client/reply.js";
import { offeredTools } from "./writing/offered-tools.js";

/** @typedef {import("./transcript/arrangement.js").Item} Item */

/** A new message, an edited one or another reply ends the reply that runs: whoever asks wants to read the answer now. */
const INTERRUPT = /** @type {const} */ ("interrupt");

/** What the user says in the shown conversation: messages, other versions of them, and when it is enough. */
export class Speaking {
  #client;
  #reporter;
  #settings;
  #screen;
  #talking;

  /**
   * @param {object} parts
   * @param {import("../client/chat-client.js").ChatClient} parts.client
   * @param {import("./reporter.js").Reporter} parts.reporter
   * @param {import("./settings/conversation-settings.js").ConversationSettings} parts.settings
   * @param {() => import("./screen.js").Screen} parts.screen
   * @param {import("./talking.js").Talking} parts.talking
   */
  constructor({ client, reporter, settings, screen, talking }) {
    this.#client = client;
    this.#reporter = reporter;
    this.#settings = settings;
    this.#screen = screen;
    this.#talking = talking;
  }

  /** @param {string} content @param {import("../client/frames.js").Attachment[]} [attachments]  the images that it shows */
  send(content, attachments = []) {
    this.#client.send({ ...this.#about(null), content, attachments });
    this.#screen().toEnd();
  }

  /**
   * Sends a message again that was not taken, or another in its place: what it was, a new message or an edited one.
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
    this.#client.edit({ ...this.#about(messageId), messageId, content, attachments }); // its images stay with it
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

  /** Whether the model of the shown conversation can go on with a reply that was cut; all that translate live can. @param {Item} item */
  canContinue({ interprets }) {
    return interprets !== null || (this.#settings.model?.features?.includes("continue") ?? false);
  }

  /** @param {string} messageId  a version of a shown message, whose branch is to be shown instead */
  async showBranch(messageId) {
    const { conversationId } = this.#screen().current;
    const shown = await this.#reporter.answer(this.#client.showBranch({ conversationId, messageId }));
    if (shown !== null) this.#screen().showVersion(messageId);
  }

  stop() {
    const [reply] = this.#screen().running;
    if (reply === undefined) return;
    void this.#reporter.answer(this.#client.cancel({ conversationId: reply.conversationId, seenOff: this.#keptOf(reply) }));
  }

  /** Code points that are kept of a reply that is stopped now. @param {import("../client/reply.js").Reply} reply */
  #keptOf(reply) {
    const spoken = this.#talking.cut(reply);
    if (spoken !== null) return spoken.seenOff;
    // Of a reply that called all is kept: what is stopped are its calls.
    return reply.state === ReplyState.CALLING ? undefined : this.#screen().shownChars(reply);
  }

  /**
   * Allows or denies a call, with the arguments that are shown.
   * @param {import("../client/call.js").Call} call
   * @param {"allow" | "deny"} decision
   */
  decide({ callId, argsSha256 }, decision) {
    const { conversationId } = this.#screen().current;
    return this.#reporter.answer(this.#client.toolDecision({ conversationId, callId, argsSha256, decision }));
  }

  /**
   * Answers what a running call asks; null declines.
   * @param {import("../client/call.js").Call} call
   * @param {string | null} content
   */
  async answer({ callId, question }, content) {
    if (question === null) return;
    const { conversationId } = this.#screen().current;
    const said = content === null ? { decision: /** @type {const} */ ("deny") } : { decision: /** @type {const} */ ("allow"), args: content };
    const asked = { conversationId, callId, argsSha256: question.sha256 };
    await this.#reporter.answer(this.#client.toolDecision({ ...asked, ...said }));
  }

  /** What an image may have that is shown to the model of the shown conversation, in bytes; 0 where it takes none, null before that is known. */
  get imageLimit() {
    const limits = this.#client.ready?.limits;
    const { model } = this.#settings;
    if (limits === undefined || model === null) return null;
    return model.features?.includes("images") ? limits.max_image_bytes : 0;
  }

  /** What a message of the shown conversation offers the model to call. */
  get tools() {
    return offeredTools(this.#client.ready, this.#settings.model);
  }

  /** @param {string | null} messageId  what gets another version; null where nothing does */
  #about(messageId) {
    const { conversationId } = this.#screen().current;
    const tools = offeredTools(this.#client.ready, this.#settings.modelInPlaceOf(messageId));
    return { conversationId, onBusy: INTERRUPT, tools, params: this.#settings.params };
  }
}
