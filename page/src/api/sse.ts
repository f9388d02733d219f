/** Server-sent events of a response. `EventSource` cannot send a key, so the stream is read by hand. */

interface ServerEvent {
  event: string;
  data: string;
}

/** The events of a stream, in order, until it ends. Specification: HTML, section 9.2.6. */
export async function* eventsOf(response: Response): AsyncGenerator<ServerEvent> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n\n");
      rest = lines.pop() ?? "";
      for (const block of lines) {
        const found = parsed(block);
        if (found !== null) yield found;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parsed(block: string): ServerEvent | null {
  let event = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
