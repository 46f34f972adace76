/**
 * The reference client of Midstream, for browsers and Node. It speaks the protocol midstream.v1 (PROTOCOL.md) and nothing else,
 * and it has no DOM inside: whatever shows a chat can stand on it.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage });
 *     client.addEventListener("reply", ({ detail: { reply } }) => show(reply.visible));
 *     client.connect();
 *     const reply = client.send({ conversationId: "greetings", content: "Hello!" });
 *     await client.cancel({ conversationId: "greetings", seenOff: charactersOnScreen });
 *
 * It keeps a connection, notices its silence (liveness.js), and tries again with growing, random pauses after a loss (link.js); comes back to what was missed
 * by `resume`, else by history (follower.js, comeback.js); sends a message under one id until it was accepted, so that
 * the server makes one reply of it (outgoing.js); and checks every event's number, every piece's offset and every end's
 * length and hash, so that what is shown never differs in silence from what the server keeps (turn-events.js, reply.js).
 *
 * Events (each a CustomEvent; `detail` as written):
 *  - `connection` LinkStatus           the state of the connection changed, or its other side fell quiet
 *  - `ready` Ready                     a connection stands; limits and the model's name
 *  - `reply` {reply}                   a Reply changed: sent, accepted, grew, called, ended, was refused or withdrawn
 *  - `call` {reply, call}              a reply called a tool, or what became of that call; a `reply` event follows it
 *  - `history` History                 what an opened conversation's active branch is now: after `open`, a reconnect, a
 *                                      hole, a new branch, or where another device changed it
 *  - `missing` {conversationId}        the opened conversation does not exist
 *  - `removed` {conversationId, turnId}  an exchange was rolled back
 *  - `speech` frame                    of a spoken conversation, for a client that names the feature `audio`: `audio.reply`,
 *                                      `audio.stopped`, `speech`, `heard` and `marks`, as the protocol has them
 *  - `sound` Sound                     the sound of a reply (sound.js)
 *  - `title` {conversationId, title}   the model wrote a title, for a client that names the feature `titles`
 *  - `deleted` {conversationId}        a conversation is gone
 *  - `unauthenticated` {message}       a key is asked for, or the one given is not, or no longer, taken
 *  - `limits` LimitsLeft               how much of a limit is left
 *  - `goaway` Goaway                   the server is about to close the connection; the client will connect again
 *  - `error` ChatError                 a failure that belongs to no request
 *
 * A Reply (reply.js) is a live object: `state`, `text`, `visible`, `done`, `error` and its timing are read from it. For a
 * client that names the features, `thoughts` has what the model thinks aloud, and `calls` what it calls (call.js).
 * A reply that called is `calling` until its calls are settled; the one that `follows` it is a Reply of its own.
 */
import { Call } from "./call.js";
import { ChatError } from "./errors.js";
import { LinkState } from "./link.js";
import { Reply } from "./reply.js";
export { Call, ChatError, LinkState, Reply };
export { ReplyState } from "./reply.js";
export type MessageOptions = import("./outgoing.js").MessageOptions;
/** @typedef {import("./outgoing.js").MessageOptions} MessageOptions */
export declare class ChatClient extends EventTarget {
    #private;
    /** @type {import("./frames.js").Ready | null} What the server said of itself at the last connect. */
    ready: import("./frames.js").Ready | null;
    /**
     * @param {object} options
     * @param {string} options.url               ws: or wss:, ending in /v1/ws
     * @param {Storage | null} [options.storage] where the client id is kept; without one, a new id at each visit
     * @param {import("./credentials.js").Credentials} [options.credentials]  where the server asks for a key
     * @param {string[]} [options.features]      what else it understands: `reasoning`, `tools`, `continue`, `titles`, `interpret`, `audio`
     * @param {import("./link.js").SocketClass} [options.Socket]  where there is no `WebSocket` of the platform's: `ws` in Node 20
     * @param {import("./backoff.js").Backoff} [options.backoff]
     */
    constructor({ url, storage, credentials, features, Socket, backoff }: {
        url: string;
        storage?: Storage | null;
        credentials?: import("./credentials.js").Credentials;
        features?: string[];
        Socket?: import("./link.js").SocketClass;
        backoff?: import("./backoff.js").Backoff;
    });
    /** The state of the connection. */
    get connection(): import("./link.js").LinkStatus;
    /** Connects, or tries again at once where an attempt is being waited for. */
    connect(): void;
    /** Finds out now whether the connection still stands: after sleep, or where the network is said to be gone. */
    probe(): void;
    /** Closes the connection; what still runs for this client alone is cancelled by the server. */
    close(): void;
    /** Takes the key that is kept now into use: on the connection that stands, else on a new one. Raises ChatError. */
    authenticate(): Promise<void>;
    /**
     * Sends a message, at once or as soon as a connection stands. The reply is told about by `reply` events.
     * @param {MessageOptions & {content: string}} options
     * @returns {Reply}
     */
    send({ content, ...options }: MessageOptions & {
        content: string;
    }): Reply;
    /**
     * Says a message of the user otherwise: a new branch beside it, which is kept.
     * @param {MessageOptions & {messageId: string, content: string}} options
     * @returns {Reply}
     */
    edit({ messageId, content, ...options }: MessageOptions & {
        messageId: string;
        content: string;
    }): Reply;
    /**
     * Has another reply made to the message that a reply answers; the one there is kept beside it.
     * @param {MessageOptions & {messageId: string}} options
     * @returns {Reply}
     */
    regenerate({ messageId, ...options }: MessageOptions & {
        messageId: string;
    }): Reply;
    /**
     * Has a reply go on that was stopped or cut: the same message, in a new turn.
     * @param {MessageOptions & {messageId: string}} options
     * @returns {Reply}
     */
    continueReply({ messageId, ...options }: MessageOptions & {
        messageId: string;
    }): Reply;
    /**
     * Begins a live translation into a language (`zh`): `grow` lets its source grow, the reply is the translation. For
     * a client that names the feature `interpret`.
     * @param {Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {target: string, source?: string,
     *   told?: "agreement" | "wait" | "segment", wait?: number, model?: string}} options
     * @returns {Reply}
     */
    interpret({ target, source, told, wait, model, ...options }: Omit<MessageOptions, "params" | "tools" | "toolChoice"> & {
        target: string;
        source?: string;
        told?: "agreement" | "wait" | "segment";
        wait?: number;
        model?: string;
    }): Reply;
    /**
     * More of what is translated: `text` stands behind `off` code points. What comes twice is taken once. Raises ChatError.
     * @param {{conversationId?: string, off: number, text: string, final?: boolean}} growth
     * @returns {Promise<import("./frames.js").SourceAck>}
     */
    grow({ conversationId, off, text, final }: {
        conversationId?: string;
        off: number;
        text: string;
        final?: boolean;
    }): Promise<import("./frames.js").SourceAck>;
    /**
     * Begins to listen in a conversation: what is said becomes its messages, and their replies are spoken where `output` is
     * given. Comes again after a lost connection. Raises ChatError.
     * @param {Omit<import("./frames.js").AudioStartRequest, "type" | "ref" | "conversation_id"> & {conversationId?: string}} options
     * @returns {Promise<import("./frames.js").AudioStarted>}
     */
    startAudio({ conversationId, ...options }: Omit<import("./frames.js").AudioStartRequest, "type" | "ref" | "conversation_id"> & {
        conversationId?: string;
    }): Promise<import("./frames.js").AudioStarted>;
    /** Listens no longer; a reply that is being spoken ends at what was heard. Raises ChatError. @param {string} [conversationId] */
    stopAudio(conversationId?: string): Promise<void>;
    /** What was said so far is the message. @param {string} [conversationId] */
    commitAudio(conversationId?: string): void;
    /** How much of a reply's sound was played, every 100 to 250 ms. @param {{conversationId?: string, turnId: string, audioMs: number}} told */
    played({ conversationId, turnId, audioMs }: {
        conversationId?: string;
        turnId: string;
        audioMs: number;
    }): void;
    /** What the microphone heard. False where no connection stands. @param {import("./sound.js").Sound} sound */
    sendSound(sound: import("./sound.js").Sound): boolean;
    /**
     * Stops what runs in a conversation. Nothing past `seenOff` code points is shown, nor kept, from now on. Where the server
     * refuses that the replies go on. Raises ChatError.
     * @param {{conversationId?: string, seenOff?: number, mode?: "keep" | "rollback"}} [options]
     * @returns {Promise<import("./frames.js").Cancelled | null>} null where no connection stood: it is asked for on the next one
     */
    cancel({ conversationId, seenOff, mode }?: {
        conversationId?: string;
        seenOff?: number;
        mode?: "keep" | "rollback";
    }): Promise<import("./frames.js").Cancelled | null>;
    /**
     * Brings what came of a call that a client runs: `content`, or else an `error`. Raises ChatError.
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
     * Allows or denies a call that asks for it. What is allowed are the arguments that were looked at, or the `args` that
     * are to be run with instead. A question of a running call (`call.question`) is answered alike: `argsSha256` is the
     * question's `sha256`, and `args` the answer, the text of a JSON object. Raises ChatError.
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
    /** The replies of a conversation that something is still to come of, oldest first. @param {string} conversationId */
    repliesOf(conversationId: string): Reply[];
    /**
     * Follows a conversation: its newest history comes as a `history` event, now and whenever it has to be read anew.
     * @param {string} conversationId
     */
    open(conversationId: string): void;
    /** Stops following a conversation after reconnects. @param {string} conversationId */
    leave(conversationId: string): void;
    /**
     * Makes the branch with this message the active one, here and on every device; it comes as a `history` event.
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
     * Looks for words in the titles and messages of the owner's conversations, newest first. Raises ChatError.
     * @param {{query: string, before?: string, limit?: number}} options  `before`: the `next` of the answer before
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
     * @returns {Promise<import("./frames.js").ConversationSummary>} its row, as the list has it now
     */
    rename({ conversationId, title }: {
        conversationId: string;
        title: string;
    }): Promise<import("./frames.js").ConversationSummary>;
    /**
     * Lets whoever has the link read what a conversation says now; asked again, what it says then. Raises ChatError.
     * @param {string} conversationId
     * @returns {Promise<string>} the id of the link: the page shows it under `/s/ID`, programs read `/v1/shares/ID`
     */
    share(conversationId: string): Promise<string>;
    /** Has the link of a conversation lead nowhere. Raises ChatError. @param {string} conversationId */
    unshare(conversationId: string): Promise<void>;
    /**
     * Deletes a conversation with all that is kept of it. Raises ChatError.
     * @param {string} conversationId
     * @returns {Promise<import("./frames.js").Deleted>}
     */
    delete(conversationId: string): Promise<import("./frames.js").Deleted>;
    /** The time of a round trip to the server, in milliseconds. Raises ChatError. */
    ping(): Promise<number>;
}
