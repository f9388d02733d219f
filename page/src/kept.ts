/** What the browser keeps for the reader. One that forbids it, or has no room, keeps it until the page is left. */

interface Kept {
  get: (name: string) => string | null;
  /** null removes it. */
  set: (name: string, value: string | null) => void;
}

/** Always, and in all tabs. */
export const forGood = keptIn(() => localStorage);
/** Until this tab is closed. */
export const forTab = keptIn(() => sessionStorage);

/** `storage` is asked each time: where it is forbidden, naming it throws. */
function keptIn(storage: () => Storage): Kept {
  const instead = new Map<string, string>();
  return {
    get(name) {
      const found = instead.get(name);
      if (found !== undefined) return found;
      try {
        return storage().getItem(name);
      } catch {
        return null;
      }
    },
    set(name, value) {
      instead.delete(name);
      try {
        if (value === null) storage().removeItem(name);
        else storage().setItem(name, value);
      } catch {
        if (value !== null) instead.set(name, value);
      }
    },
  };
}
