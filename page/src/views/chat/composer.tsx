/** Where the reader writes: words, files, send, stop, race. */

import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { t } from "../../i18n";
import { focusNext } from "../../ui/focus";
import * as answers from "./answers";
import * as chats from "./chats";
import { attach, changeDraft, clearDraft, draftOf } from "./drafts";
import { Chips } from "./files";
import { Icon, IconButton } from "./icons";
import { sends } from "./keys";
import { canRace, isRacing, startRace } from "./race";

/** What had the focus leaves the page: the reader writes on. */
export function focusComposer(): void {
  focusNext(() => document.querySelector<HTMLElement>(".composer textarea"));
}

/** The composer of a conversation; "": of a new one. Another conversation has another one: it needs a key. */
export function Composer(props: { conversation: string }) {
  const { conversation } = props;
  const { words, files, refused } = draftOf(conversation).value;
  const busy = answers.isRunning(conversation);
  const box = useFocusedBox(busy);
  const able = Boolean(words.trim() || files.length) && !busy && !isRacing() && chats.ready.value;

  function send(): void {
    if (!able) return;
    clearDraft(conversation);
    answers.ask(words, files);
    box.current?.focus();
  }
  function race(): void {
    clearDraft(conversation);
    startRace(words, files);
    box.current?.focus(); // the button is disabled now
  }
  async function add(given: FileList): Promise<void> {
    await attach(conversation, [...given]); // a copy: the field for files is emptied meanwhile
    box.current?.focus();
  }

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        if (event.dataTransfer) void add(event.dataTransfer.files);
      }}
    >
      {refused.length > 0 && (
        <p class="problem" role="alert">
          {refused.join(" ")}
        </p>
      )}
      {files.length > 0 && (
        <Chips files={files} change={(changed) => changeDraft(conversation, { files: changed })} />
      )}
      <Words
        box={box}
        words={words}
        write={(typed) => changeDraft(conversation, { words: typed })}
        send={send}
        paste={(given) => void add(given)}
      />
      <div class="composer-actions">
        <AttachButton attach={(given) => void add(given)} />
        <RaceButton able={canRace(words, files) && !busy} begin={race} />
        <span class="keys-hint dim">{t("chat.keys")}</span>
        <SendButton able={able} stop={busy ? () => answers.stop(conversation) : undefined} />
      </div>
    </form>
  );
}

/** The field of words, which has the focus at first and again after the stop button, which had it, is gone. */
function useFocusedBox(busy: boolean): RefObject<HTMLTextAreaElement | null> {
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => box.current?.focus(), []);
  useEffect(() => {
    if (!busy && document.activeElement === document.body) box.current?.focus();
  }, [busy]);
  return box;
}

function Words(props: {
  box: RefObject<HTMLTextAreaElement | null>;
  words: string;
  write: (typed: string) => void;
  send: () => void;
  paste: (files: FileList) => void;
}) {
  const { box, words } = props;
  useEffect(() => fit(box.current), [words]);
  return (
    <textarea
      ref={box}
      rows={1}
      aria-label={t("chat.message")}
      placeholder={t("chat.message")}
      value={words}
      onInput={(event) => props.write(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (!sends(event)) return;
        event.preventDefault();
        props.send();
      }}
      onPaste={(event) => {
        const pasted = event.clipboardData?.files;
        if (!pasted?.length) return;
        event.preventDefault();
        props.paste(pasted);
      }}
    />
  );
}

function RaceButton(props: { able: boolean; begin: () => void }) {
  return (
    <button
      type="button"
      class="quiet with-icon"
      disabled={!props.able}
      title={t("chat.race_note")}
      onClick={props.begin}
    >
      <Icon name="race" />
      {t("chat.race")}
    </button>
  );
}

/** Sends; while an answer is written, it stops that. */
function SendButton(props: { able: boolean; stop: (() => void) | undefined }) {
  if (props.stop) return <IconButton icon="stop" label={t("chat.stop")} class="round" onClick={props.stop} />;
  return (
    <button class="round primary" aria-label={t("chat.send")} title={t("chat.send")} disabled={!props.able}>
      <Icon name="send" />
    </button>
  );
}

/** As high as its text is, up to a bound in the style sheet. */
function fit(box: HTMLTextAreaElement | null): void {
  if (!box) return;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function AttachButton(props: { attach: (files: FileList) => void }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          if (event.currentTarget.files) props.attach(event.currentTarget.files);
          event.currentTarget.value = ""; // so that the same file can be chosen again
        }}
      />
      <IconButton icon="attach" label={t("chat.attach")} onClick={() => input.current?.click()} />
    </>
  );
}
