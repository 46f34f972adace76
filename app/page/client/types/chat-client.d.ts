/**
 * The reference client of Midstream, for browsers and Node. It speaks the protocol midstream.v1 (PROTOCOL.md) and nothing
 * else. It uses no DOM, so any interface can be built on it.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage });
 *     client.addEventListener("reply", ({ detail: { reply } }) => show(reply.visible));
 *     client.connect();
 *     const reply = client.send({ conversationId: "greetings", content: "Hello!" });
 *     await client.cancel({ conversationId: "greetings", seenOff: charactersOnScreen });
 *
 * It keeps a connection, notices its silence, and reconnects after growing, random pauses (link.js). It gets missed events by
 * `resume`, else reads the history. It sends a message under one id until it is accepted, so the server makes one reply to it
 * (outgoing.js). It checks every event's number, every delta's offset, and the length and hash of every reply. So what is shown
 * never differs unnoticed from what the server keeps (reply.js).
 *
 * Events (each a CustomEvent; `detail` as written):
 *  - `connection` LinkStatus           the state of the connection changed, or the server fell silent
 *  - `ready` Ready                     the connection is open; limits and the model's name
 *  - `reply` {reply}                   a Reply was sent, accepted, refused or withdrawn; or it grew, called tools or ended
 *  - `call` {reply, call}              a reply called a tool, or the call changed; a `reply` event follows
 *  - `history` History                 the active branch of an opened conversation: after `open`, a reconnect, missed
 *                                      events, a new branch, or a change by another device
 *  - `missing` {conversationId}        the opened conversation does not exist
 *  - `removed` {conversationId, turnId}  an exchange was rolled back
 *  - `speech` frame                    in a spoken conversation, for a client that names the feature `audio`: the frames
 *                                      `audio.reply`, `audio.stopped`, `speech`, `transcript` and `marks` of the protocol
 *  - `sound` Sound                     the sound of a reply (sound.js)
 *  - `title` {conversationId, title}   the model wrote a title, for a client that names the feature `titles`
 *  - `deleted` {conversationId}        a conversation is gone
 *  - `unauthenticated` {message}       the server asks for a key, or does not accept the one it got
 *  - `limits` LimitsLeft               a limit is nearly used up
 *  - `goaway` Goaway                   the server will close the connection soon; the client reconnects
 *  - `error` ChatError                 a failure of no particular request
 *
 * A Reply (reply.js) is a live object: read `state`, `text`, `visible`, `done` and `error`. With the features
 * `reasoning` and `tools`, `reasoning` has the model's reasoning, and `calls` its calls (call.js). A reply with calls is
 * `calling` until they are settled. The reply that `follows` is a Reply of its own.
 */
import { Call } from "./call.js";
import { ChatError } from "./errors.js";
import { LinkState } from "./link.js";
import { Reply, ReplyState } from "./reply.js";
export { Call, ChatError, LinkState, Reply, ReplyState };
export type MessageOptions = import("./outgoing.js").MessageOptions;
export declare class ChatClient extends EventTarget {
    #private;
    /** @type {import("./frames.js").Ready | null} What the server said about itself at the last connect. */
    ready: import("./frames.js").Ready | null;
    /**
     * @param {object} options
     * @param {string} options.url               ws: or wss:, ending in /v1/ws
     * @param {Storage | null} [options.storage] where the client id is kept; without one, a new id at each visit
     * @param {Storage | null} [options.session] where messages and stops that the server has not answered outlive a reload;
     *   `sessionStorage`, since another tab must not send them, too
     * @param {import("./credentials.js").Credentials} [options.credentials]  where the server asks for a key
     * @param {string[]} [options.features]      what else it understands: `reasoning`, `tools`, `continue`, `titles`, `interpret`, `audio`
     * @param {import("./link.js").SocketClass} [options.Socket]  if the platform has no `WebSocket`: `ws` in Node 20
     * @param {import("./backoff.js").Backoff} [options.backoff]
     */
    constructor({ url, storage, session, credentials, features, Socket, backoff }: {
        url: string;
        storage?: Storage | null;
        session?: Storage | null;
        credentials?: import("./credentials.js").Credentials;
        features?: string[];
        Socket?: import("./link.js").SocketClass;
        backoff?: import("./backoff.js").Backoff;
    });
    /** The state of the connection. */
    get connection(): import("./link.js").LinkStatus;
    /** Connects. If the next attempt is being waited for, it begins at once. */
    connect(): void;
    /** Checks now whether the connection still works: after sleep, or if the network seems to be gone. */
    probe(): void;
    /** Forgets the messages and stops that the server has not answered: a reload brings none back. */
    forgetUnanswered(): void;
    /** Closes the connection. The server cancels replies that run for this client only. */
    close(): void;
    /** Uses the key that is kept now: on the open connection, else on a new one. Raises ChatError. */
    authenticate(): Promise<void>;
    /**
     * Sends a message, at once or as soon as a connection is open. `reply` events tell about the reply.
     * @param {MessageOptions & {content: string}} options
     * @returns {Reply}
     */
    send({ content, ...options }: MessageOptions & {
        content: string;
    }): Reply;
    /**
     * Edits a message of the user: makes a new branch, and keeps the old one.
     * @param {MessageOptions & {messageId: string, content: string}} options
     * @returns {Reply}
     */
    edit({ messageId, content, ...options }: MessageOptions & {
        messageId: string;
        content: string;
    }): Reply;
    /**
     * Asks for another reply to the same message. The old one is kept beside it.
     * @param {MessageOptions & {messageId: string}} options
     * @returns {Reply}
     */
    regenerate({ messageId, ...options }: MessageOptions & {
        messageId: string;
    }): Reply;
    /**
     * Continues a reply that was stopped or cut: the same message grows in a new turn.
     * @param {MessageOptions & {messageId: string}} options
     * @returns {Reply}
     */
    continueReply({ messageId, ...options }: MessageOptions & {
        messageId: string;
    }): Reply;
    /**
     * Begins a live translation into a language (`zh`). `appendSource` extends its source, and the reply is the translation. For
     * clients that name the feature `interpret`.
     * @param {Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {target: string, source?: string,
     *   publishPolicy?: "agreement" | "segment", model?: string}} options
     * @returns {Reply}
     */
    interpret({ target, source, publishPolicy, model, ...options }: Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {
        target: string;
        source?: string;
        publishPolicy?: "agreement" | "segment";
        model?: string;
    }): Reply;
    /**
     * Extends a source: `text` follows its first `off` code points. What comes twice is taken once. Raises ChatError.
     * @param {{conversationId?: string, off: number, text: string, final?: boolean}} growth
     * @returns {Promise<import("./frames.js").SourceAck>}
     */
    appendSource({ conversationId, off, text, final }: {
        conversationId?: string;
        off: number;
        text: string;
        final?: boolean;
    }): Promise<import("./frames.js").SourceAck>;
    /**
     * Begins to listen in a conversation. What is said becomes its messages. If `output` is given, replies are spoken. Call it
     * again after a lost connection. Raises ChatError.
     * @param {Omit<import("./frames.js").AudioStartRequest, "type" | "ref" | "conversation_id"> & {conversationId?: string}} options
     * @returns {Promise<import("./frames.js").AudioStarted>}
     */
    startAudio({ conversationId, ...options }: Omit<import("./frames.js").AudioStartRequest, "type" | "ref" | "conversation_id"> & {
        conversationId?: string;
    }): Promise<import("./frames.js").AudioStarted>;
    /** Stops listening. A reply that is being spoken is cut at what was heard. Raises ChatError. @param {string} [conversationId] */
    stopAudio(conversationId?: string): Promise<void>;
    /** Ends the message at what was said so far. @param {string} [conversationId] */
    commitAudio(conversationId?: string): void;
    /** Reports how much of a reply's sound was played; call it every 100 to 250 ms. @param {{conversationId?: string, turnId: string, audioMs: number}} position */
    played({ conversationId, turnId, audioMs }: {
        conversationId?: string;
        turnId: string;
        audioMs: number;
    }): void;
    /** Sends sound of the microphone. False if no connection is open. @param {import("./sound.js").Sound} sound */
    sendAudio(sound: import("./sound.js").Sound): boolean;
    /**
     * Stops the replies of a conversation. Nothing past `seenOff` code points is shown or kept from now on. If the server
     * refuses, the replies go on. Raises ChatError.
     * @param {{conversationId?: string, seenOff?: number, mode?: "keep" | "rollback"}} [options]
     * @returns {Promise<import("./frames.js").Cancelled | null>} null if no connection is open: the next one asks
     */
    cancel({ conversationId, seenOff, mode }?: {
        conversationId?: string;
        seenOff?: number;
        mode?: "keep" | "rollback";
    }): Promise<import("./frames.js").Cancelled | null>;
    /**
     * Sends the result of a call that a client runs: `content`, or else an `error`. Raises ChatError.
     * @param {{callId: string, conversationId?: string} & ({content: string, error?: undefined} | {error: string, content?: undefined})} result
     * @returns {Promise<import("./frames.js").ToolAck>}
     */
    toolResult({ callId, conversationId, content, error }: {
        callId: string;
        conversationId?: string;
    } & ({
        content: string;
        error?: undefined;
    } | {
        error: string;
        content?: undefined;
    })): Promise<import("./frames.js").ToolAck>;
    /**
     * Allows or denies a call that asks for it. The call runs with the arguments that were shown, or with `args` instead.
     * Raises ChatError.
     * @param {{callId: string, argsSha256: string, decision: "allow" | "deny", args?: string, conversationId?: string}} decided
     * @returns {Promise<import("./frames.js").ToolAck>}
     */
    toolDecision({ callId, argsSha256, decision, args, conversationId }: {
        callId: string;
        argsSha256: string;
        decision: "allow" | "deny";
        args?: string;
        conversationId?: string;
    }): Promise<import("./frames.js").ToolAck>;
    /** The replies of a conversation that have not ended, oldest first. @param {string} conversationId */
    repliesOf(conversationId: string): Reply[];
    /**
     * Follows a conversation. Its newest history comes as a `history` event, now and whenever it is read again.
     * @param {string} conversationId
     */
    open(conversationId: string): void;
    /** Stops following a conversation; a reconnect does not ask for it any more. @param {string} conversationId */
    leave(conversationId: string): void;
    /**
     * Makes the branch of this message the active one on every device. It comes as a `history` event.
     * Raises ChatError.
     * @param {{conversationId: string, messageId: string}} options
     */
    showBranch({ conversationId, messageId }: {
        conversationId: string;
        messageId: string;
    }): Promise<void>;
    /**
     * A page of history. Raises ChatError.
     * @param {{conversationId?: string, before?: string, limit?: number}} [options]
     * @returns {Promise<import("./frames.js").History>}
     */
    history({ conversationId, before, limit }?: {
        conversationId?: string;
        before?: string;
        limit?: number;
    }): Promise<import("./frames.js").History>;
    /**
     * The owner's conversations, newest first. Raises ChatError.
     * @param {{before?: string, limit?: number}} [options]
     * @returns {Promise<import("./frames.js").Conversations>}
     */
    conversations({ before, limit }?: {
        before?: string;
        limit?: number;
    }): Promise<import("./frames.js").Conversations>;
    /**
     * Searches the titles and messages of the owner's conversations, newest first. Raises ChatError.
     * @param {{query: string, before?: string, limit?: number}} options  `before`: the `next` of the last answer
     * @returns {Promise<import("./frames.js").Found>}
     */
    search({ query, before, limit }: {
        query: string;
        before?: string;
        limit?: number;
    }): Promise<import("./frames.js").Found>;
    /**
     * Gives a conversation another title. Raises ChatError.
     * @param {{conversationId: string, title: string}} options
     * @returns {Promise<import("./frames.js").ConversationSummary>} its row in the list
     */
    rename({ conversationId, title }: {
        conversationId: string;
        title: string;
    }): Promise<import("./frames.js").ConversationSummary>;
    /**
     * Shares a conversation as it is now with everybody who has the link. Call it again to share later messages. Raises
     * ChatError.
     * @param {string} conversationId
     * @returns {Promise<string>} the id of the link: the page shows it under `/s/ID`, programs read `/v1/shares/ID`
     */
    share(conversationId: string): Promise<string>;
    /** Revokes the link of a conversation. Raises ChatError. @param {string} conversationId */
    unshare(conversationId: string): Promise<void>;
    /**
     * Deletes a conversation and all that is kept of it. Raises ChatError.
     * @param {string} conversationId
     * @returns {Promise<import("./frames.js").Deleted>}
     */
    delete(conversationId: string): Promise<import("./frames.js").Deleted>;
    /** The time of a round trip to the server, in milliseconds. Raises ChatError. */
    ping(): Promise<number>;
}
