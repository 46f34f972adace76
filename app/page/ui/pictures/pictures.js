import { ChatError } from "../../client/errors.js";
import { element } from "../elements/dom.js";
import { t } from "../words/translate.js";

/** @typedef {import("../../client/frames.js").Attachment} Attachment */

/** The box that an image is fitted into, in px. */
const BOX = { width: 320, height: 240 };
/** The most UTF-16 units of images in memory. Those that were shown last are kept. */
const KEPT_UNITS = 32_000_000;

/** The images of messages. They are read when they are first shown, and kept in memory while there is room. */
export class Pictures {
  /** @type {Map<string, string>} Their `data:` URLs, by their ids; the one that was shown last is last. */ #urls = new Map();
  #units = 0;
  #images;
  #current;

  /**
   * @param {object} parts
   * @param {import("../../client/images.js").Images} parts.images
   * @param {() => string} parts.current  the conversation that is shown
   */
  constructor({ images, current }) {
    this.#images = images;
    this.#current = current;
  }

  /** Uploads an image. Raises ChatError. @param {File} file */
  async upload(file) {
    const attachment = await this.#images.upload(file);
    this.#keep(attachment.id, await urlOf(file));
    return attachment;
  }

  /**
   * Elements that show images of the shown conversation.
   * @param {Attachment[]} attachments
   * @param {{stored: boolean}} how  whether the server has their message: it gives only images that a conversation shows
   */
  show(attachments, { stored }) {
    const conversationId = this.#current();
    return attachments.map((attachment, index) => {
      const { id } = attachment;
      const image = element("img", { alt: wordsOf(attachment, index, attachments.length), ...sizeOf(attachment) });
      const frame = element("div", { class: "picture" }, image);
      const known = this.#urls.get(id);
      if (known !== undefined) image.src = known;
      else if (stored) void this.#read({ frame, image, conversationId, id });
      return frame;
    });
  }

  /** Forgets all images. */
  clear() {
    this.#urls.clear();
    this.#units = 0;
  }

  /** @param {{frame: HTMLElement, image: HTMLImageElement, conversationId: string, id: string}} place */
  async #read(place) {
    const { frame, image, conversationId, id } = place;
    try {
      const url = await urlOf(await this.#images.read(conversationId, id));
      this.#keep(id, url);
      image.src = url;
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      const onclick = () => {
        frame.closest("article")?.focus({ preventScroll: true }); // the button leaves the page
        frame.replaceChildren(image);
        void this.#read(place);
      };
      const again = element("button", { class: "link", type: "button", text: t("Try again"), onclick });
      frame.replaceChildren(element("span", { text: `${image.alt}: ${t("This image could not be loaded.")}` }), again);
    }
  }

  /** @param {string} id @param {string} url */
  #keep(id, url) {
    this.#drop(id);
    this.#urls.set(id, url);
    this.#units += url.length;
    for (const oldest of this.#urls.keys()) {
      if (this.#units <= KEPT_UNITS || oldest === id) return;
      this.#drop(oldest);
    }
  }

  /** @param {string} id */
  #drop(id) {
    this.#units -= this.#urls.get(id)?.length ?? 0;
    this.#urls.delete(id);
  }
}

/** The description of an image for those who do not see it. Nobody has said what it shows. @param {Attachment} attachment @param {number} index @param {number} count */
function wordsOf({ width, height }, index, count) {
  if (count === 1) return t("Attached image, {width} × {height}", { width, height });
  return t("Attached image {number} of {count}, {width} × {height}", { number: index + 1, count, width, height });
}

/** The size of an image, known before its bytes come, so that nothing moves then. @param {Attachment} attachment */
function sizeOf({ width, height }) {
  const scale = Math.min(1, BOX.width / width, BOX.height / height);
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}

/** Bytes as a `data:` URL. @param {Blob} blob @returns {Promise<string>} */
function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(/** @type {string} */ (reader.result)));
    reader.addEventListener("error", () => reject(new ChatError("internal", String(reader.error))));
    reader.readAsDataURL(blob);
  });
}
