import { readNewest, readOlder } from "./pages.js";
import { t } from "../words/translate.js";

/** Pages of older messages that are read to come to one that was found. */
const MOST_PAGES = 50;

/** Leads to a message that was found, wherever in its conversation it stands. Looking for one changes nothing: one of another branch is offered. */
export class MessageJump {
  #client;
  #reporter;
  #notices;
  #navigation;
  #screen;

  /**
   * @param {object} parts
   * @param {import("../../client/chat-client.js").ChatClient} parts.client
   * @param {import("../reporter.js").Reporter} parts.reporter
   * @param {import("../elements/notices.js").Notices} parts.notices
   * @param {import("../navigation.js").Navigation} parts.navigation
   * @param {import("../screen.js").Screen} parts.screen
   */
  constructor({ client, reporter, notices, navigation, screen }) {
    this.#client = client;
    this.#reporter = reporter;
    this.#notices = notices;
    this.#navigation = navigation;
    this.#screen = screen;
  }

  /** Shows the conversation of a hit, and in it the message that was found. @param {import("../../client/frames.js").Hit} hit */
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
   * Reads messages until the one that was found is among them: the newest first, since what was said in this visit is not
   * known by its place in the history.
   * @param {import("./transcript.js").Transcript} transcript
   * @param {string} messageId
   * @returns {Promise<boolean>} whether all was read that there is to read; it may still be elsewhere
   */
  async #read(transcript, messageId) {
    if (transcript.has(messageId)) return true;
    let left = MOST_PAGES;
    const enough = () => (left -= 1) <= 0 || transcript.has(messageId);
    const read = async () => {
      await readNewest(this.#client, transcript);
      // Where the reader's scrolling brought a page meanwhile, there may be more behind it.
      for (let before; !enough() && before !== transcript.oldest;) {
        before = transcript.oldest;
        await readOlder(this.#client, transcript, enough);
      }
      return !transcript.hasMore || transcript.has(messageId);
    };
    return (await this.#reporter.answer(read())) ?? false;
  }

  /**
   * What is on another branch is shown when the user says so: that branch is the active one from then on, on every device.
   * @param {string} conversationId
   * @param {string} messageId
   */
  #offer(conversationId, messageId) {
    this.#notices.offer(t("What was found is in another version of this conversation."), t("Go on with that version"), async () => {
      if (this.#screen.current.conversationId !== conversationId) this.#navigation.open(conversationId);
      const shown = await this.#reporter.answer(this.#client.showBranch({ conversationId, messageId }).then(() => true));
      if (shown && this.#screen.current.has(messageId)) this.#screen.showMessage(messageId);
    });
  }
}
