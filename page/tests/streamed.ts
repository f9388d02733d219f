/** Answers that a test writes itself, in the form of the server's stream. */

import type { Page } from "@playwright/test";

export interface Piece {
  content?: string;
  reasoning_content?: string;
  origins?: [string, number][];
}

const SPECULATION = {
  configured: "auto",
  active: true,
  reason: null,
  rounds: 10,
  acceptance_rate: 0.8,
  acceptance_length: 2.5,
  estimated_speedup: 1.9,
  drafters: { suffix: { drafts: 4, drafted: 10, accepted: 8, ms: 1 } },
  exact: true,
  exact_reason: "bit-identical",
};

/** The data of the events of one answer. */
export function events(pieces: Piece[], end: object = {}, finish = "stop"): string[] {
  const chunks: object[] = pieces.map(({ origins, ...delta }) => ({
    choices: [{ index: 0, delta, origins, finish_reason: null }],
  }));
  chunks.push({ choices: [{ index: 0, delta: {}, finish_reason: finish }] });
  chunks.push({
    choices: [],
    usage: { completion_tokens: 20, total_tokens: 60 },
    timings: { predicted_ms: 400 },
    speculation: SPECULATION,
    ...end,
  });
  return [...chunks.map((chunk) => JSON.stringify(chunk)), "[DONE]"];
}

/** Answer the page's chats with these events, one body after the other, the last again and again. Before the
 * page is opened. `everyMs` between two events; without it all come at once. Without [DONE] the stream breaks
 * off.
 */
export async function answersWith(page: Page, bodies: string[][], everyMs = 0): Promise<void> {
  await page.addInitScript(
    ({ bodies, everyMs }) => {
      const real = window.fetch;
      let asked = 0;
      window.fetch = async (input, options) => {
        if (!String(input).endsWith("v1/chat/completions")) return real(input, options);
        const body = bodies[Math.min(asked++, bodies.length - 1)] ?? [];
        const encoder = new TextEncoder();
        const stream = new ReadableStream({
          async start(controller) {
            for (const data of body) {
              if (options?.signal?.aborted) return controller.error(options.signal.reason);
              controller.enqueue(encoder.encode(`data: ${data}\n\n`));
              if (everyMs) await new Promise((go) => setTimeout(go, everyMs));
            }
            if (body.at(-1) === "[DONE]") controller.close();
            else await new Promise((go) => setTimeout(go, 200)); // an error drops what was not read yet
            if (body.at(-1) !== "[DONE]") controller.error(new TypeError("network error"));
          },
        });
        return new Response(stream, { status: 200, headers: { "content-type": "text/event-stream" } });
      };
    },
    { bodies, everyMs },
  );
}
