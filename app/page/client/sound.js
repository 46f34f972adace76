/** Binary frames of sound: a header of 8 bytes, big-endian, then samples of 16 bits, little-endian. Pure. */

const HEAD_BYTES = 8;
const SOUND = 1;
const LAST = 1;

/**
 * @typedef {object} Sound
 * @property {number} stream       `audio.started.stream` for the microphone, `audio.reply.stream` for a reply
 * @property {number} seq          from 1
 * @property {Int16Array} samples  one channel
 * @property {boolean} [last]      whether the stream ends here
 */

/** The frame of a sound. @param {Sound} sound */
export function frameOfSound({ stream, seq, samples, last = false }) {
  const frame = new ArrayBuffer(HEAD_BYTES + 2 * samples.length);
  const head = new DataView(frame);
  head.setUint8(0, SOUND);
  head.setUint8(1, last ? LAST : 0);
  head.setUint16(2, stream);
  head.setUint32(4, seq);
  samples.forEach((sample, index) => head.setInt16(HEAD_BYTES + 2 * index, sample, true));
  return frame;
}

/** The sound in a frame; null if the frame is of a kind that this client does not know. @param {ArrayBuffer} frame @returns {Sound | null} */
export function soundOfFrame(frame) {
  if (frame.byteLength < HEAD_BYTES) return null;
  const head = new DataView(frame);
  if (head.getUint8(0) !== SOUND) return null;
  const samples = Int16Array.from({ length: (frame.byteLength - HEAD_BYTES) >> 1 }, (_, index) => head.getInt16(HEAD_BYTES + 2 * index, true));
  return { stream: head.getUint16(2), seq: head.getUint32(4), samples, last: (head.getUint8(1) & LAST) !== 0 };
}
