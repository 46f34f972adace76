import { ChatError, ReplyState } from "../client/chat-client.js";
import { randomId } from "../client/identity.js";
import { addressOf, conversationAt } from "./address.js";
import { Announcer } from "./announcer.js";
import { Composer } from "./composer.js";
import { confirmDelete } from "./confirm.js";
import { ConnectionView } from "./connection-view.js";
import { ConversationList } from "./conversation-list.js";
import { Conversations } from "./conversations.js";
import { part } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Follow } from "./follow.js";
import { Notices } from "./notices.js";
import { Transcript, answerKey } from "./transcript.js";
import { TranscriptView } from "./transcript-view.js";
import { Welcome } from "./welcome.js";

/** @typedef {import("../client/chat-client.js").ChatClient} ChatClient */
/** @typedef {import("../client/reply.js").Reply} Reply */
/** @typedef {import("./transcript.js").Item} Item */

const LAST_KEY = "midstream.conversation";
const NEW_TITLE = "New conversation";

/** The page: takes what the client tells and what the user does, and has it shown, at most once a frame. */
export class Chat {
  #client;
  #storage;
  /** @type {Map<string, Transcript>} */ #transcripts = new Map();
  #conversations;
  #current;
  #frameAsked = false;
  #announcer = new Announcer();
  #drawer = new Drawer();
  #notices = new Notices();
  #title = part("title", HTMLElement);
  #older = part("older", HTMLButtonElement);
  #jump = part("jump", HTMLButtonElement);
  #composer = new Composer({ onSend: (text) => this.#send(text), onStop: () => this.#stop() });
  #connection = new ConnectionView({ onRetry: () => this.#client.connect() });
  #list = new ConversationList({
    onDelete: (entry) => void this.#delete(entry),
    onMore: () => void this.#reporting(this.#conversations.more()),
  });
  #welcome = new Welcome({ onChoose: (text) => this.#send(text) });
  #view = new TranscriptView(part("messages", HTMLElement), { onRetry: (item) => this.#sendAgain(item) });
  #follow = new Follow(part("scroller", HTMLElement), (following) => (this.#jump.hidden = following));

  /**
   * @param {ChatClient} client
   * @param {Storage | null} storage  where the last conversation is kept
   */
  constructor(client, storage) {
    this.#client = client;
    this.#storage = storage;
    this.#conversations = new Conversations(client);
    const known = conversationAt(location.hash) ?? storage?.getItem(LAST_KEY) ?? null;
    this.#current = known === null ? this.#newTranscript() : this.#transcriptOf(known);
    this.#listenToClient();
    this.#listenToUser();
  }

  /** Connects, and shows the conversation that the address names, else the last one. */
  start() {
    this.#switch(this.#current.conversationId);
    this.#client.connect();
    this.#composer.focus();
  }

  #listenToClient() {
    /** @type {Record<string, (detail: any) => void>} */
    const listeners = {
      connection: (status) => this.#connection.show(status),
      ready: (frame) => this.#onReady(frame),
      reply: ({ reply }) => this.#onReply(reply),
      history: (page) => this.#onHistory(page),
      missing: ({ conversationId }) => this.#onMissing(conversationId),
      removed: ({ conversationId, turnId }) => this.#onRemoved(conversationId, turnId),
      deleted: ({ conversationId }) => this.#onDeleted(conversationId),
      error: (error) => this.#notices.tell(error),
    };
    for (const [type, listener] of Object.entries(listeners)) {
      this.#client.addEventListener(type, (event) => listener(/** @type {CustomEvent} */ (event).detail));
    }
  }

  #listenToUser() {
    part("new", HTMLButtonElement).addEventListener("click", () => this.#startAnew());
    part("skip", HTMLAnchorElement).addEventListener("click", (event) => this.#skip(event));
    this.#older.addEventListener("click", () => void this.#showOlder());
    this.#jump.addEventListener("click", () => this.#follow.resume());
    addEventListener("hashchange", () => this.#onAddress());
    document.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** @param {import("../client/frames.js").Ready} frame */
  #onReady(frame) {
    part("model", HTMLElement).textContent = frame.model;
    this.#notices.clear();
    void this.#refreshList();
  }

  /** @param {Reply} reply */
  #onReply(reply) {
    this.#transcriptOf(reply.conversationId).take(reply);
    const ended = reply.state === ReplyState.ENDED;
    if (ended && reply.conversationId === this.#current.conversationId) this.#announcer.ended(reply);
    const unlisted = reply.turnId !== null && !this.#conversations.has(reply.conversationId);
    if (ended || (unlisted && reply.state === ReplyState.WAITING)) void this.#refreshList();
    this.#ask();
  }

  /** @param {import("../client/frames.js").History} page */
  #onHistory(page) {
    this.#transcriptOf(page.conversation_id).refresh(page);
    this.#ask();
  }

  /** @param {string} conversationId */
  #onMissing(conversationId) {
    this.#transcriptOf(conversationId).empty();
    this.#ask();
  }

  /**
   * @param {string} conversationId
   * @param {string} turnId
   */
  #onRemoved(conversationId, turnId) {
    this.#transcriptOf(conversationId).remove(turnId);
    this.#ask();
  }

  /** @param {string} conversationId */
  #onDeleted(conversationId) {
    this.#transcripts.delete(conversationId);
    this.#conversations.remove(conversationId);
    if (conversationId === this.#current.conversationId) this.#startAnew();
    this.#ask();
  }

  #onAddress() {
    const conversationId = conversationAt(location.hash);
    if (conversationId !== null && conversationId !== this.#current.conversationId) this.#switch(conversationId);
    this.#drawer.close();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") !== null || this.#drawer.close()) return;
    if (this.#running.length > 0) this.#composer.stop();
  }

  /** @param {Event} event */
  #skip(event) {
    // Following the link would put its own fragment in the place of the conversation's address.
    event.preventDefault();
    this.#composer.focus();
  }

  /** @param {string} text */
  #send(text) {
    this.#client.send({ conversationId: this.#current.conversationId, content: text, onBusy: "interrupt" });
    this.#follow.resume();
    this.#composer.focus();
  }

  /** @param {Item} item */
  #sendAgain({ text, reply }) {
    if (reply !== null) this.#current.drop(reply);
    this.#send(text);
  }

  #stop() {
    const [reply] = this.#running;
    if (reply === undefined) return;
    const seenOff = this.#view.shownChars(answerKey(reply));
    void this.#reporting(this.#client.cancel({ conversationId: reply.conversationId, seenOff }));
  }

  #startAnew() {
    this.#switch(this.#newTranscript().conversationId);
    this.#drawer.close();
    this.#composer.focus();
  }

  /** @param {string} conversationId */
  #switch(conversationId) {
    if (this.#running.length === 0) this.#client.leave(this.#current.conversationId);
    this.#current = this.#transcriptOf(conversationId);
    this.#storage?.setItem(LAST_KEY, conversationId);
    if (location.hash !== addressOf(conversationId)) history.pushState(null, "", addressOf(conversationId));
    if (!this.#current.loaded || this.#current.items().length > 0) this.#client.open(conversationId);
    this.#follow.resume();
    this.#ask();
  }

  /** @param {{id: string, title: string}} entry */
  async #delete({ id, title }) {
    if (await confirmDelete(title)) await this.#reporting(this.#client.delete(id));
  }

  async #showOlder() {
    const transcript = this.#current;
    const { conversationId, oldest: before } = transcript;
    const page = await this.#reporting(this.#client.history({ conversationId, before }));
    if (page === null) return;
    transcript.prepend(page);
    this.#follow.holdPlace(() => this.#show());
  }

  async #refreshList() {
    await this.#reporting(this.#conversations.refresh());
    this.#ask();
  }

  /**
   * Tells the user of a request that failed; null stands for its answer then. A lost connection is told already.
   * @template Answer
   * @param {Promise<Answer>} request
   * @returns {Promise<Answer | null>}
   */
  async #reporting(request) {
    try {
      return await request;
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      if (error.code !== ChatError.DISCONNECTED) this.#notices.tell(error);
      return null;
    } finally {
      this.#ask();
    }
  }

  /** The replies of the shown conversation that can be stopped. */
  get #running() {
    return this.#client.repliesOf(this.#current.conversationId).filter((reply) => !reply.stopping);
  }

  /** @param {string} conversationId */
  #transcriptOf(conversationId) {
    let transcript = this.#transcripts.get(conversationId);
    if (transcript === undefined) {
      transcript = new Transcript(conversationId);
      this.#transcripts.set(conversationId, transcript);
    }
    return transcript;
  }

  /** The transcript of a conversation that nobody has sent to yet. */
  #newTranscript() {
    const transcript = this.#transcriptOf(randomId());
    transcript.empty();
    return transcript;
  }

  /** Asks for one showing in the next frame. */
  #ask() {
    if (this.#frameAsked) return;
    this.#frameAsked = true;
    requestAnimationFrame(() => {
      this.#frameAsked = false;
      this.#show();
      this.#follow.keep();
    });
  }

  #show() {
    const items = this.#current.items();
    this.#view.show(items);
    this.#welcome.show(items.length === 0 && this.#current.loaded);
    this.#older.hidden = !this.#current.hasMore;
    this.#composer.setRunning(this.#running.length > 0);
    const title = this.#titleOf(this.#current, items);
    this.#title.textContent = title;
    document.title = title === NEW_TITLE ? "Midstream" : `${title} · Midstream`;
    this.#showList(items.length > 0 ? title : null);
  }

  /** @param {string | null} title  of the current conversation; null where it is still empty */
  #showList(title) {
    const current = this.#current.conversationId;
    const entries = this.#conversations.entries.map(({ conversation_id: id, title: name }) => this.#entry(id, name));
    if (title !== null && !this.#conversations.has(current)) entries.unshift(this.#entry(current, title));
    this.#list.show(entries, { current, hasMore: this.#conversations.hasMore });
  }

  /**
   * @param {string} id
   * @param {string} title
   */
  #entry(id, title) {
    return { id, title: title || NEW_TITLE, running: this.#client.repliesOf(id).length > 0 };
  }

  /**
   * @param {Transcript} transcript
   * @param {Item[]} items
   */
  #titleOf({ conversationId }, items) {
    const listed = this.#conversations.entries.find(({ conversation_id: id }) => id === conversationId);
    return listed?.title || items[0]?.text || NEW_TITLE;
  }
}
