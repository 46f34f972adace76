/** Binary frames of sound: a header of 8 bytes, big-endian, then samples of 16 bits, little-endian. Pure. */
export type Sound = {
    /**
     * `audio.started.stream` for the microphone, `audio.reply.stream` for a reply
     */
    stream: number;
    /**
     * from 1
     */
    seq: number;
    /**
     * one channel
     */
    samples: Int16Array;
    /**
     * whether the stream ends here
     */
    last?: boolean;
};
/**
 * @typedef {object} Sound
 * @property {number} stream       `audio.started.stream` for the microphone, `audio.reply.stream` for a reply
 * @property {number} seq          from 1
 * @property {Int16Array} samples  one channel
 * @property {boolean} [last]      whether the stream ends here
 */
/** The frame of a sound. @param {Sound} sound */
export declare function frameOfSound({ stream, seq, samples, last }: Sound): ArrayBuffer;
/** The sound in a frame; null if the frame is of a kind that this client does not know. @param {ArrayBuffer} frame @returns {Sound | null} */
export declare function soundOfFrame(frame: ArrayBuffer): Sound | null;
