import { Call } from "../../client/call.js";
import { ReplyState } from "../../client/reply.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Message} Message */
/**
 * One message as it is to be shown.
 * @typedef {object} Item
 * @property {string} key              the same for as long as the message is shown
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {import("../../client/frames.js").Attachment[]} attachments  the images that a message of the user shows
 * @property {string} status           a ReplyState while it is under way; then "complete", the reason of the end, or "lost"
 * @property {string | null} messageId null until the server gave one
 * @property {string[]} siblings       the message ids of its branches, its own too, of many the nearest; empty where it has no other
 * @property {number} siblingCount     how many branches there are
 * @property {number} siblingIndex     how many of them come before this one
 * @property {Reply | null} reply      where it is known live: its timing, its failure
 * @property {import("../../client/frames.js").Usage | null} usage
 * @property {Thought} thought         what the model thought aloud beside the text
 * @property {Call[]} calls            what it called
 * @property {import("../../client/frames.js").Languages | null} interprets  from what to what it translates live, beside its source
 * @property {string} source           what it translates; empty where it translates nothing
 * @property {string | null} sourceId  the message that has the source
 * @property {Reply["alignment"]} alignment  which parts of it are of which parts of the source, as far as that was seen
 * @property {boolean} cut             whether it ended before its end, and nothing was said behind it: it can go on
 */
/** @typedef {{text: string, growing: boolean, ms: number | null}} Thought  `ms`: how long it took; null where that is not known */

/** How a reply ended that may have more to say. @type {Set<string>} */
const CUT = new Set(["cancelled", "interrupted", "length", "timeout", "error"]);

/** The status of a reply that history tells as far as it has come; its live Reply knows more. */
const RUNNING = "running";

/**
 * History first, each message with what is known live of its turn; then the replies that history does not have yet.
 * One of those that begins a branch takes the place of what was shown from there on.
 * @param {Message[]} messages  of the active branch, oldest first
 * @param {Reply[]} replies     oldest first
 * @returns {Item[]}
 */
export function arrange(messages, replies) {
  const byTurn = new Map(replies.filter((reply) => reply.turnId !== null).map((reply) => [reply.turnId, reply]));
  const answered = new Set(messages.filter(({ role }) => role === "assistant").map((message) => message.turn_id));
  const sources = sourcesOf(messages);
  const shown = messages.filter(({ message_id: id }) => !sources.has(id));
  const items = shown.map((message) => kept(message, byTurn.get(message.turn_id) ?? null, sources.get(message.parent_id ?? "")));
  const named = new Set(messages.map(({ message_id: id }) => id));
  for (const reply of replies) {
    if (answered.has(reply.turnId ?? "")) continue;
    place(items, reply, named);
    for (const id of [reply.messageId, reply.done?.message_id]) if (id) named.add(id);
  }
  const last = items.at(-1);
  if (last !== undefined && isCut(last)) items[items.length - 1] = { ...last, cut: true };
  return items;
}

/**
 * The items of one transcript, arranged anew only where something moved: while a reply grows its own item alone is made
 * again, however long the conversation is.
 */
export class Arrangement {
  /** @type {Item[]} */ #items = [];
  /** @type {Message[] | null} Those that were arranged. */ #messages = null;
  /** @type {Map<Reply, string>} How each reply stood then. */ #stood = new Map();
  /** @type {Map<Reply, {index: number, message: Message | undefined}>} Where the open ones are. */ #open = new Map();

  /**
   * @param {Message[]} messages  another array wherever one of them changed
   * @param {Set<Reply>} replies
   * @returns {Item[]} another array wherever an item came, went or moved; else the one before, with new items of open replies
   */
  of(messages, replies) {
    if (this.#moved(messages, replies)) this.#arrange(messages, replies);
    else for (const [reply, place] of this.#open) this.#renew(reply, place);
    return this.#items;
  }

  /** @param {Message[]} messages @param {Set<Reply>} replies */
  #moved(messages, replies) {
    if (messages !== this.#messages || replies.size !== this.#stood.size) return true;
    for (const reply of replies) if (this.#stood.get(reply) !== standing(reply)) return true;
    // One that is shown in the item of another can't be made again alone.
    return [...this.#open.values()].some(({ index }) => index === -1);
  }

  /** @param {Message[]} messages @param {Set<Reply>} replies */
  #arrange(messages, replies) {
    this.#items = arrange(messages, [...replies]);
    this.#messages = messages;
    this.#stood = new Map([...replies].map((reply) => [reply, standing(reply)]));
    const open = [...replies].filter((reply) => reply.open);
    this.#open = new Map(open.map((reply) => [reply, this.#placeOf(reply, messages)]));
  }

  /** @param {Reply} reply @param {Message[]} messages */
  #placeOf(reply, messages) {
    const key = answerKey(reply);
    const isIts = (/** @type {Message} */ { role, turn_id: turn }) => role === "assistant" && turn === reply.turnId;
    return { index: this.#items.findLastIndex((item) => item.key === key), message: messages.findLast(isIts) };
  }

  /** @param {Reply} reply @param {{index: number, message: Message | undefined}} place */
  #renew(reply, { index, message }) {
    if (index !== -1) this.#items[index] = message === undefined ? liveAnswer(reply) : kept(message, reply);
  }
}

/** All of a reply that decides where its items are, and whether they are there. @param {Reply} reply */
function standing({ state, turnId, messageId, parentId, follows, continues, branches, replaces, done }) {
  return [state, turnId, messageId, parentId, follows, continues, branches, replaces, done?.message_id].join(" ");
}

/** Messages that are translated live stand beside their translation, and not alone. @param {Message[]} messages @returns {Map<string, Message>} */
function sourcesOf(messages) {
  const asked = new Set(messages.filter(({ role }) => role === "assistant").map(({ parent_id: id }) => id));
  const translated = messages.filter(({ role, interprets, message_id: id }) => role === "user" && interprets && asked.has(id));
  return new Map(translated.map((message) => [message.message_id, message]));
}

/** The key of the item that shows a reply's text. @param {Reply} reply */
function answerKey(reply) {
  return `assistant:${keyOf(reply)}`;
}

/** @param {Item} item */
function isCut({ role, status, messageId, text, thought, calls }) {
  return role === "assistant" && CUT.has(status) && messageId !== null && text + thought.text !== "" && calls.length === 0;
}

/**
 * @param {Item[]} items
 * @param {Reply} reply
 * @param {Set<string>} named  the ids of all messages among `items`: of one that is not there nothing needs to be looked for
 */
function place(items, reply, named) {
  if (reply.continues !== null) return goOn(items, reply);
  if (isUnsent(reply.state, reply.turnId)) return items.push(...liveQuestion(reply));
  const asked = named.has(reply.messageId ?? "") ? askedAt(items, reply) : -1;
  // Behind the calls that it follows may wait what was sent meanwhile.
  if (asked !== -1 && reply.follows !== null && !reply.branches) return items.splice(asked + 1, 0, liveAnswer(reply));
  const from = asked === -1 ? start(items, reply, named) : asked + 1;
  // What the server did not take belongs to no branch: it stays until it is sent again.
  const unsent = items.splice(from).filter(({ role, status, messageId }) => role === "user" && isUnsent(status, messageId));
  return items.push(...unsent, ...(asked === -1 ? liveQuestion(reply) : []), liveAnswer(reply));
}

/**
 * Shows a reply that goes on where it stands. Until history has told what it goes on from, its text is the one that is known.
 * @param {Item[]} items
 * @param {Reply} reply
 */
function goOn(items, reply) {
  const index = items.findIndex(({ messageId }) => messageId === reply.continues);
  if (index === -1 || reply.state === ReplyState.REFUSED || reply.state === ReplyState.WITHDRAWN) return;
  const before = items[index];
  const live = liveAnswer(reply);
  const text = live.text.length < before.text.length ? before.text : live.text;
  const thought = live.thought.text === "" ? before.thought : live.thought;
  const source = live.source.length < before.source.length ? before.source : live.source;
  items[index] = { ...before, status: live.status, reply, text, thought, source, alignment: live.alignment, calls: live.calls };
}

/**
 * Where the message is that a reply answers, or the reply whose calls it follows; -1 where that is not shown.
 * @param {Item[]} items
 * @param {Reply} reply
 */
function askedAt(items, { messageId: asked, follows }) {
  return items.findLastIndex(({ role, messageId }) => messageId !== null && messageId === asked && (role === "user" || follows !== null));
}

/**
 * @param {string} state
 * @param {string | null} id  null where the server never named it
 */
function isUnsent(state, id) {
  return state === ReplyState.REFUSED || (state === ReplyState.WITHDRAWN && id === null);
}

/**
 * Where an exchange that history does not have begins.
 * @param {Item[]} items
 * @param {Reply} reply
 * @param {Set<string>} named
 */
function start(items, { replaces, parentId, follows }, named) {
  if (follows !== null) return items.length;
  const indexOf = (/** @type {string | null | undefined} */ id) =>
    named.has(id ?? "") ? items.findLastIndex(({ messageId }) => messageId === id) : -1;
  const replaced = indexOf(replaces);
  if (replaced !== -1) return replaced;
  const parent = indexOf(parentId);
  return parent === -1 ? items.length : parent + 1;
}

/** @param {Reply} reply */
function keyOf(reply) {
  return reply.clientMsgId ?? reply.turnId ?? "";
}

/** Of a message that history does not have. @type {{siblings: string[], siblingCount: number, siblingIndex: number}} */
const ALONE = { siblings: [], siblingCount: 1, siblingIndex: 0 };
/** What most messages have none of. @type {import("../../client/frames.js").Attachment[]} */
const NO_IMAGES = [];
/** What only a reply has. @type {Pick<Item, "thought" | "calls" | "interprets" | "source" | "sourceId" | "alignment" | "cut">} */
const PLAIN = { thought: { text: "", growing: false, ms: null }, calls: [], interprets: null, source: "", sourceId: null, alignment: [], cut: false };
/** The calls of a message of the history. @type {WeakMap<Message, Call[]>} */
const keptCalls = new WeakMap();
/** The items of messages that nothing more is known of than history tells: made once. @type {WeakMap<Message, Item>} */
const keptItems = new WeakMap();

/** @param {Message} message @param {Reply | null} reply @param {Message} [source]  what it translates @returns {Item} */
function kept(message, reply, source) {
  if (reply !== null) return made(message, reply, source);
  let item = keptItems.get(message);
  // Frozen, since all arrangements to come share it.
  if (item === undefined) keptItems.set(message, (item = Object.freeze(made(message, null, source))));
  return item;
}

/** @param {Message} message @param {Reply | null} reply @param {Message} [source] @returns {Item} */
function made(message, reply, source) {
  const branches = message.siblings ?? [];
  const place = {
    messageId: message.message_id,
    siblings: branches.length > 1 ? branches : [],
    siblingCount: message.sibling_count,
    siblingIndex: message.sibling_index,
  };
  if (message.role === "user") return { ...question(message, reply), ...place };
  if (message.status === RUNNING && reply !== null) return { ...liveAnswer(reply), ...place };
  return { ...answer(message, reply, source), ...place };
}

/** @param {Message} message @param {Reply | null} reply */
function question(message, reply) {
  const key = `user:${reply === null ? message.turn_id : keyOf(reply)}`;
  const { content: text, attachments = NO_IMAGES } = message;
  return { key, role: /** @type {const} */ ("user"), text, attachments, status: "complete", reply: null, usage: null, ...PLAIN };
}

/** @param {Message} message @param {Reply | null} reply @param {Message} [source] */
function answer(message, reply, source) {
  const key = reply === null ? `assistant:${message.turn_id}` : answerKey(reply);
  const usage = message.usage ?? reply?.done?.usage ?? null;
  const ended = message.status === "complete" ? (reply?.done?.reason ?? "complete") : message.status;
  const status = reply?.state === ReplyState.CALLING ? reply.state : ended;
  const thought = { text: message.reasoning ?? "", growing: false, ms: thinkingMs(reply, usage) };
  // What history has as settled is final; of what it has as open more may have come since.
  const calls = callsOf(message).map((call) => (call.open ? (reply?.callOf(call.callId) ?? call) : call));
  const translated = {
    interprets: source?.interprets ?? reply?.interprets ?? null,
    source: source?.content ?? reply?.source ?? "",
    sourceId: source?.message_id ?? null,
    alignment: reply?.alignment ?? [],
  };
  const text = message.content;
  return { key, role: /** @type {const} */ ("assistant"), text, attachments: NO_IMAGES, status, reply, usage, thought, calls, ...translated, cut: false };
}

/** The server's own measure, where it tells one, is the same on every screen. @param {Reply | null} reply @param {Item["usage"]} usage */
function thinkingMs(reply, usage) {
  return usage?.reasoning_ms ?? reply?.thoughts.ms ?? null;
}

/** @param {Message} message */
function callsOf(message) {
  let calls = keptCalls.get(message);
  if (calls === undefined) keptCalls.set(message, (calls = (message.calls ?? []).map((call) => new Call(call))));
  return calls;
}

/** @param {Reply} reply @returns {Item[]} */
function liveQuestion(reply) {
  if (reply.content === null || reply.interprets !== null) return [];
  const { content: text, attachments, state: status, messageId } = reply;
  return [{ key: `user:${keyOf(reply)}`, role: "user", text, attachments, status, messageId, ...ALONE, reply, usage: null, ...PLAIN }];
}

/** @param {Reply} reply @returns {Item} */
function liveAnswer(reply) {
  const status = reply.state === ReplyState.WITHDRAWN ? "lost" : liveStatus(reply);
  const messageId = reply.done?.message_id ?? null;
  const usage = reply.done?.usage ?? null;
  const thought = { text: reply.thoughts.text, growing: reply.thoughts.growing, ms: thinkingMs(reply, usage) };
  const { calls, visible: text, interprets, source, alignment } = reply;
  const translated = { interprets, source, sourceId: interprets === null ? null : reply.messageId, alignment };
  const role = /** @type {const} */ ("assistant");
  return { key: answerKey(reply), role, text, attachments: NO_IMAGES, status, messageId, ...ALONE, reply, usage, thought, calls, ...translated, cut: false };
}

/** @param {Reply} reply */
function liveStatus({ state, done }) {
  return state === ReplyState.CALLING ? state : (done?.reason ?? state);
}
