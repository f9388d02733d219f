/** Small parts that all views share. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { t } from "../i18n";

/** A box with a heading. */
export function Card(props: {
  title?: string;
  actions?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}) {
  const id = useId();
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={props.title ? id : undefined}>
      {(props.title || props.actions) && (
        <div class="card-head">
          {props.title && <h2 id={id}>{props.title}</h2>}
          {props.actions && <div class="actions">{props.actions}</div>}
        </div>
      )}
      {props.children}
    </section>
  );
}

/** What stands where something is still asked for. */
export function Loading() {
  return (
    <p class="dim" aria-busy="true">
      {t("shell.loading")}
    </p>
  );
}

/** Says a text to screen readers when `on` changes; not whenever the text does. */
export function Announced(props: { text: string; on: string }) {
  const [said, setSaid] = useState("");
  useEffect(() => setSaid(props.text), [props.on]);
  return (
    <span class="visually-hidden" role="status">
      {said}
    </span>
  );
}

/** One figure with its name. `note` is smaller, below. */
export function Figure(props: { name: string; value: string; note?: string; tone?: "good" | "bad" }) {
  return (
    <div class="figure">
      <dt>{props.name}</dt>
      <dd>
        <strong class={props.tone ?? ""}>{props.value}</strong>
        {props.note && <small>{props.note}</small>}
      </dd>
    </div>
  );
}

/** A share of 1 as a bar. `label` is read by screen readers. */
export function Bar(props: { share: number; label: string; tone?: "good" | "bad" | "warn" }) {
  const share = Math.max(0, Math.min(1, props.share));
  return (
    <div
      class={`bar ${props.tone ?? ""}`}
      role="meter"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(100 * share)}
    >
      <span style={{ width: `${100 * share}%` }} />
    </div>
  );
}

export function Badge(props: {
  tone?: "good" | "bad" | "warn";
  title?: string;
  children: ComponentChildren;
}) {
  return (
    <span class={`badge ${props.tone ?? ""}`} title={props.title}>
      {props.children}
    </span>
  );
}

/** A labelled input. `error` is said beside it, `note` explains it. The child gets its id and descriptions. */
export function Field(props: {
  label: string;
  note?: ComponentChildren;
  error?: string | null;
  children: (attributes: { id: string; "aria-describedby": string; "aria-invalid": boolean }) => JSX.Element;
}) {
  const id = useId();
  return (
    <div class={`field ${props.error ? "invalid" : ""}`}>
      <label for={id}>{props.label}</label>
      {props.children({ id, "aria-describedby": `${id}-note`, "aria-invalid": Boolean(props.error) })}
      {props.error ? (
        <p key="error" id={`${id}-note`} class="bad" role="alert">
          {props.error}
        </p>
      ) : (
        <p key="note" id={`${id}-note`} class="dim">
          {props.note}
        </p>
      )}
    </div>
  );
}

/** A question above the page. Escape and the backdrop call `close`. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  const pressed = useRef(false);
  const id = useId();
  useEffect(() => {
    const dialog = box.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={box}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.close();
      }}
      // A click begins where it is pressed: a selection that is drawn out of the dialog is none on the backdrop.
      onPointerDown={(event) => (pressed.current = event.target === box.current)}
      onClick={(event) => event.target === box.current && pressed.current && props.close()}
    >
      <div class="dialog-body">
        <h2 id={id}>{props.title}</h2>
        {props.children}
      </div>
    </dialog>
  );
}

/** Copying a text: how it ended, for a moment, and what starts it. */
export function useCopy(text: () => string): [said: "copied" | "not_copied" | null, copy: () => void] {
  const [said, setSaid] = useState<"copied" | "not_copied" | null>(null);
  async function copy(): Promise<void> {
    setSaid((await copied(text())) ? "copied" : "not_copied");
    setTimeout(() => setSaid(null), 1500);
  }
  return [said, () => void copy()];
}

/** Copies a text, and says so. */
export function CopyButton(props: { text: () => string; label?: string }) {
  const [said, copy] = useCopy(props.text);
  return (
    <button type="button" class="quiet" onClick={copy}>
      <span aria-live="polite">{said ? t(`shell.${said}`) : (props.label ?? t("shell.copy"))}</span>
    </button>
  );
}

/** Copy a text to the clipboard. Returns whether the browser did. */
async function copied(text: string): Promise<boolean> {
  if (window.isSecureContext) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  // Plain HTTP from another computer: browsers have the clipboard for a selection only.
  const focused = document.activeElement;
  const place = document.createElement("textarea");
  place.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(place);
  place.select();
  const done = document.execCommand("copy");
  place.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}

/** What went wrong, with a way to try again. */
export function Problem(props: { error: unknown; retry?: () => void }) {
  const said = props.error instanceof Error ? props.error.message : String(props.error);
  // Servers and browsers say it in English.
  return (
    <p class="problem" role="alert">
      <strong>{t("shell.failed")}</strong> <span lang="en">{said}</span>{" "}
      {props.retry && (
        <button type="button" onClick={props.retry}>
          {t("shell.retry")}
        </button>
      )}
    </p>
  );
}
