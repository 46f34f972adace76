import { LinkState, ReplyState } from "../client/chat-client.js";
import { Composer } from "./writing/composer.js";
import { ConnectionView } from "./connection-view.js";
import { addressOf, conversationAt } from "./conversations/address.js";
import { ConversationActions } from "./conversations/conversation-actions.js";
import { Images } from "../client/images.js";
import { Sidebar } from "./conversations/sidebar.js";
import { Authentication } from "./keys/authentication.js";
import { part } from "./elements/dom.js";
import { Notices } from "./elements/notices.js";
import { wordsForLimit } from "./elements/words.js";
import { MessageActions } from "./message-actions.js";
import { Pictures } from "./pictures/pictures.js";
import { ReplyAlerts } from "./reply-alerts.js";
import { Screen } from "./screen.js";
import { ConversationSettings } from "./settings/conversation-settings.js";
import { sessionStorage } from "./settings/storage.js";
import { Talking } from "./talking.js";
import { Translating } from "./translating.js";
import { PAGE, Transcripts } from "./transcript/transcript.js";
import { t } from "./words/translate.js";
import { Drafts } from "./writing/drafts.js";

/** @typedef {import("../client/chat-client.js").ChatClient} ChatClient */
/** @typedef {import("../client/reply.js").Reply} Reply */

/** The browser's storage has the conversation that was shown last. */
const LAST_KEY = "midstream.conversation";
/** The most pages of older messages that are read to find a message. */
const MOST_PAGES = 50;

/** The page: takes events of the client and of the user, and shows what follows from them. */
export class Chat {
  #client;
  #storage;
  #drafts;
  #pictures;
  #transcripts = new Transcripts();
  #notices = new Notices();
  #sidebar;
  #settings;
  #modes;
  #composer;
  #screen;
  #alerts;
  #authentication;

  /**
   * @param {ChatClient} client
   * @param {object} parts
   * @param {import("../client/credentials.js").Credentials} parts.credentials
   * @param {Storage | null} parts.storage  keeps the last conversation, its settings, and drafts
   * @param {import("./settings/theme.js").Theme} parts.theme
   */
  constructor(client, { credentials, storage, theme }) {
    this.#client = client;
    this.#storage = storage;
    const places = { lasting: storage, session: sessionStorage(), forTab: () => credentials.key !== null && !credentials.keptForGood };
    const drafts = (this.#drafts = new Drafts(places));
    const notices = this.#notices;
    const current = () => this.#screen.current;
    const clientId = () => client.ready?.client_id ?? null;
    const pictures = (this.#pictures = new Pictures({
      images: new Images({ url: "v1/attachments", clientId, credentials }),
      current: () => current().conversationId,
    }));
    this.#sidebar = new Sidebar({
      client,
      notices,
      onNew: () => this.#startAnew(),
      onHit: (hit) => void this.#showHit(hit),
      onChange: () => this.#screen.ask(),
    });
    this.#settings = new ConversationSettings({ client, places, theme, current, onChange: () => this.#renew() });
    const modeParts = { client, places, notices, current: () => current().conversationId };
    const talking = new Talking({
      ...modeParts,
      model: () => this.#settings.params?.model ?? undefined,
      onBegin: () => translating.stop(),
    });
    const translating = new Translating({
      ...{ ...modeParts, credentials },
      model: () => this.#settings.model,
      onBegin: () => talking.stop(),
      onRest: (conversationId, text) => {
        if (conversationId === current().conversationId) this.#composer.giveBack(text);
        else drafts.keepText(conversationId, text + drafts.of(conversationId).text);
      },
    });
    this.#modes = [talking, translating];
    const actions = new MessageActions({
      ...{ client, notices, settings: this.#settings, talking, pictures },
      screen: () => this.#screen,
      onSent: () => {
        this.#composer.focus();
        // A user who gave no key is asked again, since the message waits for it.
        if (client.connection.state === LinkState.REFUSED) client.connect();
      },
    });
    this.#composer = new Composer({
      onSend: (text, images) => actions.send(text, images),
      onStop: () => actions.stop(),
      onWritten: (text, how) => translating.take(text, how),
      drafts,
      current: () => current().conversationId,
      onTrouble: (words) => notices.show(words),
      limits: () => actions.limits,
      images: { limit: () => actions.imageLimit, upload: (file) => pictures.upload(file) },
    });
    const menu = new ConversationActions({
      client,
      notices,
      current: () => current().conversationId,
      onRename: (conversationId, title) => void this.#sidebar.rename(conversationId, title),
    });
    const known = conversationAt(location.hash) ?? storage?.getItem(LAST_KEY) ?? null;
    this.#screen = new Screen({
      client,
      notices,
      titleOf: (conversationId) => this.#sidebar.titleOf(conversationId),
      current: known === null ? this.#transcripts.fresh() : this.#transcripts.of(known),
      actions,
      onShown: (title) => {
        this.#composer.setRunning(this.#screen.running.length > 0);
        menu.offer(title !== null);
        this.#sidebar.show(current().conversationId, title);
      },
    });
    this.#alerts = new ReplyAlerts({
      title: this.#screen.title,
      notices,
      current: () => current().conversationId,
    });
    this.#authentication = new Authentication({ client, credentials, notices, onLeave: () => this.#forgetAll() });
    new ConnectionView({ client, onLook: () => void this.#sidebar.refresh() });
    this.#listenToClient();
    addEventListener("hashchange", () => this.#onAddress());
    document.addEventListener("keydown", (event) => this.#onKey(event));
    part("skip", HTMLAnchorElement).addEventListener("click", (event) => {
      event.preventDefault(); // following the link would replace the conversation's address by its own fragment
      this.#composer.focus();
    });
  }

  /** Connects, and shows the conversation in the address, else the last one. */
  start() {
    this.#open(this.#screen.current.conversationId);
    this.#client.connect();
    this.#composer.focus();
  }

  #listenToClient() {
    /** @type {Record<string, (detail: any) => void>} */
    const listeners = {
      connection: () => {}, // whoever waits for one says so
      ready: (frame) => this.#onReady(frame),
      reply: ({ reply }) => this.#onReply(reply),
      history: (page) => this.#transcripts.of(page.conversation_id).refresh(page),
      missing: ({ conversationId }) => this.#transcripts.of(conversationId).empty(),
      removed: ({ conversationId, turnId }) => this.#transcripts.of(conversationId).remove(turnId),
      title: ({ conversationId, title }) => this.#sidebar.entitle(conversationId, title),
      deleted: ({ conversationId }) => this.#onDeleted(conversationId),
      unauthenticated: ({ message }) => this.#authentication.shut(message),
      limits: (frame) => this.#notices.show(wordsForLimit(frame)),
      error: (error) => this.#notices.report(error),
    };
    for (const [type, listener] of Object.entries(listeners)) {
      this.#client.addEventListener(type, (event) => {
        listener(/** @type {CustomEvent} */ (event).detail);
        this.#screen.ask();
      });
    }
  }

  /** @param {import("../client/frames.js").Ready} frame */
  #onReady(frame) {
    this.#settings.show();
    this.#screen.know(frame);
    this.#notices.clear();
    for (const mode of this.#modes) mode.know(frame);
    this.#authentication.opened();
    this.#composer.offer();
    void this.#sidebar.refresh();
  }

  /** @param {Reply} reply */
  #onReply(reply) {
    if (reply.unsure) return; // the speaker may go on: then the server takes it back, else it is shown in a moment
    this.#transcripts.of(reply.conversationId).take(reply);
    this.#alerts.look(reply);
    const ended = reply.state === ReplyState.ENDED;
    const unlisted = reply.turnId !== null && !this.#sidebar.has(reply.conversationId);
    if (ended || (unlisted && reply.state === ReplyState.WAITING)) void this.#sidebar.refresh();
  }

  /** @param {string} conversationId */
  #onDeleted(conversationId) {
    this.#sidebar.remove(conversationId);
    this.#settings.forget(conversationId);
    this.#transcripts.forget(conversationId);
    this.#drafts.forget(conversationId);
    if (conversationId === this.#screen.current.conversationId) this.#startAnew();
  }

  /** Shows a conversation. @param {string} conversationId */
  #open(conversationId) {
    const screen = this.#screen;
    if (screen.running.length === 0) this.#client.leave(screen.current.conversationId);
    const transcript = (screen.current = this.#transcripts.of(conversationId));
    this.#storage?.setItem(LAST_KEY, conversationId);
    if (location.hash !== addressOf(conversationId)) history.pushState(null, "", addressOf(conversationId));
    if (!transcript.loaded || transcript.items().length > 0) this.#client.open(conversationId);
    this.#composer.turnTo(this.#drafts.of(conversationId));
    screen.toEnd();
    screen.ask();
    this.#onTurn();
  }

  /** Shows an empty conversation, where the user can write at once. */
  #startAnew() {
    this.#open(this.#transcripts.fresh().conversationId);
    this.#composer.focus();
  }

  #onAddress() {
    const conversationId = conversationAt(location.hash);
    if (conversationId === null || conversationId === this.#screen.current.conversationId) this.#onTurn();
    else this.#open(conversationId);
  }

  /**
   * Shows the conversation of a hit, and the found message in it. The search changes nothing: another branch is only offered.
   * @param {import("../client/frames.js").Hit} hit
   */
  async #showHit({ conversation_id: conversationId, message_id: messageId }) {
    this.#open(conversationId);
    if (messageId === undefined) return;
    const transcript = this.#screen.current;
    const read = await this.#readUntil(transcript, messageId);
    if (this.#screen.current !== transcript) return; // the user went on
    if (transcript.has(messageId)) this.#screen.showMessage(messageId);
    else if (read) this.#offerBranch(conversationId, messageId);
  }

  /**
   * Reads messages until the found one is among them. It begins with the newest, since messages of this visit may have no
   * place in the history yet.
   * @param {import("./transcript/transcript.js").Transcript} transcript
   * @param {string} messageId
   * @returns {Promise<boolean>} whether all messages were read; the found one may still be elsewhere
   */
  async #readUntil(transcript, messageId) {
    if (transcript.has(messageId)) return true;
    let left = MOST_PAGES;
    const enough = () => (left -= 1) <= 0 || transcript.has(messageId);
    const read = async () => {
      transcript.refresh(await this.#client.history({ conversationId: transcript.conversationId, limit: PAGE }));
      // If scrolling loaded a page meanwhile, there may be more before it.
      for (let before; !enough() && before !== transcript.oldest;) {
        before = transcript.oldest;
        await transcript.readOlder(this.#client, enough);
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
  #offerBranch(conversationId, messageId) {
    this.#notices.offer(t("This result is in another version of the conversation."), t("Open it"), async () => {
      if (this.#screen.current.conversationId !== conversationId) this.#open(conversationId);
      const shown = await this.#notices.answer(this.#client.showBranch({ conversationId, messageId }).then(() => true));
      if (shown && this.#screen.current.has(messageId)) this.#screen.showMessage(messageId);
    });
  }

  /** The user turned to a conversation, perhaps the shown one. */
  #onTurn() {
    this.#sidebar.close();
    this.#settings.show();
    this.#composer.offer();
    for (const mode of this.#modes) mode.turned();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open], :popover-open") !== null || this.#sidebar.close()) return;
    if (this.#screen.running.length > 0) this.#composer.stop();
  }

  /** Takes that another model may be asked now, which has other features. */
  #renew() {
    this.#composer.offer();
    this.#screen.renew();
  }

  /**
   * Removes everything that was said: from the page, from the browser's storage, and from behind the Back button.
   * A new page begins with an empty memory. This one is emptied too, since browsers keep pages to go back to.
   */
  #forgetAll() {
    for (const mode of this.#modes) mode.stop();
    this.#client.forgetUnanswered();
    this.#storage?.removeItem(LAST_KEY);
    this.#drafts.clear();
    this.#pictures.clear();
    this.#settings.clear();
    this.#screen.title.show("", "");
    document.body.replaceChildren();
    addEventListener("pageshow", () => location.reload());
    location.replace(location.pathname);
  }
}
