/** The one stream of live data: what the views on screen have subscribed to; none while the page is hidden. */

import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ApiError, keyWanted, send } from "./http";
import { eventsOf } from "./sse";

/** "refused": the server answers, and does not want this now. */
export type Link = "idle" | "connecting" | "live" | "lost" | "refused" | "paused";

/** The state of the connection. */
export const link = signal<Link>("idle");

type Listener = (data: never) => void;

const listeners = new Map<string, Set<Listener>>();
const topics = signal<string>("");
/** What the server says about topics that it cannot read now. */
const problems = signal<ReadonlyMap<string, Error>>(new Map());
const hidden = signal(document.hidden);
const RETRY_MS = 2000;
const REFUSED_RETRY_MS = 10_000;

document.addEventListener("visibilitychange", () => (hidden.value = document.hidden));

/** Call `listener` with every object of a topic while the component is on screen. Returns why there is none now,
 * or null. */
export function useTopic<T>(topic: string, listener: (data: T) => void): Error | null {
  useEffect(() => {
    const mine = listeners.get(topic) ?? new Set<Listener>();
    listeners.set(topic, mine);
    const called = (data: never) => listener(data as T);
    mine.add(called);
    follow();
    return () => {
      mine.delete(called);
      if (!mine.size) listeners.delete(topic);
      follow();
    };
  }, [topic]);
  return problems.value.get(topic) ?? null;
}

let following = false;

/** Once for all topics that come and go at the same time: each change opens the stream anew. */
function follow(): void {
  if (following) return;
  following = true;
  queueMicrotask(() => {
    following = false;
    topics.value = [...listeners.keys()].sort().join(",");
  });
}

/** Opens the stream anew whenever the topics change; tries again while the server is away. */
export function startLive(): void {
  effect(() => {
    const asked = topics.value;
    if (hidden.value) {
      link.value = "paused";
      return undefined;
    }
    if (!asked || keyWanted.value !== "no") {
      link.value = "idle";
      return undefined;
    }
    link.value = "connecting";
    problems.value = new Map();
    const stop = new AbortController();
    void run(asked, stop.signal);
    return () => stop.abort();
  });
}

async function run(asked: string, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    let wait = RETRY_MS;
    let found: Link = "lost";
    try {
      const response = await send(`console/events?topics=${encodeURIComponent(asked)}`, { signal: stop });
      link.value = "live";
      for await (const { event, data } of eventsOf(response)) {
        if (stop.aborted) return;
        take(event, JSON.parse(data));
      }
    } catch (error) {
      if (stop.aborted) return;
      if (error instanceof ApiError && error.status < 500) {
        if (error.status === 401) return;
        problems.value = new Map(asked.split(",").map((topic) => [topic, error]));
        wait = error.retryAfterMs ?? REFUSED_RETRY_MS;
        found = "refused";
      }
    }
    link.value = found;
    await new Promise((go) => setTimeout(go, wait));
  }
}

/** An event for those who listen; one named `error` is about a topic, or says why the stream ends. */
function take(event: string, data: unknown): void {
  if (event === "error") {
    const { topic, error } = data as { topic?: string; error: { message: string } };
    if (topic !== undefined) problems.value = new Map(problems.value).set(topic, new Error(error.message));
    return;
  }
  if (problems.value.has(event)) {
    problems.value = new Map([...problems.value].filter(([topic]) => topic !== event));
  }
  for (const listener of listeners.get(event) ?? []) {
    try {
      listener(data as never);
    } catch (error) {
      reportError(error); // a fault of the page, not of the connection
    }
  }
}
