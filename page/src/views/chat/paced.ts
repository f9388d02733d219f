/** Showing what grows: at most once a frame, and less often where that is slow. */

/** Of the time that showing takes, as much again and again is left for everything else. */
const REST = 3;

export class Paced {
  private due = 0;
  private frame = 0;

  constructor(private readonly work: () => void) {}

  /** Show it soon, with all that is there by then. */
  show(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      const before = performance.now();
      if (before < this.due) return this.show();
      this.work();
      setTimeout(() => {
        const now = performance.now(); // components have rendered
        this.due = now + REST * (now - before);
      });
    });
  }

  /** What waits is not shown any more. */
  stop(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }
}
