/**
 * A transport for the AI SDK's `useChat`, over a `ChatClient`. All chats share one socket, which reconnects by itself.
 *
 *     const client = new ChatClient({ url: "wss://chat.example/v1/ws", storage: localStorage, features: ["reasoning", "tools"] });
 *     client.connect();
 *     const transport = new MidstreamChatTransport({ client });
 *     const chat = useChat({ id: "greetings", transport, messages: await transport.messages("greetings"), resume: true });
 *
 * A chat's id is the id of a conversation. A stop keeps the text that was received by then. Only the last message is sent,
 * since the server's history has those before it. The class has the shape of the AI SDK's `ChatTransport`, and needs none
 * of its code.
 */
export type ChatClient = import("./chat-client.js").ChatClient;
export type Reply = import("./reply.js").Reply;
export type Message = import("./frames.js").Message;
export type MessageOptions = import("./outgoing.js").MessageOptions;
export type Wishes = Pick<MessageOptions, "params" | "tools" | "toolChoice" | "onBusy">;
export type UIMessage = {
    id: string;
    role: "system" | "user" | "assistant";
    parts: any[];
};
export type UIMessageChunk = import("./ui-message-stream.js").UIMessageChunk;
export declare class MidstreamChatTransport {
    #private;
    /** A resumed stream repeats its message from the start. */
    resumeStreamIsReplay: boolean;
    /** @param {{client: ChatClient} & Wishes} options  `client`: it names the features `reasoning` and `tools` */
    constructor({ client, ...wishes }: {
        client: ChatClient;
    } & Wishes);
    /**
     * Sends a message, regenerates a reply, or sends the results of calls. The reply comes as chunks.
     * @param {{trigger: "submit-message" | "regenerate-message", chatId: string, messageId?: string | undefined, messages: UIMessage[], abortSignal?: AbortSignal | undefined, body?: object | undefined}} options  `body`: `Wishes` for this reply only
     * @returns {Promise<ReadableStream<any>>}
     */
    sendMessages({ trigger, chatId, messageId, messages, abortSignal, body }: {
        trigger: "submit-message" | "regenerate-message";
        chatId: string;
        messageId?: string | undefined;
        messages: UIMessage[];
        abortSignal?: AbortSignal | undefined;
        body?: object | undefined;
    }): Promise<ReadableStream<any>>;
    /**
     * The message that is being written in a chat, from its start; null if there is none. A message that `messages` left out is
     * streamed even if it has ended since.
     * @param {{chatId: string, abortSignal?: AbortSignal | undefined}} options
     * @returns {Promise<ReadableStream<any> | null>}
     */
    reconnectToStream({ chatId, abortSignal }: {
        chatId: string;
        abortSignal?: AbortSignal | undefined;
    }): Promise<ReadableStream<any> | null>;
    /**
     * The messages of a chat that `useChat` begins with: all but the one that is being written. Raises ChatError.
     * @param {string} chatId
     * @returns {Promise<any[]>}
     */
    messages(chatId: string): Promise<any[]>;
}
