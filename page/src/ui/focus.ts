/** Where the focus goes when what had it leaves the page. */

/** Call it with the change: once that is drawn, and the focus is nowhere, `find` says what gets it. */
export function focusNext(find: () => HTMLElement | null | undefined): void {
  setTimeout(() => {
    const at = document.activeElement;
    if (!at || at === document.body) find()?.focus();
  });
}

/** The same for the first of these selectors that there is, else for the view. */
export function focusFirst(...selectors: string[]): void {
  focusNext(() => {
    for (const selector of [...selectors, "#content"]) {
      const found = document.querySelector<HTMLElement>(selector);
      if (found) return found;
    }
    return null;
  });
}

/** The selector of an attribute with a value that may hold any character. */
export function having(attribute: string, value: string): string {
  return `[${attribute}="${CSS.escape(value)}"]`;
}
