const NEAR_PX = 24;

/**
 * Keeps the end of a growing text in view, until the reader scrolls up; from then on it leaves the reader alone,
 * until they come back to the end themselves.
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
    scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    // What takes longer than a frame to be laid out, a long table or formulas, grows on its own.
    scroller.addEventListener("grown", () => this.keep());
    new ResizeObserver(() => this.keep()).observe(scroller);
  }

  /** Call after the text grew. */
  keep() {
    if (this.#following) this.#toEnd();
  }

  /** Goes to the end and follows it again. */
  resume() {
    this.#set(true);
    this.#toEnd();
  }

  /** Changes the text above the view without moving what is being read. @param {() => void} change */
  holdPlace(change) {
    const fromEnd = this.#scroller.scrollHeight - this.#scroller.scrollTop;
    change();
    this.#scroller.scrollTop = this.#scroller.scrollHeight - fromEnd;
    this.#remember();
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#remember();
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    // A text that shrank moves the view too; only a move within the same text is the reader's.
    const wentUp = scrollTop < this.#top - 1 && scrollHeight >= this.#height;
    const atEnd = scrollHeight - scrollTop - clientHeight <= NEAR_PX;
    if (wentUp && !atEnd) this.#set(false);
    else if (atEnd && scrollTop > this.#top) this.#set(true);
    this.#remember();
  }

  #remember() {
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
