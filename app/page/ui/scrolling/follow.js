/** A reader who scrolls down to within this of the end is back at it. */
const NEAR_PX = 24;
/** Heights are rounded to whole pixels, so less than one may be left at the very end. */
const LEAST_PX = 1;

/**
 * Tells whether to keep the end of a growing text in view: until the reader scrolls up, and again when they are back at the
 * end. It moves nothing. Whoever moves the view calls `remember`.
 */
export class Follow {
  #scroller;
  #onChange;
  #following = true;
  #top = 0;
  #height = 0;

  /**
   * @param {HTMLElement} scroller
   * @param {(following: boolean) => void} onChange
   */
  constructor(scroller, onChange) {
    this.#scroller = scroller;
    this.#onChange = onChange;
  }

  get following() {
    return this.#following;
  }

  /** Whether to keep the end in view from now on. */
  set following(following) {
    if (following === this.#following) return;
    this.#following = following;
    this.#onChange(following);
  }

  /** Whether the very end is in view. */
  get atEnd() {
    return this.#left < LEAST_PX;
  }

  /** Call when the view was scrolled. */
  scrolled() {
    const { scrollTop, scrollHeight } = this.#scroller;
    // A text that shrinks and a view that grows move the view too, but not away from the end.
    const wentUp = scrollTop < this.#top && scrollHeight >= this.#height && !this.atEnd;
    // However small: a finger, a trackpad and a smooth scroll move by a few pixels an event.
    if (wentUp) this.following = false;
    else if (this.#left <= NEAR_PX && scrollTop > this.#top) this.following = true;
    this.remember();
  }

  /** Call when the page itself moved the view, or changed what is above it, so that it does not count as the reader's. */
  remember() {
    this.#top = this.#scroller.scrollTop;
    this.#height = this.#scroller.scrollHeight;
  }

  /** Pixels of the text below the view. */
  get #left() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight;
  }
}
