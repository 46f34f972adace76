import { Call } from "../../client/call.js";
import { ReplyState } from "../../client/reply.js";

/** @typedef {import("../../client/reply.js").Reply} Reply */
/** @typedef {import("../../client/frames.js").Message} Message */
/**
 * One message as it is shown.
 * @typedef {object} Item
 * @property {string} key              the same for as long as the message is shown
 * @property {"user" | "assistant"} role
 * @property {string} text
 * @property {import("../../client/frames.js").Attachment[]} attachments  the images that a message of the user shows
 * @property {string} status           a ReplyState while it is under way; then "complete", the reason of its end, or "lost"
 * @property {string | null} messageId null until the server gave one
 * @property {string[]} siblings       the message ids of its branches, its own too; the nearest of many; empty if it has no other
 * @property {number} siblingCount     how many branches there are
 * @property {number} siblingIndex     how many branches come before this one
 * @property {Reply | null} reply      if it is known live: for its timing and its failure
 * @property {import("../../client/frames.js").Usage | null} usage
 * @property {Thought} thought         the model's reasoning beside the text
 * @property {Call[]} calls            its calls
 * @property {import("../../client/frames.js").Languages | null} interprets  the languages of a live translation, which is shown beside its source
 * @property {string} source           the source of a live translation; else empty
 * @property {string | null} sourceId  the message that has the source
 * @property {Reply["alignment"]} alignment  which parts of it translate which parts of the source, as far as that was seen
 * @property {boolean} cut             whether it was cut and nothing follows it, so it can be continued
 */
/** @typedef {{text: string, growing: boolean, ms: number | null}} Thought  `ms`: how long it took; null if that is unknown */

/** Ends of replies that may have more to say. @type {Set<string>} */
const CUT = new Set(["cancelled", "interrupted", "length", "timeout", "error"]);

/** The status of an unfinished reply in the history; its live Reply knows more. */
const RUNNING = "running";

/**
 * The history first, each message with what is known live of its turn; then the replies that the history does not have
 * yet. A reply that begins a branch replaces what was shown from there on.
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

/** What decides whether a reply has items, and where they are. @param {Reply} reply */
export function standing({ state, turnId, messageId, parentId, follows, continues, branches, replaces, done }) {
  return [state, turnId, messageId, parentId, follows, continues, branches, replaces, done?.message_id].join(" ");
}

/** The sources of live translations, which are shown beside their translation, not alone. @param {Message[]} messages @returns {Map<string, Message>} */
function sourcesOf(messages) {
  const parentIds = new Set(messages.filter(({ role }) => role === "assistant").map(({ parent_id: id }) => id));
  const translated = messages.filter(({ role, interprets, message_id: id }) => role === "user" && interprets && parentIds.has(id));
  return new Map(translated.map((message) => [message.message_id, message]));
}

/** The key of the item that shows a reply's text. @param {Reply} reply */
export function answerKey(reply) {
  return `assistant:${keyOf(reply)}`;
}

/** @param {Item} item */
function isCut({ role, status, messageId, text, thought, calls }) {
  return role === "assistant" && CUT.has(status) && messageId !== null && text + thought.text !== "" && calls.length === 0;
}

/**
 * @param {Item[]} items
 * @param {Reply} reply
 * @param {Set<string>} named  the ids of all messages among `items`: others need not be looked for
 */
function place(items, reply, named) {
  if (reply.continues !== null) return goOn(items, reply);
  if (isUnsent(reply.state, reply.turnId)) return items.push(...liveQuestion(reply));
  // The message that it answers, or the reply whose calls it follows.
  const isQuestion = (/** @type {Item} */ { role, messageId }) => messageId === reply.messageId && (role === "user" || reply.follows !== null);
  const questionIndex = named.has(reply.messageId ?? "") ? items.findLastIndex(isQuestion) : -1;
  // Messages that were sent meanwhile may wait behind the calls that it follows.
  if (questionIndex !== -1 && reply.follows !== null && !reply.branches) return items.splice(questionIndex + 1, 0, liveAnswer(reply));
  const from = questionIndex === -1 ? start(items, reply, named) : questionIndex + 1;
  // A message that the server did not take belongs to no branch. It stays until it is sent again.
  const unsent = items.splice(from).filter(({ role, status, messageId }) => role === "user" && isUnsent(status, messageId));
  return items.push(...unsent, ...(questionIndex === -1 ? liveQuestion(reply) : []), liveAnswer(reply));
}

/**
 * Shows a continued reply in its place. Until the history tells the text that it continues, the known text is shown.
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
 * @param {string} state
 * @param {string | null} id  null if the server never named it
 */
function isUnsent(state, id) {
  return state === ReplyState.REFUSED || (state === ReplyState.WITHDRAWN && id === null);
}

/**
 * Where an exchange begins that the history does not have.
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

/** What most messages have. @type {Omit<Item, "key">} */
export const PLAIN = {
  ...{ role: "user", text: "", attachments: [], status: "complete", messageId: null, siblings: [], siblingCount: 1, siblingIndex: 0 },
  ...{ reply: null, usage: null, thought: { text: "", growing: false, ms: null }, calls: [], cut: false },
  ...{ interprets: null, source: "", sourceId: null, alignment: [] },
};
/** The calls of a message of the history. @type {WeakMap<Message, Call[]>} */
const keptCalls = new WeakMap();
/** The items of messages of which only the history is known. They are made once. @type {WeakMap<Message, Item>} */
const keptItems = new WeakMap();

/** @param {Message} message @param {Reply | null} reply @param {Message} [source]  what it translates @returns {Item} */
export function kept(message, reply, source) {
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
  const { content: text, attachments = PLAIN.attachments } = message;
  return { ...PLAIN, key, text, attachments };
}

/** @param {Message} message @param {Reply | null} reply @param {Message} [source] */
function answer(message, reply, source) {
  const key = reply === null ? `assistant:${message.turn_id}` : answerKey(reply);
  const usage = message.usage ?? reply?.done?.usage ?? null;
  const ended = message.status === "complete" ? (reply?.done?.reason ?? "complete") : message.status;
  const status = reply?.state === ReplyState.CALLING ? reply.state : ended;
  const thought = { text: message.reasoning ?? "", growing: false, ms: usage?.reasoning_ms ?? null };
  // Calls that are settled in the history are final. More may be known of its open ones.
  const calls = callsOf(message).map((call) => (call.open ? (reply?.callOf(call.callId) ?? call) : call));
  const translated = {
    interprets: source?.interprets ?? reply?.interprets ?? null,
    source: source?.content ?? reply?.source ?? "",
    sourceId: source?.message_id ?? null,
    alignment: reply?.alignment ?? [],
  };
  return { ...PLAIN, key, role: /** @type {const} */ ("assistant"), text: message.content, status, reply, usage, thought, calls, ...translated };
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
  return [{ ...PLAIN, key: `user:${keyOf(reply)}`, text, attachments, status, messageId, reply }];
}

/** @param {Reply} reply @returns {Item} */
export function liveAnswer(reply) {
  const status = liveStatus(reply);
  const messageId = reply.done?.message_id ?? null;
  const usage = reply.done?.usage ?? null;
  const thought = { text: reply.reasoning.text, growing: reply.reasoning.growing, ms: usage?.reasoning_ms ?? null };
  const { calls, visible: text, interprets, source, alignment } = reply;
  const translated = { interprets, source, sourceId: interprets === null ? null : reply.messageId, alignment };
  return { ...PLAIN, key: answerKey(reply), role: "assistant", text, status, messageId, reply, usage, thought, calls, ...translated };
}

/** @param {Reply} reply */
function liveStatus({ state, done }) {
  if (state === ReplyState.WITHDRAWN) return "lost";
  return state === ReplyState.CALLING ? state : (done?.reason ?? state);
}
