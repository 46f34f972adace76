/** Binary frames of sound: a head of 8 bytes, big-endian, and samples of 16 bits, little-endian. Pure. */
export type Sound = {
    /**
     * whose sound it is: `audio.started.stream` of the microphone's, `audio.reply.stream` of a reply's
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
 * @property {number} stream       whose sound it is: `audio.started.stream` of the microphone's, `audio.reply.stream` of a reply's
 * @property {number} seq          from 1
 * @property {Int16Array} samples  one channel
 * @property {boolean} [last]      whether the stream ends here
 */
/** A sound as it is sent. @param {Sound} sound */
export declare function frameOfSound({ stream, seq, samples, last }: Sound): ArrayBuffer;
/** A sound as it came; null where the frame is of another kind, which this client does not know. @param {ArrayBuffer} frame @returns {Sound | null} */
export declare function soundOfFrame(frame: ArrayBuffer): Sound | null;
