// A value that parts of the page follow.

export class Signal {
  #value;
  #followers = new Set();

  constructor(value) {
    this.#value = value;
  }

  get value() {
    return this.#value;
  }

  set(value) {
    if (value === this.#value) return;
    this.#value = value;
    for (const follower of [...this.#followers]) follower(value);
  }

  /** Calls `follower` now and after each change, until `signal` is aborted. */
  follow(follower, signal) {
    this.#followers.add(follower);
    signal?.addEventListener("abort", () => this.#followers.delete(follower));
    follower(this.#value);
  }
}
