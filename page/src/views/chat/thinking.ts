/** What a model thinks, where it is part of its text: `<think>…</think>` at the beginning. */

const OPEN = /^\s*<think>\s*/;
const CLOSE = /\s*<\/think>\s*/;
/** Some templates open it in the prompt, so that the answer only closes it, on a line of its own. */
const CLOSED_ONLY = /\n<\/think>\s*(?:\n\s*|$)/;

/** Places in the text: the thoughts are from `from` to `to`, the answer begins at `answer`. */
export interface Thoughts {
  from: number;
  to: number;
  answer: number;
  closed: boolean;
}

/** Null: there are none. */
export function thoughtsOf(text: string): Thoughts | null {
  const open = OPEN.exec(text);
  if (open === null) {
    const closed = CLOSED_ONLY.exec(text);
    return closed && !text.slice(0, closed.index).includes("```")
      ? { from: 0, to: closed.index, answer: closed.index + closed[0].length, closed: true }
      : null;
  }
  const from = open[0].length;
  const close = CLOSE.exec(text.slice(from));
  if (close === null) return { from, to: text.length, answer: text.length, closed: false };
  const to = from + close.index;
  return { from, to, answer: to + close[0].length, closed: true };
}

/** The answer without what was thought before it. */
export function withoutThoughts(text: string): string {
  return text.slice(thoughtsOf(text)?.answer ?? 0);
}
