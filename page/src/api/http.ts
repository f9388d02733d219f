/** Requests to this server, with the reader's API key, which is kept in this tab until it is closed. */

import { signal } from "@preact/signals";
import { t } from "../i18n";
import { forTab } from "../kept";

const KEPT_AS = "foredraft-key";

/** Whether the server wants a key, or refused the one it got: the shell then asks for one. */
export const keyWanted = signal<"no" | "missing" | "refused">("no");

/** A value that is wrong: the field, and what the server says. */
export interface Fault {
  param: string | null;
  message: string;
}

/** An error that the server described. `param`: the field that is wrong; `retryAfterMs`: when to try again;
 * `errors`: everything that is wrong, that field first.
 */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string | null,
    readonly param: string | null,
    message: string,
    readonly retryAfterMs: number | null = null,
    readonly errors: readonly Fault[] = [{ param, message }],
  ) {
    super(message);
  }
}

/** Send this key with what is asked from now on; null forgets it. */
export function keepKey(key: string | null): void {
  forTab.set(KEPT_AS, key);
}

export function hasKey(): boolean {
  return forTab.get(KEPT_AS) !== null;
}

interface Options {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
}

/** A response that succeeded. Throws ApiError, and TypeError if the server cannot be reached. */
export async function send(path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = {};
  const key = forTab.get(KEPT_AS);
  if (key !== null && /[^\x20-\xff]/.test(key)) {
    keyWanted.value = "refused"; // no header can carry it, so no server has it
    throw new ApiError(401, null, null, t("shell.key_refused"));
  }
  if (key !== null) headers.authorization = `Bearer ${key}`;
  const method = options.method ?? "GET";
  // Also without a body: a page elsewhere cannot send it without permission, so the server asks for it.
  if (method !== "GET") headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
    signal: options.signal,
    cache: "no-store",
  });
  if (response.ok) return response;
  if (response.status === 401 && key === forTab.get(KEPT_AS)) {
    keyWanted.value = key === null ? "missing" : "refused";
  }
  throw await described(response);
}

/** The JSON of a response. Throws as `send`. */
export async function call<T>(path: string, options: Options = {}): Promise<T> {
  return (await (await send(path, options)).json()) as T;
}

async function described(response: Response): Promise<ApiError> {
  const after = 1000 * Number(response.headers.get("retry-after") ?? NaN);
  const wait = Number.isFinite(after) ? after : null;
  try {
    const { error } = (await response.json()) as {
      error: { message: string; code?: string | null; param?: string | null; errors?: Fault[] };
    };
    const { message, code = null, param = null, errors } = error;
    return new ApiError(response.status, code, param, message, wait, errors);
  } catch {
    return new ApiError(response.status, null, null, `${response.status} ${response.statusText}`, wait);
  }
}

/** A path's part that may contain any character; slashes stay, as the server's routes take them. */
export function part(name: string): string {
  return name.split("/").map(encodeURIComponent).join("/");
}
