/** A message: the reader's words, or an answer with what was thought before it. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { duration, t } from "../../i18n";
import { useCopy } from "../../ui/basics";
import { focusNext } from "../../ui/focus";
import * as answers from "./answers";
import * as chats from "./chats";
import { Closing } from "./closing";
import { focusComposer } from "./composer";
import { Sent } from "./files";
import { IconButton } from "./icons";
import { sends } from "./keys";
import { Markdown } from "./markdown";
import { modelOf } from "./models";
import { Coloured, Legend } from "./origins";
import { thoughtsOf, withoutThoughts } from "./thinking";
import type { Message } from "./types";

export function MessageView(props: { message: Message; last: boolean; coloured: boolean; busy: boolean }) {
  const message = answers.nowOf(props.message);
  const { last, coloured, busy } = props;
  return useMemo(
    () =>
      message.role === "user" ? (
        <Asked message={message} busy={busy} />
      ) : (
        <Answer message={message} last={last} coloured={coloured} busy={busy} />
      ),
    [message, last, coloured, busy],
  );
}

function Asked(props: { message: Message; busy: boolean }) {
  const { message } = props;
  const [editing, setEditing] = useState(false);
  const pen = `edit-${message.id}`;
  function close(): void {
    setEditing(false);
    focusNext(() => document.getElementById(pen));
  }
  if (editing) return <Editing message={message} busy={props.busy} close={close} />;
  return (
    <article class="asked" aria-label={t("chat.you")}>
      <div class="bubble">
        <Sent files={message.attachments ?? []} />
        {message.text && <div class="plain">{message.text}</div>}
      </div>
      <div class="message-actions">
        <CopyIcon text={() => message.text} />
        <IconButton
          id={pen}
          icon="edit"
          label={t("chat.edit")}
          disabled={props.busy}
          onClick={() => setEditing(true)}
        />
      </div>
    </article>
  );
}

function Editing(props: { message: Message; busy: boolean; close: () => void }) {
  const [words, setWords] = useState(props.message.text);
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => box.current?.focus(), []);
  const able = !props.busy && Boolean(words.trim() || props.message.attachments?.length);
  return (
    <form
      class="asked editing"
      onSubmit={(event) => {
        event.preventDefault();
        if (!able) return;
        answers.resend(props.message, words);
        focusComposer();
      }}
    >
      <textarea
        ref={box}
        aria-label={t("chat.edit")}
        rows={Math.min(12, words.split("\n").length + 1)}
        value={words}
        onInput={(event) => setWords(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (sends(event)) event.currentTarget.form?.requestSubmit();
          else if (event.key === "Escape" && !event.isComposing) props.close();
          else return;
          event.preventDefault();
          event.stopPropagation();
        }}
      />
      <div class="actions">
        <span class="dim">{t("chat.edit_note")}</span>
        <button type="button" onClick={props.close}>
          {t("shell.cancel")}
        </button>
        <button class="primary" disabled={!able}>
          {t("chat.send")}
        </button>
      </div>
    </form>
  );
}

/** Whether the chosen model was not in memory when it was asked. */
function loads(): boolean {
  return modelOf(chats.settings.value.model)?.loaded === false;
}

function Answer(props: { message: Message; last: boolean; coloured: boolean; busy: boolean }) {
  const { message, last, coloured } = props;
  const running = message.state === "running";
  const thoughts = thoughtsOf(message.text);
  const from = thoughts?.answer ?? 0;
  const nothing = !message.text && !message.reasoning;
  const origins = message.origins ?? [];
  return (
    <article class="answer" aria-label={t("chat.answer")} aria-busy={running}>
      <Thinking message={message} />
      {coloured && (message.origins || running) ? (
        <Coloured text={message.text} origins={origins} from={from} />
      ) : (
        <Markdown text={message.text.slice(from)} growing={running} />
      )}
      {running && nothing && <p class="dim waiting">{t(loads() ? "chat.loading_model" : "chat.waiting")}</p>}
      {coloured && (message.text || message.reasoning) && (
        <Legend origins={[...(message.reasoningOrigins ?? []), ...origins]} report={message.report} />
      )}
      {!running && <Closing message={message} />}
      {!running && (
        <div class="message-actions">
          {!nothing && <CopyIcon text={() => withoutThoughts(message.text)} />}
          {last && (
            <IconButton
              icon="again"
              label={t("chat.regenerate")}
              disabled={props.busy}
              onClick={() => (answers.regenerate(message), focusComposer())}
            />
          )}
          {last && message.state !== "done" && !nothing && (
            <button
              type="button"
              disabled={props.busy}
              onClick={() => (answers.goOn(message), focusComposer())}
            >
              {t("chat.continue")}
            </button>
          )}
        </div>
      )}
    </article>
  );
}

/** What was thought, folded away. */
function Thinking(props: { message: Message }) {
  const { message } = props;
  const found = thoughtsOf(message.text);
  const text = message.reasoning ?? (found ? message.text.slice(found.from, found.to) : "");
  if (!text.trim()) return null;
  const over = message.reasoningMs !== undefined;
  return (
    <details class="thinking">
      <summary>
        {over
          ? t("chat.thought", { time: duration(message.reasoningMs ?? 0) })
          : t(message.state === "running" ? "chat.thinking" : "chat.thoughts")}
      </summary>
      <div class="plain">{text.trim()}</div>
    </details>
  );
}

function CopyIcon(props: { text: () => string }) {
  const [said, copy] = useCopy(props.text);
  const icon = said === "copied" ? "done" : said === "not_copied" ? "close" : "copy";
  return <IconButton icon={icon} label={t(`shell.${said ?? "copy"}`)} onClick={copy} />;
}
