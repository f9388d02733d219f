/** Answers that are being written: they go on while another conversation or view is on screen. */

import { batch, signal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { ApiError } from "../../api/http";
import * as chats from "./chats";
import { withUsual } from "./models";
import { Paced } from "./paced";
import { boundPictures, inOrder, tell } from "./store";
import { answer, bodyOf, extend } from "./stream";
import type { Ending, Piece } from "./stream";
import { thoughtsOf } from "./thinking";
import type { Attachment, Message } from "./types";

const SAVE_MS = 1000;
/** An answer that runs in another tab was saved within this time, or that tab is gone. */
const ALIVE_MS = 5000;

interface Running {
  message: Signal<Message>;
  stop: AbortController;
  /** Of the reader: it is a wish, not a failure. */
  stopped: boolean;
}

/** By message. */
const running = signal<ReadonlyMap<string, Running>>(new Map());
/** The last answer that ended: what screen readers say. */
export const finished = signal<Message | null>(null);

/** When it was last looked whether other tabs still write. */
const looked = signal(Date.now());

/** Look whether other tabs still write. */
export function lookAgain(): void {
  looked.value = Date.now();
}

/** A message as it is just now. */
export function nowOf(message: Message): Message {
  return running.value.get(message.id)?.message.value ?? ended(message);
}

/** An answer that no tab is writing any more was interrupted. */
function ended(message: Message): Message {
  const gone = message.state === "running" && looked.value - message.saved > ALIVE_MS;
  return gone ? { ...message, state: "lost" } : message;
}

/** Whether an answer is being written in a conversation, here or in another tab. */
export function isRunning(conversation: string | undefined): boolean {
  return (
    [...running.value.values()].some((one) => one.message.peek().conversation === conversation) ||
    chats.messages.value.some(
      (one) => one.conversation === conversation && one.state === "running" && ended(one) === one,
    )
  );
}

/** Stop what is being written in a conversation, here and in other tabs. */
export function stop(conversation: string | undefined): void {
  if (!conversation) return;
  stopHere(conversation);
  tell("stop", conversation);
}

export function stopHere(conversation: string): void {
  for (const one of running.value.values()) {
    if (one.message.peek().conversation !== conversation) continue;
    one.stopped = true;
    one.stop.abort();
  }
}

/** Send the reader's words, and write the answer. */
export function ask(words: string, files: Attachment[]): void {
  const conversation = chats.opened(words || (files[0]?.name ?? ""));
  const message = chats.newMessage(conversation.id, "user", words);
  if (files.length) message.attachments = files;
  const keeping = chats.put(message);
  if (files.some((file) => file.picture)) void keeping.then(() => chats.kept(boundPictures()));
  begin(conversation.id);
}

/** Replace the reader's message and all after it. */
export function resend(message: Message, words: string): void {
  chats.cutFrom(message);
  ask(words, message.attachments ?? []);
}

/** Write an answer anew; what follows it goes. */
export function regenerate(message: Message): void {
  chats.cutFrom(message);
  begin(message.conversation);
}

function begin(conversation: string): void {
  const made = chats.newMessage(conversation, "assistant", "");
  void write({ ...made, state: "running", origins: [] }, false);
}

/** Write on from where an answer was cut. */
export function goOn(message: Message): void {
  if (!message.text && !message.reasoning) return regenerate(message);
  const { error: _, report: __, repeated: ___, ...rest } = message;
  void write({ ...rest, state: "running", continued: true }, true);
}

async function write(message: Message, continues: boolean): Promise<void> {
  const conversation = chats.conversations.value.find((one) => one.id === message.conversation);
  if (!conversation) return;
  message.model = conversation.settings.model;
  const one = { message: signal(message), stop: new AbortController(), stopped: false };
  running.value = new Map(running.value).set(message.id, one);
  const put = (now: Message) => void chats.put(now).then((there) => !there && one.stop.abort()); // removed meanwhile
  put(message);
  chats.touch(message.conversation);
  const history = chats.messages.value.filter((other) => inOrder(other, message) < 0);
  const growing = new Growing(one.message);
  let saved = performance.now();
  const save = () => {
    if (performance.now() - saved < SAVE_MS / 2) return;
    saved = performance.now();
    put(growing.whole());
  };
  const saving = setInterval(save, SAVE_MS); // rare in a tab that is hidden for long; there pieces save, too
  try {
    const settings = await withUsual(conversation.settings);
    const body = await bodyOf(settings, continues ? [...history, message] : history, continues);
    const pieces = answer(body, one.stop.signal);
    for (;;) {
      const { done, value } = await pieces.next();
      if (done) {
        growing.end(value);
        break;
      }
      growing.add(value);
      if (document.hidden) save();
    }
  } catch (error) {
    growing.fail(error, one.stopped);
  }
  clearInterval(saving);
  const last = growing.last();
  const others = new Map(running.value);
  others.delete(message.id);
  batch(() => {
    void chats.put(last);
    running.value = others;
    finished.value = last;
  });
}

/** A message to which pieces are added. */
class Growing {
  private message: Message;
  private readonly paced = new Paced(() => (this.shown.value = { ...this.message }));
  private readonly began = performance.now();
  private firstMs = 0;
  private thoughtAt = 0;

  constructor(private readonly shown: Signal<Message>) {
    this.message = {
      ...shown.value,
      origins: [...(shown.value.origins ?? [])].map(([origin, length]) => [origin, length]),
      reasoningOrigins: [...(shown.value.reasoningOrigins ?? [])].map(([origin, length]) => [origin, length]),
    };
  }

  add(piece: Piece): void {
    const now = performance.now();
    this.firstMs ||= now - this.began;
    const message = this.message;
    if (piece.reasoning) {
      message.reasoning = (message.reasoning ?? "") + piece.text;
      extend((message.reasoningOrigins ??= []), piece.origins);
    } else {
      message.text += piece.text;
      extend((message.origins ??= []), piece.origins);
    }
    this.timeThoughts(now, piece.reasoning);
    this.paced.show();
  }

  /** How long the model thinks: until its answer begins. */
  private timeThoughts(now: number, reasoning: boolean): void {
    if (this.message.reasoningMs !== undefined && !this.thoughtAt) return;
    const thoughts = reasoning ? null : thoughtsOf(this.message.text);
    if (reasoning || (thoughts && !thoughts.closed)) this.thoughtAt ||= now;
    else if (this.thoughtAt || thoughts) {
      this.message.reasoningMs = now - (this.thoughtAt || this.began + this.firstMs);
      this.thoughtAt = 0;
    }
  }

  end(ending: Ending): void {
    this.message.state = ending.finish === "length" ? "cut" : "done";
    if (ending.repeated) this.message.repeated = true;
    if (ending.finish === "abort") this.message.state = "stopped";
    if (ending.speculation)
      this.message.report = {
        tokens: ending.tokens,
        total: ending.total,
        predictedMs: ending.predictedMs,
        firstMs: this.firstMs || performance.now() - this.began,
        speculation: ending.speculation,
        notice: ending.notice,
        noticeCode: ending.noticeCode,
      };
  }

  fail(error: unknown, stopped: boolean): void {
    if (stopped) this.message.state = "stopped";
    else if (error instanceof ApiError) {
      this.message.state = "failed";
      this.message.error = { message: error.message, code: error.code, status: error.status };
    } else this.message.state = "lost";
  }

  /** The message at its end: nothing more is shown of it here. */
  last(): Message {
    this.paced.stop();
    return this.whole();
  }

  whole(): Message {
    const { origins, reasoningOrigins, ...rest } = this.message;
    return {
      ...rest,
      origins: (origins ?? []).map(([origin, length]) => [origin, length]),
      ...(reasoningOrigins?.length
        ? { reasoningOrigins: reasoningOrigins.map(([origin, length]) => [origin, length]) }
        : {}),
    };
  }
}
