import { LinkState, ReplyState } from "../client/chat-client.js";
import { addressOf, conversationAt } from "./conversations/address.js";
import { Announcer } from "./announcer.js";
import { Attention } from "./attention.js";
import { Composer } from "./writing/composer.js";
import { confirmDelete } from "./elements/confirm.js";
import { ConnectionView } from "./connection-view.js";
import { Conversations } from "./conversations/conversations.js";
import { Door } from "./keys/door.js";
import { part } from "./elements/dom.js";
import { SearchBox } from "./conversations/search-box.js";
import { Drawer } from "./elements/drawer.js";
import { ConversationActions } from "./conversations/conversation-actions.js";
import { MessageJump } from "./transcript/message-jump.js";
import { Notices } from "./elements/notices.js";
import { OlderPages } from "./transcript/older-pages.js";
import { Reporter } from "./reporter.js";
import { Choices } from "./settings/choices.js";
import { KeptTexts } from "./settings/kept-texts.js";
import { SettingsPanel } from "./settings/settings-panel.js";
import { Screen } from "./screen.js";
import { Speaking } from "./speaking.js";
import { sessionStorage } from "./settings/storage.js";
import { Transcripts } from "./transcript/transcripts.js";
import { wordsForLimit } from "./elements/words.js";

/** @typedef {import("../client/chat-client.js").ChatClient} ChatClient */
/** @typedef {import("../client/reply.js").Reply} Reply */
/** @typedef {import("./transcript/arrangement.js").Item} Item */

const LAST_KEY = "midstream.conversation";

/** The page: takes what the client tells and what the user does, and has it shown. */
export class Chat {
  #client;
  #storage;
  #transcripts = new Transcripts();
  #conversations;
  #notices = new Notices();
  #reporter = new Reporter(this.#notices);
  #announcer = new Announcer();
  #drawer = new Drawer();
  #connection = new ConnectionView({ onRetry: () => this.#client.connect() });
  #door;
  #chosen;
  #choices;
  #settings;
  #actions;
  #jump;
  #speaking;
  #composer;
  #screen;
  #older;
  #attention;
  #drafts;

  /**
   * @param {ChatClient} client
   * @param {object} parts
   * @param {import("../client/credentials.js").Credentials} parts.credentials
   * @param {Storage | null} parts.storage  where the last conversation, what was chosen for each and drafts are kept
   * @param {import("./settings/theme.js").Theme} parts.theme
   */
  constructor(client, { credentials, storage, theme }) {
    this.#client = client;
    this.#storage = storage;
    const keeping = { lasting: storage, session: sessionStorage(), forTab: () => credentials.key !== null && !credentials.keptForGood };
    this.#drafts = new KeptTexts("midstream.drafts", keeping);
    this.#chosen = new KeptTexts("midstream.choices", keeping);
    this.#choices = new Choices(this.#chosen);
    this.#conversations = new Conversations(client);
    this.#door = new Door({ client, credentials, reporter: this.#reporter, onLeave: () => this.#forgetAll() });
    this.#jump = new MessageJump({ client, reporter: this.#reporter });
    this.#speaking = new Speaking({ client, reporter: this.#reporter, choices: this.#choices, screen: () => this.#screen });
    this.#composer = new Composer({
      onSend: (text) => this.#say(text),
      onStop: () => this.#speaking.stop(),
      onDraft: (text) => this.#drafts.keep(this.#screen.current.conversationId, text),
      onTrouble: (words) => this.#notices.say(words),
      limits: () => this.#limits,
    });
    const known = conversationAt(location.hash) ?? storage?.getItem(LAST_KEY) ?? null;
    this.#screen = this.#makeScreen(known === null ? this.#transcripts.fresh() : this.#transcripts.of(known));
    const current = () => this.#screen.current;
    this.#settings = new SettingsPanel({
      choice: () => this.#choices.of(current().conversationId),
      onChoose: (choice) => this.#choose(choice),
      model: () => current().model,
      theme,
    });
    this.#actions = new ConversationActions({
      client,
      reporter: this.#reporter,
      current: () => current().conversationId,
      onRename: (conversationId, title) => void this.#rename(conversationId, title),
    });
    new SearchBox({
      find: (asked) => this.#reporter.answer(client.search(asked)),
      onOpen: (hit) => void this.#showFound(hit),
    });
    this.#older = new OlderPages({ client, reporter: this.#reporter, current, onCame: () => this.#screen.show() });
    const titleOf = (/** @type {string} */ id) => this.#conversations.titleOf(id) ?? "";
    this.#attention = new Attention({ title: this.#screen.title, titleOf });
    this.#listenToClient();
    this.#listenToUser();
  }

  /** Connects, and shows the conversation that the address names, else the last one. */
  start() {
    this.#switch(this.#screen.current.conversationId);
    this.#client.connect();
    this.#composer.focus();
  }

  /** @param {import("./transcript/transcript.js").Transcript} current */
  #makeScreen(current) {
    const speaking = this.#speaking;
    const actions = {
      onSend: (/** @type {string} */ text) => this.#say(text),
      onRetry: (/** @type {Item} */ item, /** @type {string} */ text) => this.#thenWrite(() => speaking.sendAgain(item, text)),
      onEdit: (/** @type {Item} */ item, /** @type {string} */ text) => this.#thenWrite(() => speaking.edit(item, text)),
      onRegenerate: (/** @type {Item} */ item) => this.#thenWrite(() => speaking.regenerate(item)),
      onContinue: (/** @type {Item} */ item) => this.#thenWrite(() => speaking.continueReply(item)),
      canContinue: () => speaking.canContinue,
      onBranch: (/** @type {string} */ messageId) => void speaking.showBranch(messageId),
      onRename: (/** @type {{id: string}} */ entry, /** @type {string} */ title) => void this.#rename(entry.id, title),
      onDelete: (/** @type {{id: string, title: string}} */ entry) => void this.#delete(entry),
      onDecide: (/** @type {import("../client/call.js").Call} */ call, /** @type {"allow" | "deny"} */ decision) =>
        speaking.decide(call, decision),
      limits: () => this.#limits,
      onMore: () => void this.#showMore(),
      onNear: () => this.#older.near(),
    };
    const onShown = (/** @type {boolean} */ anything) => {
      this.#composer.setRunning(this.#screen.running.length > 0);
      this.#actions.offer(anything);
      this.#older.show();
    };
    return new Screen({ client: this.#client, conversations: this.#conversations, current, actions, onShown });
  }

  /** What a message may have beside the tools that it offers. */
  get #limits() {
    const limits = this.#client.ready?.limits ?? null;
    if (limits === null) return null;
    const { length } = JSON.stringify(this.#speaking.tools ?? []);
    return { ...limits, max_frame_bytes: limits.max_frame_bytes - length };
  }

  #listenToClient() {
    /** @type {Record<string, (detail: any) => void>} */
    const listeners = {
      connection: (status) => this.#connection.show(status),
      ready: (frame) => this.#onReady(frame),
      reply: ({ reply }) => this.#onReply(reply),
      history: (page) => this.#transcripts.of(page.conversation_id).refresh(page),
      missing: ({ conversationId }) => this.#transcripts.of(conversationId).empty(),
      removed: ({ conversationId, turnId }) => this.#transcripts.of(conversationId).remove(turnId),
      title: ({ conversationId, title }) => this.#conversations.entitle(conversationId, title),
      deleted: ({ conversationId }) => this.#onDeleted(conversationId),
      unauthenticated: ({ message }) => this.#door.shut(message),
      limits: (frame) => this.#notices.say(wordsForLimit(frame)),
      error: (error) => this.#notices.tell(error),
    };
    for (const [type, listener] of Object.entries(listeners)) {
      this.#client.addEventListener(type, (event) => {
        listener(/** @type {CustomEvent} */ (event).detail);
        this.#screen.ask();
      });
    }
  }

  #listenToUser() {
    part("new", HTMLButtonElement).addEventListener("click", () => this.#startAnew());
    part("skip", HTMLAnchorElement).addEventListener("click", (event) => this.#skip(event));
    addEventListener("hashchange", () => this.#onAddress());
    for (const change of ["online", "offline"]) addEventListener(change, () => this.#onNetwork());
    networkInformation()?.addEventListener("change", () => this.#onNetwork());
    document.addEventListener("visibilitychange", () => this.#onLook());
    document.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** @param {import("../client/frames.js").Ready} frame */
  #onReady(frame) {
    this.#settings.know(frame);
    this.#screen.suggest(frame.suggestions ?? []);
    this.#showModel();
    this.#notices.clear();
    this.#older.again();
    this.#door.opened();
    void this.#refreshList();
  }

  /** @param {Reply} reply */
  #onReply(reply) {
    this.#transcripts.of(reply.conversationId).take(reply);
    const ended = reply.state === ReplyState.ENDED;
    if (reply.conversationId === this.#screen.current.conversationId) this.#announcer.tell(reply);
    this.#attention.look(reply);
    // A refused message says itself why; a reply that was to be made anew has no message to say it.
    if (reply.error !== null && reply.content === null) this.#notices.tell(reply.error);
    const unlisted = reply.turnId !== null && !this.#conversations.has(reply.conversationId);
    if (ended || (unlisted && reply.state === ReplyState.WAITING)) void this.#refreshList();
  }

  /** @param {string} conversationId */
  #onDeleted(conversationId) {
    this.#transcripts.forget(conversationId);
    this.#conversations.remove(conversationId);
    for (const kept of [this.#drafts, this.#chosen]) kept.forget(conversationId);
    if (conversationId === this.#screen.current.conversationId) this.#startAnew();
  }

  #onAddress() {
    const conversationId = conversationAt(location.hash);
    if (conversationId !== null && conversationId !== this.#screen.current.conversationId) this.#switch(conversationId);
    this.#drawer.close();
  }

  /** The network is said to have come, gone or become another one: what stood on it may not stand any more. */
  #onNetwork() {
    this.#connection.show(this.#client.connection);
    if (navigator.onLine) this.#client.connect();
    this.#client.probe();
  }

  /** The page may have slept, and other devices may have begun conversations meanwhile. */
  #onLook() {
    if (document.hidden) return;
    this.#client.connect();
    this.#client.probe();
    if (this.#client.connection.state === LinkState.CONNECTED) void this.#refreshList();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open], :popover-open") !== null || this.#drawer.close()) return;
    if (this.#screen.running.length > 0) this.#composer.stop();
  }

  /** @param {Event} event */
  #skip(event) {
    // Following the link would put its own fragment in the place of the conversation's address.
    event.preventDefault();
    this.#composer.focus();
  }

  /** @param {import("./settings/choices.js").Choice} choice */
  #choose(choice) {
    this.#choices.keep(this.#screen.current.conversationId, choice);
    this.#showModel();
    this.#screen.ask();
  }

  #showModel() {
    part("model", HTMLElement).textContent = this.#speaking.model?.name ?? this.#client.ready?.model ?? "";
  }

  /** @param {string} text */
  #say(text) {
    this.#thenWrite(() => this.#speaking.send(text));
  }

  /** What was pressed goes from the page: the keyboard goes on in the box for messages. @param {() => void} act */
  #thenWrite(act) {
    act();
    this.#composer.focus();
    // Who was asked for a key and had none is asked again: the message waits for it.
    if (this.#client.connection.state === LinkState.REFUSED) this.#client.connect();
  }

  /**
   * Leaves nothing of what was said to be read: not in the page, not in the browser's storage, not behind the Back button.
   * A new page begins with an empty memory; this one is emptied too, since browsers keep pages to go back to.
   */
  #forgetAll() {
    this.#storage?.removeItem(LAST_KEY);
    for (const kept of [this.#drafts, this.#chosen]) kept.clear();
    this.#screen.title.show("", "");
    document.body.replaceChildren();
    addEventListener("pageshow", () => location.reload());
    location.replace(location.pathname);
  }

  #startAnew() {
    this.#switch(this.#transcripts.fresh().conversationId);
    this.#drawer.close();
    this.#composer.focus();
  }

  /** @param {string} conversationId */
  #switch(conversationId) {
    if (this.#screen.running.length === 0) this.#client.leave(this.#screen.current.conversationId);
    const transcript = this.#transcripts.of(conversationId);
    this.#screen.current = transcript;
    this.#storage?.setItem(LAST_KEY, conversationId);
    if (location.hash !== addressOf(conversationId)) history.pushState(null, "", addressOf(conversationId));
    if (!transcript.loaded || transcript.items().length > 0) this.#client.open(conversationId);
    this.#composer.turnTo(this.#drafts.of(conversationId));
    this.#screen.toEnd();
    this.#showModel();
    this.#screen.ask();
  }

  /** @param {{id: string, title: string}} entry */
  async #delete({ id, title }) {
    if (await confirmDelete(title)) await this.#reporter.answer(this.#client.delete(id));
  }

  /**
   * @param {string} conversationId
   * @param {string} title
   */
  async #rename(conversationId, title) {
    await this.#reporter.answer(this.#conversations.rename(conversationId, title));
    this.#screen.ask();
  }

  /** @param {import("../client/frames.js").Hit} hit */
  async #showFound({ conversation_id: conversationId, message_id: messageId }) {
    this.#switch(conversationId);
    this.#drawer.close();
    if (messageId === undefined) return;
    const there = await this.#jump.load(this.#screen.current, messageId);
    if (there && this.#screen.current.conversationId === conversationId) this.#screen.showMessage(messageId);
  }

  async #showMore() {
    await this.#reporter.answer(this.#conversations.more());
    this.#screen.ask();
  }

  async #refreshList() {
    await this.#reporter.answer(this.#conversations.refresh());
    this.#screen.ask();
  }
}

/** What Chromium knows of the network; undefined elsewhere. @returns {EventTarget | undefined} */
function networkInformation() {
  return /** @type {{connection?: EventTarget}} */ (navigator).connection;
}
