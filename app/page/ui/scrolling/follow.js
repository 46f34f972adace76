const NEAR_PX = 24;

/**
 * Tells whether the end of a growing text is to be kept in view: until the reader scrolls up, and again when they have come
 * back to the end themselves. It moves nothing; whoever does says so by `remember`.
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

  /** The end is to be kept in view from now on. */
  resume() {
    this.#set(true);
  }

  /** The end is left alone from now on. */
  pause() {
    this.#set(false);
  }

  /** Call when the view was scrolled. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    // A text that shrank moves the view too; only a move within the same text is the reader's.
    const wentUp = scrollTop < this.#top - 1 && scrollHeight >= this.#height;
    const atEnd = scrollHeight - scrollTop - clientHeight <= NEAR_PX;
    if (wentUp && !atEnd) this.#set(false);
    else if (atEnd && scrollTop > this.#top) this.#set(true);
    this.remember();
  }

  /** Call when the page itself moved the view, or changed what is above it: that is not the reader's doing. */
  remember() {
    this.#top = this.#scroller.scrollTop;
    this.#height = this.#scroller.scrollHeight;
  }

  /** @param {boolean} following */
  #set(following) {
    if (following === this.#following) return;
    this.#following = following;
    this.#onChange(following);
  }
}
