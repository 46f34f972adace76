import { Reply } from "./reply.js";
/** Seconds that the server waits for this client to come back before it stops a reply: a reload takes less, a lift about that. */
export declare const GRACE_S = 20;
export type MessageOptions = {
    /**
     * made by the first message; "default" without one
     */
    conversationId?: string;
    /**
     * what becomes of a reply that still runs there
     */
    onBusy?: "reject" | "enqueue" | "interrupt" | "rollback";
    /**
     * how the reply is made
     */
    params?: import("./frames.js").Params;
    /**
     * what the model may call; a client that names the feature `tools` may offer
     */
    tools?: import("./frames.js").OfferedTool[];
    /**
     * images that the message shows, which were uploaded (images.js)
     */
    attachments?: import("./frames.js").Attachment[];
    /**
     * `auto`, `none`, `required`, or the name of the tool that has to be called
     */
    toolChoice?: string;
};
/**
 * @typedef {object} MessageOptions
 * @property {string} [conversationId]              made by the first message; "default" without one
 * @property {"reject" | "enqueue" | "interrupt" | "rollback"} [onBusy]  what becomes of a reply that still runs there
 * @property {import("./frames.js").Params} [params]  how the reply is made
 * @property {import("./frames.js").OfferedTool[]} [tools]  what the model may call; a client that names the feature `tools` may offer
 * @property {import("./frames.js").Attachment[]} [attachments]  images that the message shows, which were uploaded (images.js)
 * @property {string} [toolChoice]                  `auto`, `none`, `required`, or the name of the tool that has to be called
 */
/** The messages of this client, until the server has accepted them: each is sent as often as it needs, under one id. */
export declare class Outgoing {
    #private;
    /**
     * @param {object} parts
     * @param {import("./live-replies.js").LiveReplies} parts.live
     * @param {import("./link.js").Link} parts.link
     * @param {() => number | undefined} parts.maxBytes   what a frame may have; undefined before that is known
     */
    constructor({ live, link, maxBytes }: {
        live: import("./live-replies.js").LiveReplies;
        link: import("./link.js").Link;
        maxBytes: () => number | undefined;
    });
    /**
     * Makes a reply come: by `send`, `edit`, `regenerate`, `continue` or `interpret.start`, whose own fields are given.
     * @param {{type: string, content?: string, message_id?: string} & Record<string, unknown>} fields
     * @param {MessageOptions} options
     */
    begin(fields: {
        type: string;
        content?: string;
        message_id?: string;
    } & Record<string, unknown>, { conversationId, onBusy, params, tools, toolChoice, attachments }: MessageOptions): Reply;
    /**
     * Sends what waits for a connection, and what may have been lost with the last one. A message that was accepted needs
     * that only where its events do not come by themselves.
     * @param {string} conversationId
     * @param {{acceptedToo: boolean}} options
     */
    again(conversationId: string, { acceptedToo }: {
        acceptedToo: boolean;
    }): void;
}
