/** Markdown into tokens, block by block: while an answer grows only its end is read anew. */

import { Lexer, Tokenizer } from "marked";
import type { Token } from "marked";

/** Beyond this the text is shown as it is: some texts take marked longer than linear time. */
export const MOST_CHARACTERS = 200_000;
/** Blocks in blocks, at the beginning of a line. */
const BOMB = /^(?:[ \t]*(?:>|[-+*]|\d{1,9}[.)])[ \t]*){24}/m;
const INDENTED_BOMB = /^[ \t]{100,}(?:[-+*]|\d{1,9}[.)]|>)[ \t]/m;

/** HTML is text. */
class WithoutMarkup extends Tokenizer {
  override html(): undefined {
    return undefined;
  }
  override tag(): undefined {
    return undefined;
  }
}

const OPTIONS = { gfm: true, tokenizer: new WithoutMarkup() };

/** The blocks of a text; null: it is shown as it is. */
export function lexed(text: string): Token[] | null {
  if (text.length > MOST_CHARACTERS || BOMB.test(text) || INDENTED_BOMB.test(text)) return null;
  try {
    return new Lexer({ ...OPTIONS }).lex(text);
  } catch {
    return null; // nested deeper than the stack is
  }
}

/** The blocks of a text that grows at its end. The last two are read anew, as what follows can change them; all
 * are, once, when the text is whole: a link's address may stand below it.
 */
export class GrowingBlocks {
  private text = "";
  private settled: Token[] = [];
  private settledTo = 0;
  private plain = false;

  blocks(text: string): Token[] | null {
    if (!text.startsWith(this.text)) this.reset();
    if (this.plain || text.length > MOST_CHARACTERS) return null;
    this.text = text;
    const tail = lexed(text.slice(this.settledTo));
    if (tail === null) {
      this.plain = true;
      return null;
    }
    this.settle(tail);
    return [...this.settled, ...tail];
  }

  private settle(tail: Token[]): void {
    const read = tail.reduce((length, token) => length + token.raw.length, 0);
    if (read !== this.text.length - this.settledTo) return; // marked has normalised something
    let open = 2;
    let keep = tail.length;
    while (keep > 0 && open > 0) if (tail[--keep]?.type !== "space") open--;
    for (const token of tail.splice(0, keep)) {
      this.settled.push(token);
      this.settledTo += token.raw.length;
    }
  }

  private reset(): void {
    this.text = "";
    this.settled = [];
    this.settledTo = 0;
    this.plain = false;
  }
}
