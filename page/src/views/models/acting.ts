/** A row's buttons: one action at a time, with its error, and the focus back on the row afterwards. */

import { useState } from "preact/hooks";
import { focusFirst, having } from "../../ui/focus";

/** `attribute` and `name` find the row again: it may be another element once its state has changed. */
export function useActions(attribute: string, name: string) {
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  async function act(action: () => Promise<void>): Promise<void> {
    if (busy) return;
    setBusy(true);
    setError(null);
    await action().catch(setError);
    setBusy(false);
    focusFirst(`${having(attribute, name)} .actions button`);
  }
  return { error, busy, act };
}
