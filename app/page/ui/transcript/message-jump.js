import { PAGE, readOlder } from "./older-pages.js";
import { t } from "../words/translate.js";

/** The most pages of older messages that are read to find a message. */
const MOST_PAGES = 50;

/** Leads to a found message, wherever it is in its conversation. The search changes nothing: another branch is only offered. */
export class MessageJump {
  #parts;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {import("../navigation.js").Navigation} parts.navigation
   * @param {import("../screen.js").Screen} parts.screen
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Shows the conversation of a hit, and the found message in it. @param {import("../../client/frames.js").Hit} hit */
  async to({ conversation_id: conversationId, message_id: messageId }) {
    this.#parts.navigation.open(conversationId);
    if (messageId === undefined) return;
    const transcript = this.#parts.screen.current;
    const read = await this.#read(transcript, messageId);
    if (this.#parts.screen.current !== transcript) return; // the user went on
    if (transcript.has(messageId)) this.#parts.screen.showMessage(messageId);
    else if (read) this.#offer(conversationId, messageId);
  }

  /**
   * Reads messages until the found one is among them. It begins with the newest, since messages of this visit may have no
   * place in the history yet.
   * @param {import("./transcript.js").Transcript} transcript
   * @param {string} messageId
   * @returns {Promise<boolean>} whether all messages were read; the found one may still be elsewhere
   */
  async #read(transcript, messageId) {
    if (transcript.has(messageId)) return true;
    let left = MOST_PAGES;
    const enough = () => (left -= 1) <= 0 || transcript.has(messageId);
    const read = async () => {
      transcript.refresh(await this.#parts.client.history({ conversationId: transcript.conversationId, limit: PAGE }));
      // If scrolling loaded a page meanwhile, there may be more before it.
      for (let before; !enough() && before !== transcript.oldest;) {
        before = transcript.oldest;
        await readOlder(this.#parts.client, transcript, enough);
      }
      return !transcript.hasMore || transcript.has(messageId);
    };
    return (await this.#parts.notices.answer(read())) ?? false;
  }

  /**
   * Offers to show a message of another branch. That makes its branch the active one on every device.
   * @param {string} conversationId
   * @param {string} messageId
   */
  #offer(conversationId, messageId) {
    this.#parts.notices.offer(t("This result is in another version of the conversation."), t("Open it"), async () => {
      if (this.#parts.screen.current.conversationId !== conversationId) this.#parts.navigation.open(conversationId);
      const shown = await this.#parts.notices.answer(this.#parts.client.showBranch({ conversationId, messageId }).then(() => true));
      if (shown && this.#parts.screen.current.has(messageId)) this.#parts.screen.showMessage(messageId);
    });
  }
}
