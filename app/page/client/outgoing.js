import { ChatError } from "./errors.js";
import { randomId } from "./identity.js";
import { Reply } from "./reply.js";

/** Seconds that the server waits for this client before it stops a reply. A reload takes less, a ride in a lift about as long. */
export const GRACE_S = 20;

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

/** The messages of this client until the server has accepted them. Each is sent under one id, as often as needed. */
export class Outgoing {
  #live;
  #link;
  #maxBytes;

  /**
   * @param {object} parts
   * @param {import("./live-replies.js").LiveReplies} parts.live
   * @param {import("./link.js").Link} parts.link
   * @param {() => number | undefined} parts.maxBytes   the most bytes of a frame; undefined before it is known
   */
  constructor({ live, link, maxBytes }) {
    this.#live = live;
    this.#link = link;
    this.#maxBytes = maxBytes;
  }

  /**
   * Asks for a reply by `send`, `edit`, `regenerate`, `continue` or `interpret.start`, whose own fields are given.
   * @param {{type: string, content?: string, message_id?: string} & Record<string, unknown>} fields
   * @param {MessageOptions} options
   */
  begin(fields, { conversationId = "default", onBusy = "reject", seenOff, params, tools, toolChoice, attachments = [] }) {
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
   * Takes a message from before a reload; `again` sends it.
   * @param {{type: string, client_msg_id: string, conversation_id: string} & Record<string, any>} frame
   * @param {import("./frames.js").Attachment[]} attachments
   */
  restore(frame, attachments) {
    this.#add(frame, attachments, null);
  }

  /**
   * @param {{type: string, client_msg_id: string, conversation_id: string, content?: string, message_id?: string} & Record<string, unknown>} frame
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
  again(conversationId, { acceptedToo }) {
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
    reply.sentAt ??= performance.now();
    this.#link.send(frame);
  }
}
