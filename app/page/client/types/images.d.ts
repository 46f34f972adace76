export type Attachment = import("./frames.js").Attachment;
/** @typedef {import("./frames.js").Attachment} Attachment */
/**
 * Images of conversations, over HTTP. They are uploaded before the message that shows them (`attachments` of `send` and
 * `edit`), and can be read once a conversation shows them. Only their owner can read them.
 */
export declare class Images {
    #private;
    /**
     * @param {object} options
     * @param {string} options.url                http: or https:, ending in /v1/attachments
     * @param {() => string | null} options.clientId  as `ready` has it
     * @param {import("./credentials.js").Credentials} [options.credentials]  where the server asks for a key
     * @param {(url: string, options: RequestInit) => Promise<Response>} [options.request]
     */
    constructor({ url, clientId, credentials, request }: {
        url: string;
        clientId: () => string | null;
        credentials?: import("./credentials.js").Credentials;
        request?: (url: string, options: RequestInit) => Promise<Response>;
    });
    /** Uploads an image for a later message. Raises ChatError. @param {Blob} image @returns {Promise<Attachment>} */
    upload(image: Blob): Promise<Attachment>;
    /**
     * The bytes of an image that a conversation shows. Raises ChatError.
     * @param {string} conversationId
     * @param {string} id
     * @returns {Promise<Blob>}
     */
    read(conversationId: string, id: string): Promise<Blob>;
}
