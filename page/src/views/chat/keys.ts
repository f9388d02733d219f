/** What keys mean in a field for a message. */

/** Enter sends, Shift+Enter is a new line. While an input method composes (Japanese, Korean, Chinese), Enter
 * chooses a word; Safari tells of that with key code 229 only. A phone's keyboard has no Shift+Enter.
 */
export function sends(event: KeyboardEvent): boolean {
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing && !matchMedia("(pointer: coarse)").matches;
}
