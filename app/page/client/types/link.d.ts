import { Backoff } from "./backoff.js";
export declare const SUBPROTOCOL = "midstream.v1";
/** @enum {string} */
export declare const LinkState: Readonly<{
    /** Not opened yet, or closed by `close()`. */
    CLOSED: "closed";
    /** The first attempt is under way. */
    CONNECTING: "connecting";
    /** `ready` was received: frames can be sent. */
    CONNECTED: "connected";
    /** The connection was lost; the client keeps trying. */
    RECONNECTING: "reconnecting";
    /** Several attempts have failed in a row; the client tries less often. */
    OFFLINE: "offline";
    /** The server has refused this client for good; no attempt follows. */
    REFUSED: "refused";
}>;
/** @enum {number} */
export declare const CloseCode: Readonly<{
    BYE: 1000;
    POLICY: 1008;
    UNAUTHENTICATED: 4401;
    FORBIDDEN: 4403;
}>;
export type LinkStatus = {
    /**
     * one of LinkState
     */
    state: string;
    /**
     * milliseconds until the next attempt, if one is planned
     */
    retryMs: number | null;
    /**
     * the last close code
     */
    code: number | null;
    /**
     * the server's reason with it
     */
    reason: string;
    /**
     * whether the server was pinged on an open connection and has not answered yet
     */
    quiet: boolean;
};
export type SocketLike = {
    onopen: ((event: any) => void) | null;
    onmessage: ((event: any) => void) | null;
    onclose: ((event: any) => void) | null;
    onerror: ((event: any) => void) | null;
    send: (data: any) => void;
    binaryType: any;
    close: (code?: number) => void;
};
export type SocketClass = new (url: string, subprotocol: string) => SocketLike;
/**
 * @typedef {object} LinkStatus
 * @property {string} state           one of LinkState
 * @property {number | null} retryMs  milliseconds until the next attempt, if one is planned
 * @property {number | null} code     the last close code
 * @property {string} reason          the server's reason with it
 * @property {boolean} quiet          whether the server was pinged on an open connection and has not answered yet
 */
/**
 * What is used of a WebSocket. Browsers have it, Node has it from 22 on, and the package `ws`.
 * @typedef {object} SocketLike
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onclose
 * @property {((event: any) => void) | null} onerror
 * @property {(data: any) => void} send
 * @property {any} binaryType
 * @property {(code?: number) => void} close
 *
 * @typedef {new (url: string, subprotocol: string) => SocketLike} SocketClass
 */
/**
 * One lasting link to the server: opens sockets, says hello, and connects again until it is closed. It notices silence, which
 * browsers may take minutes for: while the server owes something, in seconds. An idle connection is pinged once a heartbeat, so
 * a thousand idle pages cost next to nothing. It knows nothing of conversations. Events: `status` (detail: LinkStatus), `frame` (detail: the decoded frame), and `sound`
 * (detail: the ArrayBuffer of a binary frame).
 */
export declare class Link extends EventTarget {
    #private;
    /** @type {LinkStatus} */
    status: LinkStatus;
    /**
     * @param {object} options
     * @param {string} options.url
     * @param {() => Promise<object>} options.hello  makes the first frame of each connection; if it fails, so does the attempt
     * @param {SocketClass} [options.Socket]
     * @param {Backoff} [options.backoff]
     * @param {() => boolean} [options.awaits]  whether the server owes something: then its silence is noticed in seconds
     */
    constructor({ url, hello, Socket, backoff, awaits }: {
        url: string;
        hello: () => Promise<object>;
        Socket?: SocketClass;
        backoff?: Backoff;
        awaits?: () => boolean;
    });
    get connected(): boolean;
    /** Connects now, even while it waits for the next attempt. */
    open(): void;
    /** Closes the connection until `open` is called. */
    close(): void;
    /**
     * Sends a frame. False if no connection is open.
     * @param {object} frame
     */
    send(frame: object): boolean;
    /** Sends a binary frame. False if no connection is open. @param {ArrayBuffer} bytes */
    sendAudio(bytes: ArrayBuffer): boolean;
    /** Pings the server now, if there is reason to doubt the connection. Without an answer the connection is given up. */
    probe(): void;
}
