/** Which pictures requests may bring, and from where: the settings `[images]`. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, call } from "../../api/http";
import type { ImagesReply, ImageValues } from "../../api/schema";
import { t } from "../../i18n";
import { Card, Field, Loading, Problem } from "../../ui/basics";
import { numberIn } from "../../ui/typed";
import { refusal } from "./refusal";

type Name = keyof ImageValues;

const NUMBERS = [
  "max_images",
  "max_bytes",
  "max_pixels",
  "max_request_pixels",
  "max_total_pixels",
] as const satisfies readonly Name[];
const SWITCHES = ["remote", "remote_private"] as const satisfies readonly Name[];

/** What stands in the inputs. */
type Entered = Record<Name, string | boolean>;

const PATH = "console/images";

export function Images() {
  const [read, setRead] = useState<ImagesReply | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [said, setSaid] = useState("");
  const refresh = () =>
    void call<ImagesReply>(PATH).then((found) => (setRead(found), setError(null)), setError);
  useEffect(refresh, []);
  return (
    <Card title={t("models.images")}>
      <p class="dim">{t("models.images_text")}</p>
      {error !== null && <Problem error={error} retry={refresh} />}
      {!read && error === null && <Loading />}
      {read && (
        <Form
          key={read.version}
          read={read}
          saved={(now) => (setRead(now), setSaid(t("models.saved")))}
          again={refresh}
        />
      )}
      <p class="dim" role="status">
        {said}
      </p>
    </Card>
  );
}

function Form(props: { read: ImagesReply; saved: (read: ImagesReply) => void; again: () => void }) {
  const { read } = props;
  const [values, setValues] = useState(() => entered(read.values));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const before = entered(read.values);
  const changed = (Object.keys(before) as Name[]).some((name) => before[name] !== values[name]);
  const change = (name: Name, value: string | boolean) => setValues((now) => ({ ...now, [name]: value }));
  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      const body = { version: read.version, ...sent(values) };
      props.saved(await call<ImagesReply>(PATH, { method: "PUT", body }));
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  }
  const about = (name: Name) => ({
    label: t(`models.images_${name}`),
    note: t(`models.images_${name}_help`),
    error: saidAbout(error, name),
  });
  const text = (name: "remote_timeout_s" | (typeof NUMBERS)[number]) => (
    <Field key={name} {...about(name)}>
      {(attributes) => (
        <input
          {...attributes}
          name={name}
          inputMode="decimal"
          autocomplete="off"
          placeholder={String(read.defaults[name])}
          value={String(values[name])}
          onInput={(event) => change(name, event.currentTarget.value)}
        />
      )}
    </Field>
  );
  return (
    <form class="stack" onSubmit={(event) => void submit(event)} noValidate>
      <div class="settings">
        {NUMBERS.map(text)}
        <Field {...about("folders")}>
          {(attributes) => (
            <textarea
              {...attributes}
              name="folders"
              rows={2}
              spellcheck={false}
              value={String(values.folders)}
              onInput={(event) => change("folders", event.currentTarget.value)}
            />
          )}
        </Field>
        {SWITCHES.map((name) => (
          <Field key={name} {...about(name)}>
            {(attributes) => (
              <input
                {...attributes}
                name={name}
                type="checkbox"
                role="switch"
                checked={values[name] === true}
                onChange={(event) => change(name, event.currentTarget.checked)}
              />
            )}
          </Field>
        ))}
        {text("remote_timeout_s")}
      </div>
      {error !== null && !Object.keys(before).some((name) => saidAbout(error, name)) && (
        <Problem error={error} retry={isConflict(error) ? props.again : undefined} />
      )}
      {changed && (
        <div class="actions">
          <button class="primary" aria-disabled={busy}>
            {t("models.save")}
          </button>
          <button type="button" aria-disabled={busy} onClick={() => (setValues(before), setError(null))}>
            {t("models.discard")}
          </button>
        </div>
      )}
    </form>
  );
}

function entered(values: ImageValues): Entered {
  const shown = Object.entries(values).map(([name, value]) => [
    name,
    typeof value === "boolean" ? value : Array.isArray(value) ? value.join("\n") : String(value),
  ]);
  return Object.fromEntries(shown) as Entered;
}

/** The values for the server: an empty field is the default. What is no number is said by the server. */
function sent(values: Entered): Record<string, unknown> {
  const body = Object.entries(values).map(([name, value]) => {
    if (typeof value === "boolean") return [name, value];
    if (name === "folders") return [name, lines(value)];
    return [name, value.trim() ? (numberIn(value) ?? value) : null];
  });
  return Object.fromEntries(body) as Record<string, unknown>;
}

function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

function saidAbout(error: unknown, name: string): string | null {
  if (!(error instanceof ApiError) || error.param !== name) return null;
  return refusal(name, error.message.replace(/^.*?, \[images\]: /s, ""));
}

function isConflict(error: unknown): boolean {
  return error instanceof ApiError && error.code === "settings_conflict";
}
