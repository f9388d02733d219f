/** A path that is asked again and again while the component is on screen; not while the page is hidden. */

import { useEffect, useState } from "preact/hooks";
import { call } from "./http";
import { link } from "./live";

interface Polled<T> {
  /** What was answered last; null before the first answer. */
  data: T | null;
  error: unknown;
  again: () => void;
}

/** Ask every `every_s` seconds, and when the server is found again. Without a path nothing is asked. */
export function usePolled<T>(path: string | null, every_s: number): Polled<T> {
  const [found, setFound] = useState<{ path: string; data: T } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);
  const away = link.value === "lost" || link.value === "paused";
  useEffect(() => {
    if (path === null || away) return undefined;
    const stop = new AbortController();
    let timer = 0;
    async function ask(path: string): Promise<void> {
      try {
        const data = await call<T>(path, { signal: stop.signal });
        setFound({ path, data });
        setError(null);
      } catch (error) {
        if (stop.signal.aborted) return;
        setError(error);
      }
      timer = window.setTimeout(() => void ask(path), 1000 * every_s);
    }
    void ask(path);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every_s, away, turn]);
  return {
    data: found !== null && found.path === path ? found.data : null,
    error,
    again: () => setTurn(turn + 1),
  };
}
