import { Reply } from "./reply.js";
/** Seconds that the server waits for this client before it stops a reply. A reload takes less, a ride in a lift about as long. */
export declare const GRACE_S = 20;
export type MessageOptions = {
    /**
     * the first message makes it; "default" without one
     */
    conversationId?: string;
    /**
     * what happens to a reply that still runs there
     */
    onBusy?: "reject" | "enqueue" | "interrupt" | "rollback";
    /**
     * how many code points of that reply were seen when it is interrupted; it shows
     * and keeps no more. Without it: all that has come
     */
    seenOff?: number;
    /**
     * how the reply is made
     */
    params?: import("./frames.js").Params;
    /**
     * what the model may call; for clients that name the feature `tools`
     */
    tools?: import("./frames.js").OfferedTool[];
    /**
     * uploaded images that the message shows (images.js)
     */
    attachments?: import("./frames.js").Attachment[];
    /**
     * `auto`, `none`, `required`, or the name of the tool that must be called
     */
    toolChoice?: string;
};
export type Frame = {
    type: string;
    conversation_id: string;
    client_msg_id?: string;
} & Record<string, any>;
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
export declare class Outgoing {
    #private;
    /**
     * @param {object} parts
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {import("./link.js").Link} parts.link
     * @param {(frame: Frame) => Promise<any>} parts.ask  rejects with ChatError
     * @param {() => number | undefined} parts.maxBytes   the most bytes of a frame; undefined before it is known
     * @param {Storage | null} parts.storage              one that belongs to the tab: another tab must not send them, too
     */
    constructor({ live, link, ask, maxBytes, storage }: {
        live: import("./live-replies.js").LiveReplies;
        link: import("./link.js").Link;
        ask: (frame: Frame) => Promise<any>;
        maxBytes: () => number | undefined;
        storage: Storage | null;
    });
    /** The conversations in which something waits for an answer. */
    get conversations(): string[];
    /**
     * Asks for a reply by `send`, `edit`, `regenerate`, `continue` or `interpret.start`, whose own fields are given.
     * @param {{type: string, content?: string, message_id?: string} & Record<string, unknown>} fields
     * @param {MessageOptions} options
     */
    begin(fields: {
        type: string;
        content?: string;
        message_id?: string;
    } & Record<string, unknown>, { conversationId, onBusy, seenOff, params, tools, toolChoice, attachments }: MessageOptions): Reply;
    /**
     * Sends messages that wait for a connection, and those that may have been lost with the last one. Accepted messages are
     * sent again only if their events do not come by themselves.
     * @param {string} conversationId
     * @param {{acceptedToo: boolean}} options
     */
    sendMessages(conversationId: string, { acceptedToo }: {
        acceptedToo: boolean;
    }): void;
    /**
     * Sends the stops of a conversation on a new connection. Returns false if that is lost again.
     * @param {string} conversationId
     */
    sendStops(conversationId: string): Promise<boolean>;
    /** Forgets the stops of a conversation: it is gone, or all its replies are stopped. @param {string} conversationId */
    forgetStops(conversationId: string): void;
    /** Takes messages and stops from before a reload, once. They are sent on the next connection. */
    restore(): void;
    /** Keeps what is not answered. Call it on every change of a reply; it writes only if something was asked or answered. */
    keep(): void;
    /** Forgets what was kept, and keeps nothing from now on. */
    forget(): void;
}
