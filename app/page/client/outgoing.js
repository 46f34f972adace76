import { ChatError } from "./errors.js";
import { randomId } from "./identity.js";
import { Reply } from "./reply.js";

/** Seconds that the server waits for this client before it stops a reply. A reload takes less, a ride in a lift about as long. */
export const GRACE_S = 20;
const KEY = "midstream.unanswered";

/**
 * @typedef {object} MessageOptions
 * @property {string} [conversationId]              the first message makes it; "default" without one
 * @property {"reject" | "enqueue" | "interrupt" | "rollback"} [onBusy]  what happens to a reply that still runs there
 * @property {number} [seenOff]                     how many code points of that reply were seen when it is interrupted; it shows
 *   and keeps no more. Without it: all that has come
 * @property {import("./frames.js").Params} [params]  how the reply is made
 * @property {import("./frames.js").OfferedTool[]} [tools]  what the model may call; for clients that name the feature `tools`
 * @property {import("./frames.js").Attachment[]} [attachments]  uploaded images that the message shows (images.js)
 * @property {string} [toolChoice]                  `auto`, `none`, `required`, or the name of the tool that must be called
 */

/** @typedef {{type: string, conversation_id: string, client_msg_id?: string} & Record<string, any>} Frame */

/**
 * What the server has not answered yet: messages of this client until they are accepted, each under one id, as often as
 * needed, and stops. Both outlive a reload.
 */
export class Outgoing {
  /** @type {Set<Frame>} Stops from before a reload. */ #stops = new Set();
  #live;
  #link;
  #ask;
  #maxBytes;
  #storage;
  #restored = false;
  /** Stands for what was kept last. */
  #kept = "";

  /**
   * @param {object} parts
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {import("./link.js").Link} parts.link
   * @param {(frame: Frame) => Promise<any>} parts.ask  rejects with ChatError
   * @param {() => number | undefined} parts.maxBytes   the most bytes of a frame; undefined before it is known
   * @param {Storage | null} parts.storage              one that belongs to the tab: another tab must not send them, too
   */
  constructor({ live, link, ask, maxBytes, storage }) {
    this.#live = live;
    this.#link = link;
    this.#ask = ask;
    this.#maxBytes = maxBytes;
    this.#storage = storage;
  }

  /** The conversations in which something waits for an answer. */
  get conversations() {
    const unanswered = this.#live.unfinished.map(({ reply }) => reply.conversationId);
    return [...unanswered, ...[...this.#stops].map((stop) => stop.conversation_id)];
  }

  /**
   * Asks for a reply by `send`, `edit`, `regenerate`, `continue` or `interpret.start`, whose own fields are given.
   * @param {{type: string, content?: string, message_id?: string} & Record<string, unknown>} fields
   * @param {MessageOptions} options
   */
  begin(fields, { conversationId = "default", onBusy = "reject", seenOff, params, tools, toolChoice, attachments = [] }) {
    this.restore(); // A message that is kept takes the place of what was kept before the reload.
    const interrupts = onBusy === "interrupt" ? this.#live.interrupt(conversationId, seenOff) : null;
    const seen = interrupts && { seen_off: interrupts.visibleChars, seen_turn_id: interrupts.turnId ?? undefined };
    const how = { on_busy: onBusy, ...seen, grace_s: GRACE_S, params, tools, tool_choice: toolChoice };
    const shown = attachments.length === 0 ? {} : { attachments: attachments.map((one) => one.id) };
    const frame = { ...fields, ...shown, client_msg_id: randomId(), conversation_id: conversationId, ...how };
    const reply = this.#add(frame, attachments, interrupts);
    this.#transmit(reply, frame);
    return reply;
  }

  /**
   * @param {Frame & {client_msg_id: string}} frame
   * @param {import("./frames.js").Attachment[]} attachments
   * @param {Reply | null} interrupts
   */
  #add(frame, attachments, interrupts) {
    const { type, client_msg_id: id, content = null, message_id: replaces = null } = frame;
    const reply = new Reply(frame.conversation_id);
    const continues = type === "continue" ? replaces : null;
    Object.assign(reply, { own: true, content, replaces, continues, clientMsgId: id, exchangeId: id, attachments, interrupts });
    this.#live.add({ reply, frame });
    return reply;
  }

  /**
   * Sends messages that wait for a connection, and those that may have been lost with the last one. Accepted messages are
   * sent again only if their events do not come by themselves.
   * @param {string} conversationId
   * @param {{acceptedToo: boolean}} options
   */
  sendMessages(conversationId, { acceptedToo }) {
    for (const { reply, frame } of this.#live.unfinished) {
      const due = acceptedToo || reply.turnId === null;
      if (reply.conversationId === conversationId && due) this.#transmit(reply, frame);
    }
  }

  /**
   * Sends a frame. The server closes the connection for a frame above its limit, so such a frame is refused here.
   * @param {Reply} reply
   * @param {Record<string, unknown>} frame
   */
  #transmit(reply, frame) {
    const limit = this.#maxBytes();
    if (!this.#link.connected || limit === undefined) return;
    if (new TextEncoder().encode(JSON.stringify(frame)).length > limit) {
      this.#live.refuse(reply, new ChatError("content_too_long", `The message is longer than ${limit} bytes.`));
      return;
    }
    reply.sent = true;
    this.#link.send(frame);
  }

  /**
   * Sends the stops of a conversation on a new connection. Returns false if that is lost again.
   * @param {string} conversationId
   */
  async sendStops(conversationId) {
    for (const stop of this.#stopsIn(conversationId)) {
      try {
        await this.#ask(stop);
      } catch (error) {
        if (!(error instanceof ChatError)) throw error;
        if (error.lost) return false;
      }
      this.#stops.delete(stop);
    }
    return true;
  }

  /** Forgets the stops of a conversation: it is gone, or all its replies are stopped. @param {string} conversationId */
  forgetStops(conversationId) {
    for (const stop of this.#stopsIn(conversationId)) this.#stops.delete(stop);
  }

  /** @param {string} conversationId */
  #stopsIn(conversationId) {
    return [...this.#stops].filter((stop) => stop.conversation_id === conversationId);
  }

  /** Takes messages and stops from before a reload, once. They are sent on the next connection. */
  restore() {
    if (this.#restored) return;
    this.#restored = true;
    const { messages, stops } = Object(parsed(this.#storage?.getItem(KEY) ?? "null"));
    this.#stops = new Set(listOf(stops).filter(isRequest));
    for (const { frame, attachments } of listOf(messages).filter(isMessage)) this.#add(frame, attachments, null);
  }

  /** Keeps what is not answered. Call it on every change of a reply; it writes only if something was asked or answered. */
  keep() {
    const stops = [...this.#stops, ...this.#live.stopping.map(stopOf)];
    const stopped = new Set(stops.map((stop) => stop.client_msg_id));
    // What is translated live grows while it is spoken or typed: it can't be begun again from here.
    const waits = (/** @type {import("./live-replies.js").Unfinished} */ { reply, frame }) =>
      reply.turnId === null && !stopped.has(frame.client_msg_id) && frame.type !== "interpret.start";
    const messages = this.#live.unfinished.filter(waits).map(({ reply: { attachments }, frame }) => ({ frame, attachments }));
    const kept = JSON.stringify([messages.map(({ frame }) => frame.client_msg_id), stops]);
    if (kept === this.#kept) return;
    this.#kept = kept;
    if (messages.length + stops.length === 0) return this.#storage?.removeItem(KEY);
    try {
      this.#storage?.setItem(KEY, JSON.stringify({ messages, stops }));
    } catch (error) {
      // The browser has no room left. They are sent as long as the page is open.
      if (!(error instanceof DOMException)) throw error;
    }
  }

  /** Forgets what was kept, and keeps nothing from now on. */
  forget() {
    this.#storage?.removeItem(KEY);
    this.#storage = null;
  }
}

/** The frame that stops a reply where it is shown now. @param {Reply} reply @returns {Frame} */
function stopOf({ conversationId, turnId, exchangeId, visibleChars }) {
  const named = { turn_id: turnId ?? undefined, client_msg_id: exchangeId ?? undefined };
  return { type: "cancel", conversation_id: conversationId, ...named, seen_off: visibleChars };
}

/** @param {string} kept @returns {unknown} */
function parsed(kept) {
  try {
    return JSON.parse(kept);
  } catch (error) {
    if (error instanceof SyntaxError) return null; // Another program wrote it.
    throw error;
  }
}

/** @param {any} value @returns {any[]} */
function listOf(value) {
  return Array.isArray(value) ? value : [];
}

/** Whether it can be sent: another program may have written it. @param {any} frame */
function isRequest(frame) {
  return typeof frame?.type === "string" && typeof frame.conversation_id === "string";
}

/** @param {any} message */
function isMessage(message) {
  return isRequest(message?.frame) && typeof message.frame.client_msg_id === "string" && Array.isArray(message.attachments);
}
