import { t } from "../words/translate.js";

/** One channel, without the reply's echo from the loudspeaker. */
const WANTED = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
/** A level this many decibels below the loudest is shown as silence. */
const QUIET_DB = 60;
/** The most samples a second that the service takes. */
const MOST_RATE = 48_000;

/** The microphone's sound: samples of 16 bits, 20 ms at a time. */
export class Microphone {
  #stream;
  #context;

  /** @param {MediaStream} stream @param {AudioContext} context */
  constructor(stream, context) {
    this.#stream = stream;
    this.#context = context;
  }

  /**
   * Asks the user, and begins. Rejects with a DOMException; `InsecureContextError` if the page is not in a secure context.
   * @param {object} options
   * @param {number} options.rate  the wanted samples a second
   * @param {(samples: Int16Array, level: number) => void} options.onSound  `level`: 0, silence, to 1
   * @param {() => void} options.onLost  the microphone was unplugged, or the user withdrew it
   */
  static async open({ rate, onSound, onLost }) {
    if (navigator.mediaDevices?.getUserMedia === undefined) throw new DOMException("The page is not a secure context.", "InsecureContextError");
    const stream = await navigator.mediaDevices.getUserMedia({ audio: WANTED });
    const { context, source } = heardIn(stream, rate);
    const microphone = new Microphone(stream, context);
    const step = microphone.#step;
    try {
      await context.audioWorklet.addModule(import.meta.resolve("./capture-worklet.js"));
    } catch (error) {
      microphone.close();
      throw error;
    }
    const capture = new AudioWorkletNode(context, "midstream-capture", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
    capture.port.onmessage = ({ data }) => onSound(Int16Array.from(means(data, step), (sample) => Math.max(-1, Math.min(1, sample)) * 32_767), levelOf(data));
    source.connect(capture);
    for (const track of stream.getAudioTracks()) track.addEventListener("ended", onLost);
    return microphone;
  }

  /** Samples a second. */
  get rate() {
    return this.#context.sampleRate / this.#step;
  }

  /** How many of the context's samples become one. */
  get #step() {
    return Math.ceil(this.#context.sampleRate / MOST_RATE);
  }

  /** Releases the microphone: the browser no longer shows that the page listens. */
  close() {
    for (const track of this.#stream.getTracks()) track.stop();
    void this.#context.close();
  }
}

/**
 * The microphone in an audio context of the wanted rate, which resamples its sound. Firefox connects microphones only to contexts
 * of the device's own rate.
 * @param {MediaStream} stream
 * @param {number} rate
 */
function heardIn(stream, rate) {
  let context = new AudioContext({ sampleRate: rate });
  try {
    return { context, source: context.createMediaStreamSource(stream) };
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    void context.close();
    context = new AudioContext();
    return { context, source: context.createMediaStreamSource(stream) };
  }
}

/** The means of each `step` samples. @param {Float32Array} samples @param {number} step */
function means(samples, step) {
  if (step === 1) return samples;
  return Float32Array.from({ length: Math.floor(samples.length / step) }, (_, place) => {
    return samples.subarray(place * step, (place + 1) * step).reduce((sum, sample) => sum + sample, 0) / step;
  });
}

/** @param {Float32Array} samples */
function levelOf(samples) {
  const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
  return Math.max(0, Math.min(1, 1 + (10 * Math.log10(power + 1e-12)) / QUIET_DB));
}

/** Words for why there is no microphone, by the name of the browser's exception. @type {Record<string, string>} */
const WORDS = {
  NotAllowedError: t("This page may not use the microphone. Allow it beside the address of the page, then press the button again."),
  NotFoundError: t("No microphone was found. Connect one, then press the button again."),
  NotReadableError: t("The microphone can't be opened. Another program may be using it."),
  InsecureContextError: t("Browsers give the microphone only to pages that come over HTTPS, or from this device."),
};
/** Names that mean the same. @type {Record<string, string>} */
const SAME = { SecurityError: "NotAllowedError", OverconstrainedError: "NotFoundError", AbortError: "NotReadableError" };

/** Words for why there is no microphone. @param {DOMException} error */
export function wordsForTrouble({ name }) {
  return WORDS[SAME[name] ?? name] ?? WORDS.NotReadableError;
}
