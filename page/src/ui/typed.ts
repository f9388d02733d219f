/** What a reader types into a field. */

/** The number that is typed, with a point or a comma before its decimals; null: it is none. */
export function numberIn(text: string): number | null {
  const plain = text.trim().replace(/^([-+]?\d*),(\d+)$/, "$1.$2");
  return /^[-+]?(\d+\.?\d*|\.\d+)$/.test(plain) ? Number(plain) : null;
}
