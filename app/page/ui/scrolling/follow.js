const NEAR_PX = 24;

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

  /** Keeps the end in view from now on. */
  resume() {
    this.#set(true);
  }

  /** Follows the end no longer. */
  pause() {
    this.#set(false);
  }

  /** Call when the view was scrolled. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    // A text that shrinks moves the view too. Only a move within the same text is the reader's.
    const wentUp = scrollTop < this.#top - 1 && scrollHeight >= this.#height;
    const atEnd = scrollHeight - scrollTop - clientHeight <= NEAR_PX;
    if (wentUp && !atEnd) this.#set(false);
    else if (atEnd && scrollTop > this.#top) this.#set(true);
    this.remember();
  }

  /** Call when the page itself moved the view, or changed what is above it, so that it does not count as the reader's. */
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
