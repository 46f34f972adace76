import { readNewest, readOlder } from "./pages.js";
import { t } from "../words/translate.js";

/** The most pages of older messages that are read to find a message. */
const MOST_PAGES = 50;

/** Leads to a found message, wherever it is in its conversation. The search changes nothing: another branch is only offered. */
export class MessageJump {
  #client;
  #notices;
  #navigation;
  #screen;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {import("../navigation.js").Navigation} parts.navigation
   * @param {import("../screen.js").Screen} parts.screen
   */
  constructor({ client, notices, navigation, screen }) {
    this.#client = client;
    this.#notices = notices;
    this.#navigation = navigation;
    this.#screen = screen;
  }

  /** Shows the conversation of a hit, and the found message in it. @param {import("../../client/frames.js").Hit} hit */
  async to({ conversation_id: conversationId, message_id: messageId }) {
    this.#navigation.open(conversationId);
    if (messageId === undefined) return;
    const transcript = this.#screen.current;
    const read = await this.#read(transcript, messageId);
    if (this.#screen.current !== transcript) return; // the user went on
    if (transcript.has(messageId)) this.#screen.showMessage(messageId);
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
      await readNewest(this.#client, transcript);
      // If scrolling loaded a page meanwhile, there may be more before it.
      for (let before; !enough() && before !== transcript.oldest;) {
        before = transcript.oldest;
        await readOlder(this.#client, transcript, enough);
      }
      return !transcript.hasMore || transcript.has(messageId);
    };
    return (await this.#notices.answer(read())) ?? false;
  }

  /**
   * Offers to show a message of another branch. That makes its branch the active one on every device.
   * @param {string} conversationId
   * @param {string} messageId
   */
  #offer(conversationId, messageId) {
    this.#notices.offer(t("This result is in another version of the conversation."), t("Open it"), async () => {
      if (this.#screen.current.conversationId !== conversationId) this.#navigation.open(conversationId);
      const shown = await this.#notices.answer(this.#client.showBranch({ conversationId, messageId }).then(() => true));
      if (shown && this.#screen.current.has(messageId)) this.#screen.showMessage(messageId);
    });
  }
}
